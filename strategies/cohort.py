"""Who is asked in a round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_sdp.randomness import KeystreamGenerator


def poisson_cohort(
    node_ids: Iterable[int], sampling_rate: float, rng: KeystreamGenerator
) -> list[int]:
    """Return the nodes of one Poisson draw: each is in with probability `sampling_rate`, alone.

    One draw per node, in the given order. The cohort may be empty; that is part of the law that
    the accountant assumes.
    """
    if sampling_rate >= 1.0:
        return list(node_ids)
    log_odds = math.log(sampling_rate) - math.log1p(-sampling_rate)
    return [node_id for node_id in node_ids if rng.bernoulli(log_odds)]


def wait_for_nodes(grid: Grid, min_available_nodes: int, timeout: float) -> list[int]:
    """Return the connected nodes, once there are `min_available_nodes` of them.

    Raises
    ------
    TimeoutError
        After `timeout` seconds, naming the setting to change.
    """
    deadline = time.monotonic() + timeout
    while True:
        node_ids = list(grid.get_node_ids())
        if len(node_ids) >= min_available_nodes:
            return node_ids
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"{len(node_ids)} of min_available_nodes={min_available_nodes} nodes connected "
                f"within node_timeout={timeout:g} s: start more nodes or lower min_available_nodes"
            )
        time.sleep(0.1)


class CohortGrid(Grid):
    """A grid that shows an inner strategy the cohort and nothing else.

    Flower's strategies wait for a minimum number of nodes, even for a cohort that chance made
    smaller; `padding` stand-in ids keep them from waiting. Nothing can be sent through it.
    """

    def __init__(self, grid: Grid, cohort: list[int], minimum: int) -> None:
        self._grid = grid
        padding = (-1 - index for index in range(max(0, minimum - len(cohort))))
        self._node_ids = [*cohort, *padding]

    def get_node_ids(self) -> Iterable[int]:
        """Return the cohort."""
        return list(self._node_ids)

    @property
    def run(self) -> Any:
        """Return the run of the real grid."""
        return self._grid.run

    def set_run(self, run: Any) -> None:
        """Refuse: the run is the real grid's."""
        raise NotImplementedError("the inner strategy only configures a round")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (deprecated in Flower, kept for strategies that still use it)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: the wrapper decides what is sent."""
        raise NotImplementedError("the inner strategy only configures a round")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: the wrapper collects the replies."""
        raise NotImplementedError("the inner strategy only configures a round")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Refuse: the wrapper decides what is sent."""
        raise NotImplementedError("the inner strategy only configures a round")
