"""The grid that runs nodes in this process."""

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from simulations.engine.local_grid import LocalGrid
from tests.messages import numpy_dict, record, reply_with, request, shifted


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
