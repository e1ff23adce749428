"""Replies as they arrive."""

import gc
import logging
import time
import weakref

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from flwr_sdp.strategies.streaming import StreamingGrid
from simulations.engine.local_grid import LocalGrid
from tests.messages import (
    FakeGrid,
    client_app,
    error_reply,
    flat,
    private_reply,
    record,
    shifted,
)
from tests.rounds import make, vector_model
from tests.statistics_helpers import assert_detects


def questions(count, size=4):
    model = record({"w": np.zeros(size, np.float32)})
    content = RecordDict({"arrays": model})
    return [Message(content, node_id, "train") for node_id in range(count)]


def nodes_of(replies):
    return [reply.metadata.src_node_id for reply in replies]


class Delayed(FakeGrid):
    """A remote grid: node i answers at its i-th pull, and forgets what was pulled."""

    def __init__(self, node_ids, delay, answer=private_reply):
        super().__init__(node_ids, answer)
        self.delay = delay
        self.pulls = {}
        self.at_once = []

    def pull_messages(self, message_ids):
        due = []
        for message_id in message_ids:
            node_id = self.waiting[message_id].metadata.dst_node_id
            self.pulls[node_id] = self.pulls.get(node_id, 0) + 1
            if self.pulls[node_id] > self.delay(node_id):
                due.append(message_id)
        self.at_once.append(len(due))
        return super().pull_messages(due)


# ------------------------------------------------------------------ all, in order of arrival
def test_every_reply_comes_once_and_the_first_to_arrive_comes_first():
    grid = Delayed(range(5), lambda node_id: 4 - node_id)
    replies = StreamingGrid(grid).send_and_receive(questions(5), timeout=30)
    assert nodes_of(replies) == [4, 3, 2, 1, 0]
    assert [message.metadata.dst_node_id for message in grid.sent] == list(range(5))


@pytest.mark.parametrize("count", [1, 31, 32, 33, 2500])
def test_any_number_of_messages(count):
    grid = FakeGrid(range(count), private_reply)
    replies = StreamingGrid(grid).send_and_receive(questions(count), timeout=60)
    assert sorted(nodes_of(replies)) == list(range(count))


def test_no_messages_no_replies():
    """Flower's FedAvg asks whether there are replies; an iterator would always say yes."""
    assert not StreamingGrid(FakeGrid([])).send_and_receive([])


def test_nothing_is_sent_before_a_reply_is_asked_for():
    """So that the charge of a round is taken before anyone is asked."""
    grid = FakeGrid(range(3), private_reply)
    replies = StreamingGrid(grid).send_and_receive(questions(3), timeout=30)
    assert grid.sent == []
    assert len(list(replies)) == 3


def test_error_replies_come_as_they_are():
    grid = FakeGrid(range(2), error_reply)
    replies = list(StreamingGrid(grid).send_and_receive(questions(2), timeout=30))
    assert [reply.error.reason for reply in replies] == ["it broke"] * 2


# ------------------------------------------------------------------ memory
LARGE = 3_000_000  # 12 MB: one reply at a time


def held_at_once(consume):
    """Return how many replies are alive at most while `consume` takes them all."""
    alive, most = weakref.WeakSet(), [0]

    def answer(message):
        model = record({"w": np.zeros(4, np.float32)})
        reply = Message(RecordDict({"arrays": model}), reply_to=message)
        alive.add(reply)
        most[0] = max(most[0], len(alive))
        return reply

    grid = StreamingGrid(FakeGrid(range(20), answer))
    gc.disable()
    try:
        consume(grid.send_and_receive(questions(20, LARGE), timeout=60))
    finally:
        gc.enable()
    return most[0]


def test_a_reply_is_gone_before_the_next_one_is_pulled():
    """By reference counting alone. The mutant keeps them, as Flower's grids do."""

    def drop(replies):
        for reply in replies:
            assert reply.has_content()
            del reply

    def check(consume):
        assert held_at_once(consume) == 1

    check(drop)
    assert_detects(check, list)


def test_the_strategy_keeps_no_reply():
    """Neither the message nor what is in it, which a view of Flower's would keep."""
    born, most = [], [0]

    def answer(message):
        reply = private_reply(message)
        born.append(weakref.ref(reply.content["arrays"]["w"]))
        most[0] = max(most[0], sum(array() is not None for array in born))
        return reply

    model = record({"w": np.zeros(LARGE, np.float32)})
    gc.disable()
    try:
        make().start(FakeGrid(range(4), answer), model, num_rounds=1)
    finally:
        gc.enable()
    assert most[0] == 1


def test_small_replies_are_pulled_together():
    """A question to a remote grid for each of a thousand nodes would take longer than the round."""
    grid = Delayed(range(1000), lambda _node_id: 0)
    assert len(list(StreamingGrid(grid).send_and_receive(questions(1000), timeout=60))) == 1000
    assert grid.at_once == [1000]


# ------------------------------------------------------------------ waiting
def test_timeout_ends_the_round_and_is_named(caplog):
    grid = Delayed(range(4), lambda node_id: 0 if node_id < 3 else 10**9)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        replies = list(StreamingGrid(grid).send_and_receive(questions(4), timeout=0.3))
    assert sorted(nodes_of(replies)) == [0, 1, 2]
    assert 0.3 <= time.monotonic() - start < 5.0
    assert "1 of 4 nodes had not replied within timeout=0.3 s" in caplog.text


