"""The grid that lists nodes by partition, and the one that runs them in this process."""

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from simulations.client_app import app as simulated
from simulations.engine.local import LocalGrid
from simulations.engine.partitions import PartitionGrid
from tests.messages import FakeGrid, numpy_dict, record, reply_with, request, shifted

PARTITIONS = {901: 2, 17: 3, 2**60 + 1: 0, 55: 1}


def tells(message):
    answer = MetricRecord({"partition-id": PARTITIONS[message.metadata.dst_node_id]})
    return Message(RecordDict({"partition": answer}), reply_to=message)


def build(answer=tells, node_ids=PARTITIONS, num_clients=4):
    return PartitionGrid(FakeGrid(node_ids, answer), num_clients, timeout=0.0)


# ------------------------------------------------------------------ PartitionGrid
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


# ------------------------------------------------------------------ LocalGrid
def train_messages(grid, model):
    return [request(model, node_id=node_id) for node_id in grid.get_node_ids()]


def local(train, nodes=3):
    app = ClientApp()
    app.train()(train)
    return LocalGrid(app, nodes, {"answer": 42})


def test_every_node_has_its_partition_and_the_run_config():
    seen = []

    def train(message, context):
        seen.append((context.node_id, dict(context.node_config), dict(context.run_config)))
        return reply_with(message, message.content["arrays"])

    grid = local(train)
    replies = list(grid.send_and_receive(train_messages(grid, record({"w": [0.0]}))))
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2, 3]
    assert seen == [
        (node, {"partition-id": node - 1, "num-partitions": 3}, {"answer": 42})
        for node in (1, 2, 3)
    ]


def test_replies_come_one_by_one():
    """A client is asked when its reply is wanted: memory holds one reply, not all."""
    trained = []

    def train(message, context):
        trained.append(context.node_id)
        return reply_with(message, message.content["arrays"])

    grid = local(train)
    replies = iter(grid.send_and_receive(train_messages(grid, record({"w": [0.0]}))))
    assert trained == []
    next(replies)
    assert trained == [1]


def test_app_that_raises_is_an_error_reply(capsys):
    def train(message, context):
        raise ValueError("no data here")

    grid = local(train, nodes=1)
    (reply,) = grid.send_and_receive(train_messages(grid, record({"w": [0.0]})))
    assert reply.has_error()
    assert "no data here" in reply.error.reason
    assert "Traceback" in capsys.readouterr().err


def test_replies_are_pulled_once():
    grid = local(lambda message, _context: reply_with(message, message.content["arrays"]))
    ids = list(grid.push_messages(train_messages(grid, record({"w": [0.0]}))))
    assert len(list(grid.pull_messages(ids))) == 3
    assert list(grid.pull_messages(ids)) == []


def test_clients_do_not_see_each_others_changes():
    """Over a network every client has its own copy of the message, and the server keeps its own.

    A client may train in place, or take the arrays out of its message to save memory.
    """
    received = []

    def train(message, _context):
        arrays = message.content["arrays"]
        received.append(numpy_dict(arrays))
        trained = shifted(arrays, 1.0)
        message.content["arrays"] = trained
        arrays.clear()
        return reply_with(message, trained)

    grid, model = local(train), record({"w": [1.0, 2.0]})
    content = RecordDict({"arrays": model})
    messages = [Message(content, node_id, "train") for node_id in grid.get_node_ids()]
    replies = list(grid.send_and_receive(messages))
    assert [arrays["w"].tolist() for arrays in received] == [[1.0, 2.0]] * 3
    assert model["w"].numpy().tolist() == [1.0, 2.0]
    assert [reply.content["arrays"]["w"].numpy().tolist() for reply in replies] == [[2.0, 3.0]] * 3
