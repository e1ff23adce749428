"""What a device allows, whatever a server or an app asks: caps and the ledger, through the mod."""

import logging
import math
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, fitres_to_recorddict

from flwr_sdp import SeparatedBudget, SeparatedMechanism, secure_generator, seeded_generator
from flwr_sdp.clients import DeviceLedger, Request, SeparatedDPMod
from flwr_sdp.clients.caps import DeviceCaps
from flwr_sdp.clients.testing import context, message
from tests.messages import client_app, record, reply_with, shifted

WITHHELD = "SeparatedDPMod: the device withheld its reply, see its log"
KNOWN = (
    "sdp-cosine-cap, sdp-data-set, sdp-epsilon-cap, sdp-ledger, sdp-max-norm-cap, "  # sorted
    "sdp-min-dim, sdp-total-epsilon-cap"
)
NUMBERS = {
    "sdp-epsilon-cap": "epsilon",
    "sdp-total-epsilon-cap": "total_epsilon",
    "sdp-max-norm-cap": "max_norm",
}


def model():
    return record({"w": np.linspace(-1.0, 1.0, 8)})


def asks(epsilon=4.0, max_norm=2.0, **more):
    """Return the run config of a server."""
    return {
        "sdp-epsilon-direction": 0.75 * epsilon,
        "sdp-epsilon-magnitude": 0.25 * epsilon,
        "sdp-max-norm": max_norm,
        **more,
    }


def event_of(epsilon=4.0):
    budget = SeparatedBudget(epsilon_direction=0.75 * epsilon, epsilon_magnitude=0.25 * epsilon)
    return SeparatedMechanism.from_budget(8, budget, 2.0).event


class Device:
    """An app behind the mod; counts what the app was asked."""

    def __init__(self, node_config=None, **options):
        self.node_config = node_config or {}
        self.calls = 0
        self.app = client_app(SeparatedDPMod(**options), self._handle)

    def _handle(self, asked, _context):
        self.calls += 1
        if asked.metadata.message_type != "train":
            return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=asked)
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    def __call__(self, run_config=None, number=0, message_type="train", **options):
        config = asks() if run_config is None else run_config
        return self.ask(context(config, self.node_config), number, message_type, **options)

    def ask(self, where, number, message_type="train", **options):
        message_id = options.get("message_id", f"message-{number}")
        return self.app(message({"arrays": model()}, message_type, message_id=message_id), where)


def content(reply):
    """Return all that a reply holds, byte by byte."""
    assert reply.has_content(), reply.error
    return repr(
        [
            (name, type(rec).__name__, [(key, repr(value)) for key, value in rec.items()])
            for name, rec in reply.content.items()
        ]
    ), [array.data for rec in reply.content.array_records.values() for array in rec.values()]


def spent(reply):
    assert reply.has_content(), reply.error
    metrics = reply.content["metrics"]
    return metrics["ldp-epsilon-direction"] + metrics["ldp-epsilon-magnitude"]


def assert_refused(reply, *texts):
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.code == 6
    assert reply.error.reason.startswith("SeparatedDPMod: ")
    for text in texts:
        assert text in reply.error.reason


def assert_withheld(reply):
    assert reply.has_error()
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (6, WITHHELD)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


# ------------------------------------------------------------------ the node config
def test_a_node_without_caps_allows_everything():
    caps = DeviceCaps.of({})
    assert caps == DeviceCaps(
        epsilon=None, total_epsilon=None, max_norm=None, ledger=None, data_set="default"
    )
    caps.check(SeparatedBudget(epsilon_direction=1e6, epsilon_magnitude=1e6), 1e9)


def test_every_key_is_read():
    caps = DeviceCaps.of(
        {
            "sdp-epsilon-cap": 10.5,
            "sdp-total-epsilon-cap": 300.0,
            "sdp-max-norm-cap": 0.5,
            "sdp-ledger": "/var/lib/ledger.db",
            "sdp-data-set": "ward-7",
        }
    )
    assert caps == DeviceCaps(
        epsilon=10.5,
        total_epsilon=300.0,
        max_norm=0.5,
        ledger="/var/lib/ledger.db",
        data_set="ward-7",
    )


