"""A grid whose nodes come in the order of their partitions."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_sdp.strategies.cohort import wait_for_nodes
from flwr_sdp.strategies.grid_view import GridView

_PULL_INTERVAL = 0.02


class PartitionGrid(GridView):
    """A grid that lists its nodes by partition, so that a seeded cohort is the same in every run.

    Flower draws node ids at random for each run; the partition of a node is what stays.

    Parameters
    ----------
    grid : Grid
        The grid Flower handed to the ServerApp.
    num_nodes : int
        How many nodes the run was configured for.
    timeout : float
        Seconds to wait for the nodes' answers. They are connected at once, or the run was
        configured for another number: that is found within 15 seconds.

    Raises
    ------
    ValueError
        If another number of nodes is connected, with the option to change.
    RuntimeError
        If a node does not tell its partition.
    """

    def __init__(self, grid: Grid, num_nodes: int, timeout: float = 600.0) -> None:
        if hasattr(grid, "pull_interval"):
            grid.pull_interval = _PULL_INTERVAL  # Flower's 0.1 s is felt in short rounds
        super().__init__(grid)
        try:
            node_ids = wait_for_nodes(grid, num_nodes, timeout=min(timeout, 15.0))
        except TimeoutError:
            node_ids = list(grid.get_node_ids())
        if len(node_ids) != num_nodes:
            raise ValueError(
                f"num-nodes is {num_nodes} (num-clients, unless it is set), but the federation has "
                f"{len(node_ids)} nodes: pass --federation-config "
                f'"num-supernodes={num_nodes}" to flwr run'
            )
        self._node_ids = self._by_partition(node_ids, timeout)

    def _by_partition(self, node_ids: list[int], timeout: float) -> list[int]:
        questions = [Message(RecordDict(), node_id, MessageType.QUERY) for node_id in node_ids]
        partition_of: dict[int, int] = {}
        for reply in self._grid.send_and_receive(questions, timeout=timeout):
            if reply.has_error():
                raise RuntimeError(f"a node could not tell its partition: {reply.error.reason}")
            record = reply.content.metric_records.get("partition")
            partition = None if record is None else record.get("partition-id")
            if not isinstance(partition, int):
                raise RuntimeError(f"a node answered without its partition; got {partition!r}")
            partition_of[reply.metadata.src_node_id] = partition
        if len(partition_of) != len(node_ids):
            raise RuntimeError(
                f"only {len(partition_of)} of {len(node_ids)} nodes answered within {timeout:g} s"
            )
        return sorted(node_ids, key=partition_of.__getitem__)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, in the order of their partitions."""
        return list(self._node_ids)
