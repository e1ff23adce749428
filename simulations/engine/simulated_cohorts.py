"""The strategy of a simulation: a cohort from a whole population, asked on a few nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flwr_sdp.model_rounding import Rounding
from flwr_sdp.strategies import ClipAndNoise, PrivacyReport
from flwr_sdp.strategies.accumulator import Accumulator
from flwr_sdp.strategies.grid_view import GridView
from flwr_sdp.strategies.tally import Tally
from simulations.engine.cohort_message import CohortRequest, add_cohort_reply
from simulations.engine.partial_sum import PartialSum


class SimulatedCohorts(ClipAndNoise):
    """:class:`ClipAndNoise` over a population of which each node stands for any members.

    The cohort is drawn from ``range(population)`` as from as many nodes, and dealt to the nodes
    there are, which run :func:`~simulations.engine.virtual_clients.virtual_clients`: each trains,
    privatizes and clips for its share and replies with one sum. So the engine is paid for a message
    and not for a client, and the numbers are those of one client a message.

    Parameters
    ----------
    strategy : Strategy
        As for ``ClipAndNoise``.
    population : int
        How many clients there are.
    **settings
        All others of ``ClipAndNoise`` but `accumulator`.

    Notes
    -----
    **Simulation only**: the server takes the nodes' sums as they are, since nodes here are its own
    processes. A device must never be able to send one.
    """

    def __init__(self, strategy: Strategy, *, population: int, **settings: Any) -> None:
        super().__init__(strategy, population=population, accumulator=PartialSum, **settings)
        self._clients = population
        self._shares: dict[int, tuple[int, ...]] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the cohort from the population, and ask each node for its share of it."""
        nodes = list(grid.get_node_ids())
        asked = list(
            super().configure_train(server_round, arrays, config, _Population(grid, self._clients))
        )
        clients = [message.metadata.dst_node_id for message in asked]
        shares = {node: tuple(clients[place :: len(nodes)]) for place, node in enumerate(nodes)}
        self._shares = {node: share for node, share in shares.items() if share}
        return [
            Message(
                CohortRequest(
                    clients=share,
                    clip_norm=self.clip_norm,
                    selection=self.selection,
                    require_local_dp=self.require_local_dp,
                ).added_to(asked[0].content),
                node,
                asked[0].metadata.message_type,
            )
            for node, share in self._shares.items()
        ]

    def fold(
        self,
        reply: Message,
        total: Accumulator,
        tally: Tally,
        *,
        awaited: set[int],
        rounding: Rounding,
    ) -> None:
        """Add the sum and the tally of one node."""
        share = self._shares.pop(reply.metadata.src_node_id, ())
        if reply.has_error():
            tally.failed += len(share)
            tally.note(f"a node failed: {reply.error.reason}")
            return
        try:
            if not share or not isinstance(total, PartialSum):
                raise ValueError("its node was not asked, or has replied already")
            add_cohort_reply(reply.content, total, tally)
        except ValueError as error:
            tally.refused += len(share)
            tally.note(f"a reply was refused: {error}")
        awaited.difference_update(share)

    def report(self) -> PrivacyReport:
        """Return the report, which says that the clients were simulated."""
        report = super().report()
        text = "simulated clients: their nodes clipped and summed for them, and were trusted in it"
        return replace(report, exceptions=(*report.exceptions, text))


class _Population(GridView):
    """A grid with a node for every client."""

    def __init__(self, grid: Grid, num_clients: int) -> None:
        super().__init__(grid)
        self._num_clients = num_clients

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients."""
        return range(self._num_clients)