@pytest.mark.parametrize("key", list(NUMBERS))
def test_whole_numbers_are_numbers(key):
    value = getattr(DeviceCaps.of({key: 10}), NUMBERS[key])
    assert value == 10.0
    assert type(value) is float


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "5", True, None])
@pytest.mark.parametrize("key", list(NUMBERS))
def test_other_caps_are_refused(key, value):
    with pytest.raises(ValueError, match=rf"{key} must be a finite number > 0; got {value!r}"):
        DeviceCaps.of({key: value})


@pytest.mark.parametrize("value", ["", 5, True, 1.5])
@pytest.mark.parametrize("key", ["sdp-ledger", "sdp-data-set"])
def test_other_names_are_refused(key, value):
    kind = type(value).__name__  # the value goes to the server
    with pytest.raises(ValueError, match=rf"{key} must be a text that is not empty; got .* {kind}"):
        DeviceCaps.of({key: value})


@pytest.mark.parametrize(
    "key", ["sdp-epsilon", "sdp-epsilon-caps", "sdp-max-norm", "sdp-", "sdp-Epsilon-cap"]
)
def test_a_cap_that_is_misspelt_is_refused_with_those_there_are(key):
    with pytest.raises(ValueError, match=f"{key} is no setting of a device: .* {KNOWN}$"):
        DeviceCaps.of({"sdp-epsilon-cap": 3.0, key: 5.0})


@pytest.mark.parametrize(
    ("node_config", "name"),
    [
        ({"partition-id": 3, "num-partitions": 10}, "partition-3"),
        ({"partition-id": 0}, "partition-0"),
        ({"partition-id": 3, "sdp-data-set": "ward"}, "ward"),
        ({"num-partitions": 10}, "default"),
    ],
)
def test_a_data_set_is_that_of_the_partition_unless_it_is_named(node_config, name):
    assert DeviceCaps.of(node_config).data_set == name


OF_ONES_OWN = (
    "num-partitions data-path data-set dataset data_set dataset-path data-dir epsilon max-norm "
    "norm ledger ledger-path cap capacity xsdp-cap max-memory-cap device name node-id sdk-path "
    "batch-size learning-rate local-epochs epsilon-direction min-samples subset"
).split()
MISSPELT = {
    "sdp-epsilon-cap": [
        *("spd-epsilon-cap", "epsilon-cap", "sdp.epsilon.cap", "SDP_EPSILON_CAP", "sdpepsiloncap"),
        *("sdp-epsilon-cpa", "sdp epsilon cap", "sdpEpsilonCap", "dp-epsilon-cap", "cap-epsilon"),
        *("epsilon_caps", "flwr-sdp-epsilon-cap", "sdp\u2013epsilon\u2013cap", "eplison-cap"),
        *("eps-cap", "eps_cap", "epsilon-limit"),
    ],
    "sdp-total-epsilon-cap": ["total-epsilon-cap", "totalEpsilonCap", "sdp-total-epsilon"],
    "sdp-max-norm-cap": [
        *("max-norm-cap", "maxnorm_cap", "sdp-max-norm", "dsp-max-norm-cap", "norm-cap"),
    ],
    "sdp-min-dim": [
        "spd-min-dim",
        "min_dim",
        "sdp-min-dims",
        "sdp-mindim",
        "man-dim",
        "dsp-mix-dim",
    ],
    "sdp-cosine-cap": ["cosine-cap", "SDP_COSINE_CAP", "sdp-cosin-cap", "cos-cap"],
    "sdp-ledger": [
        *("spd-ledger", "sdp:ledger", "sdp-ledgr", "Sdp_ledger", "sdpledger", "sep-ledeer"),
        *("pds-ledger", "sdp"),
    ],
    "sdp-data-set": ["sdp-dataset", "spd-data-set", "sdp.data.set", "sdpdataset"],
}


@pytest.mark.parametrize("key", OF_ONES_OWN)
def test_other_keys_are_of_no_concern(key):
    assert DeviceCaps.of({key: "/data"}) == DeviceCaps.of({})