def test_no_timeout_waits_for_all():
    grid = Delayed(range(3), lambda node_id: 2 * node_id)
    assert sorted(nodes_of(StreamingGrid(grid).send_and_receive(questions(3)))) == [0, 1, 2]


def test_undelivered_messages_are_not_waited_for(caplog):
    class Lossy(FakeGrid):
        """Flower's in-memory grid leaves such a message out, its remote one answers None."""

        def push_messages(self, messages):
            _first, *rest = super().push_messages(messages)
            return [None, *rest[1:]]

    with caplog.at_level(logging.WARNING, logger="flwr"):
        replies = StreamingGrid(Lossy(range(5), private_reply)).send_and_receive(questions(5))
        assert sorted(nodes_of(replies)) == [2, 3, 4]
    assert "2 of 5 messages could not be delivered" in caplog.text


def test_time_spent_by_the_consumer_counts(caplog):
    """The timeout is that of the round, whoever takes the time."""
    grid = Delayed(range(3), lambda node_id: 0)
    replies = []
    for reply in StreamingGrid(grid).send_and_receive(questions(3, LARGE), timeout=0.2):
        replies.append(reply)
        time.sleep(0.3)
    assert len(replies) == 1


def test_waiting_leaves_the_processor_to_others():
    """One node that answers after a second: some ten pulls, not thousands."""
    start = time.monotonic()
    grid = FakeGrid([0], lambda m: private_reply(m) if time.monotonic() - start > 1.0 else None)
    pulls = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: (pulls.append(1), pull(ids))[1]
    list(StreamingGrid(grid).send_and_receive(questions(1), timeout=30))
    assert len(pulls) < 60


# ------------------------------------------------------------------ the view
def test_view_passes_everything_else_on():
    grid = FakeGrid([3, 4], private_reply)
    view = StreamingGrid(grid)
    assert list(view.get_node_ids()) == [3, 4]
    assert [node.node_id for node in view.get_nodes()] == [3, 4]
    message_ids = view.push_messages(questions(1))
    assert len(view.pull_messages(message_ids)) == 1
    with pytest.raises(NotImplementedError):
        view.set_run(None)
    message = view.create_message(RecordDict(), "train", 1, "group")
    assert (message.metadata.dst_node_id, message.metadata.group_id) == (1, "group")


# ------------------------------------------------------------------ with the strategy
def test_late_nodes_do_not_change_the_divisor(caplog):
    grid = Delayed(range(10), lambda node_id: 0 if node_id < 6 else 10**9)
    grid.answer = lambda message: private_reply(message, np.ones(4))
    strategy = make()
    result = strategy.start(grid, vector_model(), num_rounds=1, timeout=0.2)
    np.testing.assert_allclose(flat(result.arrays), 0.6)
    assert (strategy.last_round["cohort"], strategy.last_round["replies"]) == (10, 6)
    assert "4 of 10 nodes had not replied within timeout=0.2 s" in caplog.text


def test_a_late_reply_is_no_part_of_the_next_round():
    """Node 1 answers the first round when the second is under way."""
    grid = Delayed(range(2), lambda node_id: 0)
    grid.delay = lambda node_id: 10**9 if node_id == 1 and len(grid.sent) < 3 else 0
    grid.answer = lambda message: private_reply(message, np.ones(4))
    strategy = make()
    result = strategy.start(grid, vector_model(), num_rounds=2, timeout=0.2)
    np.testing.assert_allclose(flat(result.arrays), 0.5 + 1.0)
    assert strategy.last_round["replies"] == 2


def test_replies_in_any_order_give_the_same_model():
    updates = np.random.default_rng(0).standard_normal((6, 4))
    results = []
    for delay in (lambda node_id: node_id, lambda node_id: 5 - node_id):
        grid = Delayed(range(6), delay, lambda m: private_reply(m, updates[m.metadata.dst_node_id]))
        results.append(make().start(grid, vector_model(), num_rounds=1).arrays)
    np.testing.assert_allclose(*(flat(arrays) for arrays in results), rtol=1e-12)


def test_evaluation_streams_as_well():
    def answer(message):
        if message.metadata.message_type == "train":
            return private_reply(message)
        metrics = MetricRecord({"num-examples": 1, "accuracy": message.metadata.dst_node_id / 4})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    result = make(FedAvg()).start(FakeGrid(range(5), answer), vector_model(), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == pytest.approx({"accuracy": 0.5})


def test_local_clients_run_one_at_a_time_as_their_replies_are_wanted():
    """A hundred of them, and never two replies at once; the requests share one model."""
    alive, most = weakref.WeakSet(), [0]

    def train(message, _context):
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        reply = private_reply(message, 1.0)
        alive.add(reply)
        most[0] = max(most[0], len(alive))
        return reply

    def passing(message, context, call_next):
        return call_next(message, context)

    grid = LocalGrid(client_app(passing, train), 20, {})
    model = record({"w": np.zeros(LARGE, np.float32)})
    result = make(clip_norm=float("inf")).start(grid, model, num_rounds=1)
    np.testing.assert_allclose(flat(result.arrays), flat(shifted(model, 1.0)))
    assert most[0] <= 2
