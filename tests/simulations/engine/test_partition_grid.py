"""The grid that lists nodes by partition."""

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict

from simulations.client_app import app as simulated
from simulations.engine.local_grid import LocalGrid
from simulations.engine.partition_grid import PartitionGrid
from tests.messages import FakeGrid

PARTITIONS = {901: 2, 17: 3, 2**60 + 1: 0, 55: 1}


def tells(message):
    answer = MetricRecord({"partition-id": PARTITIONS[message.metadata.dst_node_id]})
    return Message(RecordDict({"partition": answer}), reply_to=message)


def build(answer=tells, node_ids=PARTITIONS, num_clients=4):
    return PartitionGrid(FakeGrid(node_ids, answer), num_clients, timeout=0.0)


@pytest.mark.parametrize("node_ids", [list(PARTITIONS), sorted(PARTITIONS), [*PARTITIONS][::-1]])
def test_nodes_come_in_the_order_of_their_partitions(node_ids):
    grid = build(node_ids=node_ids)
    assert list(grid.get_node_ids()) == [2**60 + 1, 55, 901, 17]
    assert list(grid.get_node_ids()) == [2**60 + 1, 55, 901, 17]


def test_every_node_is_asked_once_with_a_query():
    inner = FakeGrid(PARTITIONS, tells)
    PartitionGrid(inner, 4, timeout=0.0)
    assert sorted(message.metadata.dst_node_id for message in inner.sent) == sorted(PARTITIONS)
    assert {message.metadata.message_type for message in inner.sent} == {"query"}
    assert all(len(message.content) == 0 for message in inner.sent)


def test_simulated_clients_tell_their_partition():
    class Shuffled(LocalGrid):
        def get_node_ids(self):
            return list(super().get_node_ids())[::-1]

    grid = PartitionGrid(Shuffled(simulated, 5, {}), 5, timeout=0.0)
    assert list(grid.get_node_ids()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("num_clients", [3, 5])
def test_another_number_of_nodes_names_the_option(num_clients):
    with pytest.raises(
        ValueError,
        match=rf"num-nodes is {num_clients} .*.*4 nodes.*num-supernodes={num_clients}",
    ):
        build(num_clients=num_clients)


def test_error_of_a_node_ends_the_run():
    def fails(message):
        if message.metadata.dst_node_id == 55:
            return Message(Error(2, "no such file"), reply_to=message)
        return tells(message)

    with pytest.raises(RuntimeError, match="could not tell its partition: no such file"):
        build(fails)


def test_silence_of_a_node_ends_the_run():
    with pytest.raises(RuntimeError, match="only 3 of 4 nodes answered"):
        build(lambda message: None if message.metadata.dst_node_id == 55 else tells(message))


@pytest.mark.parametrize(
    "content",
    [{}, {"partition": MetricRecord()}, {"other": MetricRecord({"partition-id": 1})}],
    ids=["nothing", "no number", "another record"],
)
def test_answer_without_a_partition_ends_the_run(content):
    with pytest.raises(RuntimeError, match="partition"):
        build(lambda message: Message(RecordDict(content), reply_to=message))


def test_messages_go_through():
    inner = FakeGrid(PARTITIONS, tells)
    grid = PartitionGrid(inner, 4, timeout=0.0)
    message = Message(RecordDict(), 55, "query")
    (reply,) = grid.send_and_receive([message])
    assert reply.content["partition"]["partition-id"] == 1
    assert inner.sent[-1] is message