@pytest.mark.parametrize(
    ("key", "meant"), [(key, meant) for meant, keys in MISSPELT.items() for key in keys]
)
def test_other_spellings_of_our_keys_are_refused(key, meant):
    """A misspelt cap is no cap, prefix or not; the error says which was likely meant."""
    with pytest.raises(ValueError, match="is no setting of a device") as caught:
        DeviceCaps.of({"sdp-epsilon-cap": 3.0, "data-path": "/data", key: 5.0})
    assert str(caught.value).startswith(
        f"{key} is no setting of a device: {meant} was likely meant"
    )
    device = Device({key: 5.0})
    assert_refused(device(), meant)
    assert device.calls == 0


def test_the_log_says_once_a_run_what_is_in_force(path, caplog):
    caplog.set_level(logging.INFO, "flwr_sdp.device")
    config = {"sdp-epsilon-cap": 12.5, "sdp-total-epsilon-cap": 1000, "sdp-ledger": str(path)}
    DeviceLedger.create(path)
    device = Device(config)
    where = context(asks(), config)
    for number, run_id in enumerate([1, 1, 2, 2]):
        where.run_id = run_id
        where = context_from_proto(context_to_proto(where))  # to another process
        assert device.ask(where, number).has_content()
    lines = [text for text in caplog.messages if text.startswith("caps in force on this device: ")]
    assert len(lines) == 2
    for text in ("sdp-epsilon-cap = 12.5", "sdp-total-epsilon-cap = 1000.0", str(path), "default"):
        assert all(text in line for line in lines)
    caplog.clear()
    without = context(asks())
    for number in range(3):
        assert Device().ask(without, number).has_content()
    (line,) = caplog.messages
    assert line.startswith("caps in force on this device: none (no cap")


def test_a_simulation_has_one_such_line_a_process(caplog):
    caplog.set_level(logging.INFO, "flwr_sdp.device")
    for partition in range(5):
        where = context(
            asks(), {"partition-id": partition, "num-partitions": 5, "sdp-data-set": "x"}
        )
        where.run_id, where.node_id = 4711, partition
        assert Device().ask(where, 0).has_content()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("epsilon", "max_norm", "key"),
    [
        (10.0, 2.0, None),
        (10.0 + 4 * math.ulp(10.0), 2.0 + 4 * math.ulp(2.0), None),
        (10.0 + 6 * math.ulp(10.0), 2.0, "sdp-epsilon-cap"),
        (1000.0, 2.0, "sdp-epsilon-cap"),
        (10.0, 2.0 + 5 * math.ulp(2.0), "sdp-max-norm-cap"),
        (5.0, math.nan, "sdp-max-norm-cap"),
    ],
)
def test_a_cap_is_the_most_that_is_allowed(epsilon, max_norm, key):
    caps = DeviceCaps.of({"sdp-epsilon-cap": 10, "sdp-max-norm-cap": 2})
    budget = SeparatedBudget(epsilon_direction=epsilon - 2.0, epsilon_magnitude=2.0)
    if key is None:
        caps.check(budget, max_norm)
        return
    with pytest.raises(ValueError, match=f"{key} of this device is .*; a report was asked") as told:
        caps.check(budget, max_norm)
    cap, asked = re.findall(r"is (\S+); .* at (\S+)$", str(told.value))[0]
    assert cap != asked


@pytest.mark.parametrize(
    ("direction", "magnitude", "cap"), [(0.1, 0.2, 0.3), (0.7, 0.1, 0.8), (1.1, 2.2, 3.3)]
)
def test_decimals_that_add_up_to_the_cap_keep_to_it(path, direction, magnitude, cap):
    """And so do three such reports to three times the cap, and a norm of 3 in units of 0.1."""
    assert direction + magnitude > cap or direction == 0.7
    assert 3 * 0.1 > 0.3
    DeviceLedger.create(path)
    device = Device(
        {
            "sdp-epsilon-cap": cap,
            "sdp-max-norm-cap": 0.3,
            "sdp-ledger": str(path),
            "sdp-total-epsilon-cap": float(3 * Fraction(str(cap))),
        }
    )
    asked = asks(max_norm=3, **{"sdp-local-learning-rate": 0.1})
    asked |= {"sdp-epsilon-direction": direction, "sdp-epsilon-magnitude": magnitude}
    for number in range(3):
        assert device(asked, number=number).has_content()
    assert_refused(device(asked, number=3), "the total epsilon cap of this device is reached")


