"""What a device allows, whatever a server or an app asks: caps and the ledger, through the mod."""

import logging
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, fitres_to_recorddict

from flwr_sdp import SeparatedBudget, SeparatedMechanism
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
        message_id = options.get("message_id", f"message-{number}")
        asked = message({"arrays": model()}, message_type, message_id=message_id)
        config = asks() if run_config is None else run_config
        return self.app(asked, context(config, self.node_config))


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
    with pytest.raises(ValueError, match=rf"{key} must be a text that is not empty; got {value!r}"):
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


def test_other_keys_are_of_no_concern():
    node_config = {"epsilon-cap": "none", "xsdp-cap": 0, "data-path": "/data"}
    assert DeviceCaps.of(node_config) == DeviceCaps.of({})


@pytest.mark.parametrize("key", ["sdp_epsilon_cap", "SDP-epsilon-cap", "Sdp_ledger", "SDP-CAP"])
def test_other_spellings_of_our_keys_are_refused(key):
    with pytest.raises(ValueError, match=f"{key} is no setting of a device"):
        DeviceCaps.of({key: 5.0})


@pytest.mark.parametrize(
    ("epsilon", "max_norm", "key"),
    [
        (10.0, 2.0, None),
        (math.nextafter(10.0, 11.0), 2.0, "sdp-epsilon-cap"),
        (1000.0, 2.0, "sdp-epsilon-cap"),
        (10.0, math.nextafter(2.0, 3.0), "sdp-max-norm-cap"),
        (5.0, math.nan, "sdp-max-norm-cap"),
    ],
)
def test_a_cap_is_the_most_that_is_allowed(epsilon, max_norm, key):
    caps = DeviceCaps.of({"sdp-epsilon-cap": 10, "sdp-max-norm-cap": 2})
    budget = SeparatedBudget(epsilon_direction=epsilon - 2.0, epsilon_magnitude=2.0)
    if key is None:
        caps.check(budget, max_norm)
        return
    with pytest.raises(ValueError, match=f"{key} of this device is .*; a report was asked at"):
        caps.check(budget, max_norm)


# ------------------------------------------------------------------ whoever asks for more
def test_a_server_that_asks_for_more_is_refused_and_the_app_is_not_asked(path):
    device = Device({"sdp-epsilon-cap": 10.0, "sdp-ledger": str(path)})
    assert_refused(device(asks(1000.0)), "sdp-epsilon-cap of this device is 10", "asked at 1000")
    assert device.calls == 0
    assert not path.exists() or DeviceLedger(path).entries() == []


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
def test_a_total_cap_needs_a_ledger():
    device = Device({"sdp-total-epsilon-cap": 10.0})
    assert_refused(device(), "sdp-total-epsilon-cap needs sdp-ledger")
    assert device.calls == 0


@pytest.mark.parametrize("of", ["node config", "constructor", "both"])
def test_a_device_stops_for_good_when_its_budget_is_spent(path, of):
    """At 4 a report under a cap of 10 there are two, whichever of the ways the cap is set."""
    node_config, options = {"sdp-ledger": str(path), "sdp-total-epsilon-cap": 10.0}, {}
    if of == "constructor":
        node_config = {}
        options["ledger"] = DeviceLedger(path, total_epsilon_cap=10.0)
    elif of == "both":  # the ledger of the app, the cap of the device
        del node_config["sdp-ledger"]
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


def test_without_a_ledger_the_same_message_gets_two_reports():
    device = Device()
    assert content(device()) != content(device())
    assert device.calls == 2


def test_an_older_message_is_not_answered_again(path, caplog):
    device = Device({"sdp-ledger": str(path)})
    for number in range(2):
        assert device(number=number).has_content()
    assert_withheld(device(number=0))
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


@pytest.mark.parametrize("make", [missing_folder, not_a_ledger, folder])
def test_a_ledger_that_cannot_be_used_is_named_in_the_log_alone(path, make, caplog):
    wrong = make(path)
    device = Device({"sdp-ledger": str(wrong)})
    with caplog.at_level(logging.ERROR):
        reply = device()
    assert_withheld(reply)
    assert "4711" not in repr(vars(reply.metadata)) + reply.error.reason
    assert str(wrong) in caplog.text
    assert {entry.name for entry in caplog.records} == {"flwr_sdp.device"}
    assert device.calls == 0


def test_an_app_that_fails_is_not_charged(path):
    def fails(_asked, _context):
        raise RuntimeError("the disk is full")

    app = client_app(SeparatedDPMod(), fails)
    asked = message({"arrays": model()})
    assert_withheld(app(asked, context(asks(), {"sdp-ledger": str(path)})))
    assert DeviceLedger(path).entries() == []
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
    assert b"0.5" in path.read_bytes()
    assert b"47.1100815" not in path.read_bytes()


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
    options = {"ledger": DeviceLedger(tmp_path / "other.db", total_epsilon_cap=5.0)}
    device = Device({"sdp-ledger": str(path)}, **options)
    assert device(number=1).has_content()
    assert_refused(device(number=2), "the total epsilon cap")
    assert len(DeviceLedger(path).entries()) == 1
    assert not (tmp_path / "other.db").exists()
