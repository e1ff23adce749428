"""A message that is delivered again to a device without a ledger: the same bytes, or an error."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto

from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import DeviceLedger, SeparatedDPMod, context_memory, protect
from flwr_sdp.clients.stored_reply import encode
from flwr_sdp.clients.testing import context, message
from tests.messages import client_app, record, reply_with, shifted

BUDGET = SeparatedBudget(epsilon_direction=3.0, epsilon_magnitude=1.0)
NOT_KEPT = "this message was answered before, and its reply is no longer kept"


def asked(number=0, message_type="train"):
    model = record({"w": np.linspace(-1.0, 1.0, 8)})
    return message({"arrays": model}, message_type, message_id=f"message-{number}")


class Device:
    """An app behind the mod that counts what it was asked, and does to its context what is said."""

    def __init__(self, does=lambda where: None, **options):
        self.calls, self.does = 0, does
        self.app = client_app(SeparatedDPMod(BUDGET, 2.0, **options), self.handle)

    def handle(self, asked, where):
        self.calls += 1
        self.does(where)
        if asked.metadata.message_type != "train":
            return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=asked)
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    def __call__(self, where, number=0, message_type="train"):
        return self.app(asked(number, message_type), where)


def arrays(reply):
    assert reply.has_content(), reply.error
    return reply.content["arrays"]["w"].data


def assert_not_kept(reply):
    assert reply.has_error()
    assert NOT_KEPT in reply.error.reason


def same(where):
    return where


def by_wire(where):
    """To another process of a SuperNode."""
    return context_from_proto(context_to_proto(where))


def by_pickle(where):
    """To an actor of Ray."""
    return pickle.loads(pickle.dumps(where))  # noqa: S301


@pytest.mark.parametrize("travel", [same, by_wire, by_pickle])
def test_a_message_gets_the_same_bytes_again(travel):
    device, where = Device(), context()
    replies = []
    for _ in range(3):
        replies.append(device(where))
        where = travel(where)
    assert len({repr(encode(reply.content)) for reply in replies}) == 1
    assert device.calls == 1
    assert arrays(device(where, 1)) != arrays(replies[0])


@pytest.mark.parametrize("travel", [same, by_wire, by_pickle])
def test_replies_are_kept_while_there_is_room(travel):
    """Of whatever device and message, in any order, also from copies of a context."""
    device, where, other = Device(), context(), context()
    first = [arrays(device(where, number)) for number in range(3)]
    second, copied = arrays(device(other)), travel(where)
    for number in (2, 0, 1, 0):
        assert arrays(device(travel(copied), number)) == first[number]
    assert arrays(device(other)) == second
    assert device.calls == 4


@pytest.mark.parametrize("travel", [by_wire, by_pickle])
def test_one_message_to_copies_of_a_context_at_once(travel):
    """All of them train, and one report leaves."""
    device, where = Device(), context()
    device(where, 99)
    copies, barrier = [travel(where) for _ in range(4)], threading.Barrier(4)
    device.does = lambda _where: barrier.wait(30.0)
    with ThreadPoolExecutor(4) as pool:
        replies = {arrays(reply) for reply in pool.map(device, copies)}
    assert len(replies) == 1
    assert device.calls == 5


@pytest.mark.parametrize("travel", [same, by_wire, by_pickle])
def test_a_reply_that_is_not_kept_is_an_error(travel, monkeypatch):
    """One reply a process, of whatever device, where there is no room for more."""
    monkeypatch.setattr(context_memory, "_ROOM", 0)
    device, where, other = Device(), context(), context()
    assert device(where).has_content()
    where = travel(where)
    last = device(other)
    assert_not_kept(device(where))
    assert device.calls == 2
    assert arrays(device(other)) == arrays(last)
    assert device(where, 1).has_content()
    for number in (0, 0, 1):
        reply = device(where, number)
        assert reply.has_content() if number else reply.has_error()
    assert device.calls == 3


@pytest.mark.parametrize("message_type", ["train", "evaluate"])
@pytest.mark.parametrize(
    "does",
    [
        lambda where: where.state.clear(),
        lambda where: setattr(where, "state", RecordDict()),
        lambda where: where.node_config.update({"sdp-data-set": "another"}),
        lambda where: setattr(where, "run_id", 99),
    ],
    ids=["clear", "replace", "data set", "run"],
)
@pytest.mark.parametrize("travel", [same, by_wire, by_pickle])
def test_what_an_app_does_to_its_context_gives_no_second_report(does, message_type, travel):
    device, where = Device(), context()
    device.does = does if message_type == "train" else same
    first = device(where)
    where = travel(where)
    device.does = does
    device(where, 1, "evaluate")
    where = travel(where)
    assert arrays(device(where)) == arrays(first)
    assert device.calls == 2


def test_a_state_that_is_cleared_behind_the_mods_back_gives_no_second_report():
    """By a function without a mod, in the same process."""
    device, where = Device(), context()
    first = device(where)
    where.state.clear()
    assert arrays(device(where)) == arrays(first)
    assert device.calls == 1


def test_the_app_sees_its_own_state_and_keeps_it():
    seen = []

    def does(where):
        seen.append(list(where.state))
        where.state["mine"] = MetricRecord({"steps": len(seen)})

    device, where = Device(does), context()
    for number in range(3):
        assert device(where, number).has_content()
        where = by_wire(where)
    assert seen == [[], ["mine"], ["mine"]]
    assert where.state["mine"]["steps"] == 3
    sizes = {name: rec.count_bytes() for name, rec in where.state.items()}
    assert sum(sizes.values()) < 500  # no model: a simulation keeps the state of every client


@pytest.mark.parametrize("fails", [ValueError("no"), RuntimeError("no"), SystemExit()])
def test_an_app_that_fails_has_not_answered(fails):
    def does(where):
        raise fails

    device, where = Device(does), context()
    assert device(where).has_error()
    device.does = same
    assert device(where).has_content()
    assert device.calls == 2


def test_a_message_that_is_answered_while_the_app_trains_gets_that_answer():
    where, earlier = context(), []
    device = Device()

    def train(asked, where):
        with ThreadPoolExecutor(1) as pool:  # where no other mod waits for its app
            earlier.append(pool.submit(device, where).result())
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    reply = client_app(SeparatedDPMod(BUDGET, 2.0), train)(asked(), where)
    assert arrays(reply) == arrays(earlier[0]) == arrays(device(where))
    assert device.calls == 1


def test_messages_without_an_id_are_all_new():
    device, where = Device(), context()
    replies = [device.app(message(asked().content, message_id=""), where) for _ in range(2)]
    assert arrays(replies[0]) != arrays(replies[1])


def test_evaluations_are_done_again():
    device, where = Device(), context()
    for _ in range(2):
        assert device(where, 0, "evaluate").has_content()
    assert device.calls == 2
    assert list(where.state) == []


def test_with_a_ledger_it_alone_remembers(tmp_path):
    """Also for a context that never heard of the message."""
    device = Device(ledger=DeviceLedger(tmp_path / "ledger.db"))
    assert arrays(device(context())) == arrays(device(context()))
    assert device.calls == 1


def test_a_protected_app_too():
    device = Device()
    device.app = protect(
        client_app(lambda m, c, f: f(m, c), device.handle), None, budget=BUDGET, max_norm=2.0
    )
    where = context()
    assert arrays(device(where)) == arrays(device(copy.deepcopy(where)))
    assert device.calls == 1