# ------------------------------------------------------------------ whoever asks for more
def test_a_server_that_asks_for_more_is_refused_and_the_app_is_not_asked(path):
    device = Device({"sdp-epsilon-cap": 10.0, "sdp-ledger": str(path)})
    assert_refused(device(asks(1000.0)), "sdp-epsilon-cap of this device is 10", "asked at 1000")
    assert device.calls == 0
    assert DeviceLedger(path).entries() == []


@pytest.mark.parametrize("epsilon", [5.0, 10.0])
def test_a_server_that_asks_for_less_gets_what_it_asks_for(path, epsilon):
    """The cap is no budget: it does not loosen a report."""
    device = Device({"sdp-epsilon-cap": 10.0, "sdp-ledger": str(path)})
    reply = device(asks(epsilon))
    assert spent(reply) == event_of(epsilon).epsilon <= epsilon
    assert spent(reply) == pytest.approx(epsilon, rel=1e-6)
    assert device.calls == 1
    (entry,) = DeviceLedger(path).entries()
    assert (entry.event, entry.max_norm, entry.dim) == (event_of(epsilon), 2.0, 8)


@pytest.mark.parametrize(
    ("node_config", "key"),
    [({"sdp-epsilon-cap": 10.0}, "sdp-epsilon-cap"), ({"sdp-max-norm-cap": 3.0}, "sdp-max-norm-c")],
)
def test_an_app_that_asks_for_more_is_refused_too(node_config, key):
    """Budget and norm of the constructor, which stands in the code of the app."""
    loose = SeparatedBudget(epsilon_direction=30.0, epsilon_magnitude=2.0)
    device = Device(node_config, budget=loose, max_norm=5.0)
    assert_refused(device({}), key)
    assert_refused(device(asks(1.0, 1.0)), key)
    assert device.calls == 0
    tight = SeparatedBudget(epsilon_direction=5.0, epsilon_magnitude=2.0)
    assert Device(node_config, budget=tight, max_norm=2.0)({}).has_content()


@pytest.mark.parametrize(
    ("max_norm", "unit", "is_allowed"),
    [(4.0, 0.5, True), (4.0, 1.0, False), (2.0, 1.0, True), (2.0, 2.0, False), (1.0, 2.0, True)],
)
@pytest.mark.parametrize("where", ["run config", "constructor"])
def test_the_norm_cap_counts_in_units_of_the_model(max_norm, unit, is_allowed, where):
    node_config = {"sdp-max-norm-cap": 2.0}
    if where == "run config":
        device = Device(node_config)
        reply = device(asks(max_norm=max_norm, **{"sdp-local-learning-rate": unit}))
    else:
        device = Device(node_config, max_norm=max_norm, local_learning_rate=unit)
        reply = device(asks(max_norm=1e-3, **{"sdp-local-learning-rate": 1e-3}))
    if is_allowed:
        assert reply.content["metrics"]["ldp-max-norm"] == max_norm * unit
    else:
        assert_refused(reply, "sdp-max-norm-cap of this device is 2", f"at {max_norm * unit:g}")
        assert device.calls == 0


@pytest.mark.parametrize("node_config", [{"sdp-epsilon-caps": 5.0}, {"sdp-epsilon-cap": "5"}])
def test_a_wrong_node_config_trains_nothing(node_config):
    device = Device(node_config)
    assert_refused(device(), *node_config)
    assert device.calls == 0
    assert device(message_type="evaluate").has_content()


# ------------------------------------------------------------------ the lifetime cap
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("brings", [False, True])
def test_a_total_cap_needs_the_nodes_own_ledger(tmp_path, brings, cap):
    """What the app brings may be a new file for each report, whatever cap of its own it has."""
    for number in range(4):
        ledger = DeviceLedger(tmp_path / f"{number}.db", total_epsilon_cap=cap) if brings else None
        device = Device({"sdp-total-epsilon-cap": 10.0, "sdp-data-set": "x"}, ledger=ledger)
        reply = device(number=number)
        assert_refused(reply, "sdp-total-epsilon-cap needs sdp-ledger", "in the node config")
        assert device.calls == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cap", ["sdp-epsilon-cap", "sdp-total-epsilon-cap"])
@pytest.mark.parametrize(
    ("rng", "is_allowed"),
    [
        (secure_generator, True),
        (lambda: None, True),
        (lambda: seeded_generator(1), False),
        (lambda: np.random.default_rng(1), False),
    ],
    ids=["secure", "none", "seeded", "NumPy's"],
)
def test_no_epsilon_is_capped_with_noise_that_the_app_chose(path, cap, rng, is_allowed):
    """Noise that can be computed anew is none: its epsilon would be a lie."""
    DeviceLedger.create(path)
    device = Device({cap: 1e3, "sdp-ledger": str(path)}, rng=rng)
    if is_allowed:
        assert device().has_content()
        return
    assert_refused(device(), "the app's rng is not the secure generator")
    assert device.calls == 0
    assert DeviceLedger(path).entries() == []


@pytest.mark.parametrize("message_type", ["train", "evaluate"])
@pytest.mark.parametrize("how", ["write", "clear", "replace"])
def test_an_app_does_not_loosen_the_node_config(how, message_type):
    """Flower hands the context, as the app leaves it, to the messages that follow."""

    def loosens(asked, where):
        if how == "write":
            where.node_config["sdp-epsilon-cap"] = 1e6
        elif how == "clear":
            where.node_config.clear()
        else:
            where.node_config, where.run_id = {}, 99
        if asked.metadata.message_type != "train":
            return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=asked)
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    app = client_app(SeparatedDPMod(), loosens)
    node_config = {"sdp-epsilon-cap": 5.0, "data-path": "/data"}
    where = context(asks(4.0), dict(node_config))
    assert app(message({"arrays": model()}, message_type), where).has_content()
    assert (where.node_config, where.run_id) == (node_config, 1)
    where.run_config = asks(100.0)
    assert_refused(app(message({"arrays": model()}, message_id="next"), where), "sdp-epsilon-cap")


@pytest.mark.parametrize("of", ["node config", "constructor", "both"])
def test_a_device_stops_for_good_when_its_budget_is_spent(path, of):
    """At 4 a report under a cap of 10 there are two, whichever of the ways the cap is set."""
    DeviceLedger.create(path)
    node_config, options = {"sdp-ledger": str(path), "sdp-total-epsilon-cap": 10.0}, {}
    if of == "constructor":
        node_config = {}
        options["ledger"] = DeviceLedger(path, total_epsilon_cap=10.0)
    elif of == "both":
        options["ledger"] = DeviceLedger(path, total_epsilon_cap=1000.0)
    replies = []
    for number in range(2):
        replies.append(Device(node_config, **options)(number=number))
        assert spent(replies[-1]) == event_of().epsilon
    for number in range(2, 4):
        device = Device(node_config, **options)
        reply = device(number=number)
        assert_refused(reply, "the total epsilon cap of this device is reached")
        assert "'default'" not in reply.error.reason  # what it is called, and how much is spent
        assert str(path.parent) not in reply.error.reason
        assert device.calls == 0
    ledger = DeviceLedger(path)
    assert [(entry.request.message_id, entry.event) for entry in ledger.entries()] == [
        ("message-0", event_of()),
        ("message-1", event_of()),
    ]
    assert ledger.total_epsilon("default") <= 10.0
    again = Device(node_config, **options)
    assert content(again(number=1)) == content(replies[1])  # it has been paid for
    assert again.calls == 0
    assert spent(again(asks(1.0), number=5)) <= 1.0  # what is left may be spent
    assert len(ledger.entries()) == 3


def test_budgets_are_kept_by_data_set(path, caplog):
    DeviceLedger.create(path)
    common = {"sdp-ledger": str(path), "sdp-total-epsilon-cap": 5.0}
    for partition in (1, 2):
        device = Device(common | {"partition-id": partition})
        assert device(number=10 * partition).has_content()
        assert_refused(device(number=10 * partition + 1), "the total epsilon cap")
        assert f"data set 'partition-{partition}'" in caplog.text
    assert Device(common | {"partition-id": 1, "sdp-data-set": "ward"})(number=30).has_content()
    assert DeviceLedger(path).data_sets() == ["partition-1", "partition-2", "ward"]


def test_a_budget_that_is_spent_while_the_app_trains_is_not_exceeded(path):
    """Another process on the same data was faster: what was trained does not leave."""
    DeviceLedger.create(path)
    node_config = {"sdp-ledger": str(path), "sdp-total-epsilon-cap": 5.0}
    other = Request(data_set="default", run_id="2", message_id="message-9")

    def train(asked, _context):
        DeviceLedger(path).charge(other, event_of(), [b"reply"], max_norm=2.0, dim=8)
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    app = client_app(SeparatedDPMod(), train)
    assert_withheld(app(message({"arrays": model()}), context(asks(), node_config)))
    assert [entry.request for entry in DeviceLedger(path).entries()] == [other]


def test_a_message_that_is_answered_while_the_app_trains_gets_that_answer(path):
    """Delivered twice at once: the second to be charged takes the reply of the first."""
    device = Device({"sdp-ledger": str(path)})
    earlier = []

    def train(asked, _context):
        with ThreadPoolExecutor(1) as pool:  # where no other mod waits for its app
            earlier.append(pool.submit(device).result())
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    app = client_app(SeparatedDPMod(), train)
    asked = message({"arrays": model()}, message_id="message-0")
    reply = app(asked, context(asks(), device.node_config))
    assert content(reply) == content(earlier[0])
    assert len(DeviceLedger(path).entries()) == 1


# ------------------------------------------------------------------ the ledger
def test_the_nodes_ledger_wins_over_that_of_the_app(path, tmp_path):
    other = tmp_path / "app.db"
    device = Device({"sdp-ledger": str(path)}, ledger=DeviceLedger(other))
    assert device().has_content()
    assert len(DeviceLedger(path).entries()) == 1
    assert not other.exists()


def test_the_ledger_of_the_app_is_used_where_the_node_has_none(path):
    assert Device(ledger=DeviceLedger(path))().has_content()
    (entry,) = DeviceLedger(path).entries()
    assert entry.request == Request(data_set="default", run_id="1", message_id="message-0")


def test_other_things_than_a_ledger_are_refused_at_once(path):
    with pytest.raises(ValueError, match="ledger must be a DeviceLedger; got "):
        SeparatedDPMod(ledger=str(path))


def test_the_same_message_gets_the_same_bytes_for_one_charge(path):
    """Twice from one device and once after a restart; the app is asked once."""
    node_config = {"sdp-ledger": str(path)}
    device, restarted = Device(node_config), Device(node_config)
    replies = [device(), device(), restarted()]
    assert content(replies[0]) == content(replies[1]) == content(replies[2])
    assert len(DeviceLedger(path).entries()) == 1
    assert (device.calls, restarted.calls) == (1, 0)
    for reply in replies:
        assert reply.metadata.reply_to_message_id == "message-0"
    assert content(device(number=1)) != content(replies[0])
    assert len(DeviceLedger(path).entries()) == 2


def test_without_a_ledger_devices_with_equal_ids_do_not_see_each_others_replies():
    """Their contexts tell them apart, as those of virtual clients in one process are."""
    device = Device()
    assert content(device()) != content(device())
    assert device.calls == 2


def test_an_older_message_is_not_answered_again(path, caplog):
    device = Device({"sdp-ledger": str(path)})
    for number in range(2):
        assert device(number=number).has_content()
    assert_refused(device(number=0), "answered before, and its reply is no longer kept")
    assert "message-0 was answered before" in caplog.text
    assert device.calls == 2
    assert len(DeviceLedger(path).entries()) == 2


def test_a_message_without_an_id_cannot_be_charged(path):
    device = Device({"sdp-ledger": str(path)})
    assert_refused(device(message_id=""), "the message has no id")
    assert device.calls == 0
    assert not path.exists()
    assert Device()(message_id="").has_content()


def missing_folder(path):
    return path.parent / "missing-folder-4711" / "ledger.db"


def not_a_ledger(path):
    path = path.with_name("text-4711")
    path.write_text("a text that is longer than the header of a database file: " * 4)
    return path


def folder(path):
    path = path.with_name("folder-4711")
    path.mkdir()
    return path


def empty(path):
    path = path.with_name("empty-4711")
    path.touch()
    return path


def one_byte(path):
    path = path.with_name("byte-4711")
    path.write_bytes(b"S")
    return path


def no_room_for_a_journal(path):
    """Nor may root write the file then."""
    path = path.with_name("journal-4711")
    DeviceLedger.create(path)
    path.with_name(f"{path.name}-journal").mkdir()
    return path


def no_room_for_a_reply(path):
    """Not even root can make files there."""
    return Path("/proc/self/4711")


def missing(path):
    return path.with_name("missing-4711")


@pytest.mark.parametrize("cap", [None, 100.0])
@pytest.mark.parametrize(
    "make",
    [
        missing_folder,
        not_a_ledger,
        folder,
        empty,
        one_byte,
        no_room_for_a_journal,
        no_room_for_a_reply,
        missing,
    ],
)
def test_a_ledger_that_cannot_be_used_is_named_in_the_log_alone(path, make, cap, caplog):
    """It is found before anything is trained."""
    wrong = make(path)
    device = Device({"sdp-ledger": str(wrong)} | ({"sdp-total-epsilon-cap": cap} if cap else {}))
    with caplog.at_level(logging.ERROR):
        reply = device()
    if make is missing and cap is None:
        assert reply.has_content()
        return
    assert_refused(reply, "the ledger of this device cannot be used, see its log")
    assert "4711" not in repr(vars(reply.metadata)) + reply.error.reason
    assert str(wrong) in caplog.text
    assert {entry.name for entry in caplog.records} == {"flwr_sdp.device"}
    assert device.calls == 0


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system reserves nothing")
def test_room_for_the_reply_is_taken_before_the_app_is_asked(path):
    """All of it: the reply takes no more, whatever the names and the number of arrays."""
    arrays = {f"层\n{'x' * number}": np.zeros((number, 3)) for number in range(300)}
    held = []

    def train(asked, _context):
        held.extend(each.stat().st_size for each in path.parent.iterdir())
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    app = client_app(SeparatedDPMod(), train)
    node = context(asks(1e3), {"sdp-ledger": str(path)})
    assert app(message({"arrays": record(arrays)}), node).has_content()
    (stored,) = [each.stat().st_size for each in path.parent.iterdir() if each != path]
    assert 8 * sum(array.size for array in arrays.values()) < stored < held[0] < 1.1 * stored


def test_a_reply_is_forgotten_when_its_message_can_no_longer_come(path, monkeypatch):
    """Flower delivers a message for its time to live."""
    device, now = Device({"sdp-ledger": str(path)}), time.time()
    first = device()
    life = message({"arrays": model()}).metadata.ttl
    monkeypatch.setattr("flwr_sdp.clients.ledger.time.time", lambda: now + life - 60.0)
    assert Device(device.node_config | {"sdp-data-set": "other"})(number=1).has_content()
    assert content(device()) == content(first)
    monkeypatch.setattr("flwr_sdp.clients.ledger.time.time", lambda: now + life + 60.0)
    assert Device(device.node_config | {"sdp-data-set": "other"})(number=2).has_content()
    assert_refused(device(), "answered before, and its reply is no longer kept")
    assert len(DeviceLedger(path).entries()) == 3
    assert device.calls == 1


def test_an_app_that_fails_is_not_charged(path):
    def fails(_asked, _context):
        raise RuntimeError("the disk is full")

    app = client_app(SeparatedDPMod(), fails)
    asked = message({"arrays": model()})
    assert_withheld(app(asked, context(asks(), {"sdp-ledger": str(path)})))
    assert list(path.parent.iterdir()) == []  # nor is any room
    assert Device({"sdp-ledger": str(path)})(message_id="message-1").has_content()


def test_a_report_that_cannot_be_charged_does_not_leave(path, monkeypatch):
    def fails(*_args, **_options):
        raise OSError("no space left")

    monkeypatch.setattr(DeviceLedger, "charge", fails)
    device = Device({"sdp-ledger": str(path)})
    assert_withheld(device())
    assert device.calls == 1


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_other_messages_are_not_charged_and_need_no_caps(path, message_type):
    node_config = {
        "sdp-ledger": str(path),
        "sdp-total-epsilon-cap": 1e-3,
        "sdp-epsilon-cap": 1e-3,
    }

    def measures(asked, _context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=asked)

    app = client_app(SeparatedDPMod(released_metrics="loss"), measures)
    for given in (node_config, {}):
        for _ in range(2):
            reply = app(message({}, message_type), context({}, given))
            assert dict(reply.content["metrics"]) == {"num-examples": 1, "loss": 0.5}
    assert not path.exists()


def test_released_metrics_are_sent_again_as_they_were(path):
    """They are kept with the reply: a second training would give another loss."""
    losses = iter([0.5, 0.25])

    def train(asked, _context):
        moved = shifted(asked.content["arrays"], 0.1)
        return reply_with(asked, moved, loss=next(losses), age=47.1100815)

    app = client_app(SeparatedDPMod(released_metrics="loss"), train)
    node = context(asks(), {"sdp-ledger": str(path)})
    replies = [app(message({"arrays": model()}), node) for _ in range(2)]
    assert content(replies[0]) == content(replies[1])
    assert replies[1].content["metrics"]["loss"] == 0.5
    stored = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"0.5" in stored
    assert b"47.1100815" not in stored


def test_a_legacy_client_gets_the_same_bytes_too(path):
    """What a NumPyClient is sent and sends: records by number, arrays without dtype and shape."""
    numbers = [np.zeros((2, 3), np.float32), np.ones(2, np.float32)]
    parameters = ndarrays_to_parameters(numbers)
    calls = []

    def fit(asked, _context):
        calls.append(asked)
        moved = ndarrays_to_parameters([array + np.float32(0.1) for array in numbers])
        result = FitRes(Status(Code.OK, ""), moved, 32, {"loss": 0.5})
        return Message(fitres_to_recorddict(result, keep_input=True), reply_to=asked)

    app = client_app(SeparatedDPMod(), fit)
    records = fitins_to_recorddict(FitIns(parameters, {"round": 1}), keep_input=True)
    node = context(asks(), {"sdp-ledger": str(path)})
    replies = [app(message(records), node) for _ in range(3)]
    assert "fitres.parameters" in replies[0].content
    assert isinstance(replies[0].content["fitres.status"], ConfigRecord)
    assert len({repr(content(reply)) for reply in replies}) == 1
    assert len(calls) == 1
    (entry,) = DeviceLedger(path).entries()
    assert entry.dim == 8


@pytest.mark.parametrize("name", ["ledger.db", "./ledger.db", "state/ledger.db"])
def test_a_ledger_that_depends_on_the_working_directory_is_refused(name):
    with pytest.raises(ValueError, match="sdp-ledger must be a path from the root"):
        DeviceCaps.of({"sdp-ledger": name})


def test_the_apps_cap_holds_in_the_nodes_ledger(path, tmp_path):
    """The node moves the ledger; what the app allows in all stays."""
    DeviceLedger.create(path)
    options = {"ledger": DeviceLedger(tmp_path / "other.db", total_epsilon_cap=5.0)}
    device = Device({"sdp-ledger": str(path)}, **options)
    assert device(number=1).has_content()
    assert_refused(device(number=2), "the total epsilon cap")
    assert len(DeviceLedger(path).entries()) == 1
    assert not (tmp_path / "other.db").exists()
