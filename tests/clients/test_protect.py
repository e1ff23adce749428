"""protect(): an app of which nothing is reached but through the mod."""

import inspect
import pickle
import sys
import traceback
from collections import Counter

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flwr_sdp import SeparatedBudget, seeded_generator
from flwr_sdp.clients import DeviceLedger, SeparatedDPMod, protect
from tests.adversaries import (
    APPS,
    OTHER_APPS,
    SECRET,
    SEEDED,
    SETTINGS,
    WITHHELD,
    assert_no_secret,
    assert_withheld,
)
from tests.messages import context, everything, record, reply_with, request, shifted

BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
MAX_NORM = 2.0


def mod(seed=None, **options):
    if seed is not None:
        options["rng"] = lambda: seeded_generator(seed)
    return SeparatedDPMod(BUDGET, MAX_NORM, **options)


def model():
    return record({"w": np.linspace(-1.0, 1.0, 6), "steps": np.array([1, 2])})


def train(message, _context):
    """Train, and tell everything."""
    trained = shifted(message.content["arrays"], 0.125)
    reply = reply_with(message, trained, loss=SECRET.number)
    reply.content["notes"] = ConfigRecord({"patient": SECRET.text})
    return reply


def report(message, _context):
    content = {"metrics": MetricRecord({"num-examples": 4711, "accuracy": SECRET.number})}
    content["notes"] = ConfigRecord({"patient": SECRET.text})
    return Message(RecordDict(content), reply_to=message)


def app_with(**handlers):
    """Return an app with the functions of these message types."""
    app = ClientApp()
    for category, handler in handlers.items():
        getattr(app, category)()(handler)
    return app


def ask(app, message_type="train", *, node_config=None, message_id="message-1"):
    message = request(model(), message_type)
    message.metadata.__dict__["_message_id"] = message_id
    device = context()
    device.node_config.update(node_config or {})
    return app(message=message, context=device)  # by name, as Flower does


def assert_private(reply, marks=SETTINGS):
    """A reply to a train message: the marks, and a model of which only the floats have moved."""
    assert reply.has_content(), reply.error
    assert set(reply.content) == {"arrays", "metrics"}
    assert set(reply.content["metrics"]) == marks
    arrays = reply.content["arrays"]
    assert list(arrays) == ["w", "steps"]
    assert np.all(arrays["w"].numpy() != model()["w"].numpy())
    assert np.all(arrays["w"].numpy() != model()["w"].numpy() + 0.125)
    assert arrays["steps"].data == model()["steps"].data
    assert_no_secret(reply)


def assert_says_nothing(reply):
    """A reply to any other message."""
    assert reply.has_content(), reply.error
    assert {name: dict(rec) for name, rec in reply.content.items()} == {
        "metrics": {"num-examples": 1}
    }
    assert_no_secret(reply)


# ------------------------------------------------------------------ what it takes
@pytest.mark.parametrize("app", [None, "app", lambda message, context: message, ClientApp])
def test_only_apps_can_be_protected(app):
    with pytest.raises(ValueError, match="app must be a flwr ClientApp; got"):
        protect(app, mod())


def test_app_is_protected_once():
    protected = protect(ClientApp(), mod())
    with pytest.raises(ValueError, match="must not be protected already"):
        protect(protected, mod())


def test_either_a_mod_or_its_settings():
    with pytest.raises(ValueError, match=r"mod must be left out when .*got \['max_norm', 'rule'\]"):
        protect(ClientApp(), mod(), rule="tight", max_norm=1.0)
    with pytest.raises(ValueError, match="mod must be a SeparatedDPMod; got 'mod'"):
        protect(ClientApp(), "mod")
    with pytest.raises(ValueError, match="max_norm must be"):
        protect(ClientApp(), budget=BUDGET, max_norm=-1.0)
    with pytest.raises(TypeError, match="clip"):
        protect(ClientApp(), clip=1.0)


def test_settings_make_the_mod():
    stream = {"rng": lambda: seeded_generator(0)}
    by_settings = protect(app_with(train=train), budget=BUDGET, max_norm=MAX_NORM, **stream)
    by_mod = protect(app_with(train=train), mod(seed=0))
    first, second = ask(by_settings), ask(by_mod)
    assert_private(first, SEEDED)
    assert first.content["arrays"]["w"].data == second.content["arrays"]["w"].data


def test_settings_may_come_from_the_run_config():
    app = protect(app_with(train=train))
    assert "sdp-epsilon-direction is missing" in ask(app).error.reason
    config = {"sdp-epsilon-direction": 8.0, "sdp-epsilon-magnitude": 8.0, "sdp-max-norm": 2.0}
    assert_private(app(request(model()), context(config)))


def test_app_itself_stays_as_it_is():
    app = app_with(train=train)
    protect(app, mod())
    reply = ask(app)
    assert set(reply.content) == {"arrays", "metrics", "notes"}
    with pytest.raises(AssertionError, match="secrets leave"):
        assert_no_secret(reply)


# ------------------------------------------------------------------ functions of an app
@pytest.mark.parametrize("action", [None, "again"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("category", "handler", "check"),
    [
        ("train", train, assert_private),
        ("evaluate", report, assert_says_nothing),
        ("query", report, assert_says_nothing),
    ],
)
def test_functions_are_behind_the_mod(category, handler, check, when, action):
    app = ClientApp()
    protected = protect(app, mod())
    register = getattr(app if when == "before" else protected, category)
    assert (register(action) if action else register())(handler) is handler
    message_type = f"{category}.{action}" if action else category
    check(ask(protected, message_type))
    with pytest.raises(AssertionError, match="secrets leave"):
        assert_no_secret(ask(app, message_type))


@pytest.mark.parametrize("name", ["train", "evaluate", "query", "lifespan", "__call__"])
def test_methods_are_called_as_flowers_are(name):
    """Parameters of the same names, kinds and defaults."""

    def parameters(cls):
        return [
            (p.name, p.kind, p.default)
            for p in inspect.signature(getattr(cls, name)).parameters.values()
        ]

    assert parameters(type(protect(ClientApp(), mod()))) == parameters(ClientApp)


def test_everything_public_of_an_app_is_covered():
    """A method that Flower adds one day must be led to the inner app, too."""
    public = {name for name in vars(ClientApp) if not name.startswith("_")}
    assert public == {"train", "evaluate", "query", "lifespan"}
    assert public <= set(vars(type(protect(ClientApp(), mod()))))


def test_rules_of_registration_are_flowers():
    protected = protect(ClientApp(), mod())
    protected.train()(train)
    with pytest.raises(ValueError, match="already registered"):
        protected.train()(train)
    with pytest.raises(ValueError, match="naming rules"):
        protected.query("not a name")(report)


@pytest.mark.parametrize(
    "message_type",
    [
        *("train", "train.other", "evaluate", "evaluate.other", "query", "query.other"),
        *("get_parameters", "get_properties", "reconnect", "system"),
    ],
)
def test_messages_without_a_function_are_withheld(message_type):
    """Flower's own error names what the app has not."""
    app = ClientApp()
    app.train("one")(train)
    with pytest.raises(ValueError, match=r"No \w+ function|Invalid message type"):
        ask(app, message_type)
    assert_withheld(ask(protect(app, mod()), message_type))


def adds_secrets(message, context, call_next):
    reply = call_next(message, context)
    reply.content["more"] = MetricRecord({SECRET.text: SECRET.number})
    reply.content["metrics"]["num-examples"] = 4711
    reply.metadata.group_id = SECRET.text
    return reply


def raises_secrets(message, context, call_next):
    call_next(message, context)
    raise ValueError(SECRET.text)


@pytest.mark.parametrize("when", ["before", "after", "app"])
def test_other_mods_are_behind_the_mod(when):
    for other in (adds_secrets, raises_secrets):
        app = ClientApp(mods=[other] if when == "app" else None)
        protected = protect(app, mod())
        register = app if when == "before" else protected
        register.train(mods=None if when == "app" else [other])(train)
        reply = ask(protected)
        if other is adds_secrets:
            assert_private(reply)
        else:
            assert_withheld(reply)


def test_mod_that_is_listed_after_others_does_not_see_what_they_add():
    """What protect() is for: in an app's own list, the first mod has the last word."""
    app = ClientApp(mods=[adds_secrets, mod()])
    app.train()(train)
    with pytest.raises(AssertionError, match="secrets leave"):
        assert_no_secret(ask(app))


@pytest.mark.parametrize("attach", ["app", "function"])
def test_second_mod_inside_is_refused(attach, caplog):
    app = ClientApp(mods=[mod()] if attach == "app" else None)
    app.train(mods=[mod()] if attach == "function" else None)(train)
    app.evaluate()(report)
    assert_withheld(ask(protect(app, mod())))
    assert "two SeparatedDPMods are attached" in caplog.text
    assert_says_nothing(ask(protect(app, mod()), "evaluate"))
    assert_private(ask(app))


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_arrays_leave_after_training_only(message_type, caplog):
    protected = protect(app_with(evaluate=train, query=train), mod(released_metrics="*"))
    assert_withheld(ask(protected, message_type))
    assert "only a reply to a train message may carry arrays" in caplog.text


def test_released_metrics_leave():
    protected = protect(app_with(train=train, query=report), mod(released_metrics="accuracy"))
    reply = ask(protected, "query")
    assert dict(reply.content["metrics"]) == {"num-examples": 1, "accuracy": SECRET.number}
    assert set(ask(protected).content["metrics"]) == SETTINGS


def test_legacy_app():
    class Numbers(NumPyClient):
        def get_parameters(self, config):
            return [np.full(3, SECRET.number)]

        def get_properties(self, config):
            raise ValueError(SECRET.text)

        def fit(self, parameters, config):
            return [parameters[0] + 0.125, parameters[1] + 4711], 4711, {"note": SECRET.text}

    protected = protect(ClientApp(client_fn=lambda context: Numbers()), mod())
    arrays = ArrayRecord(
        {"0": Array("", (), "numpy.ndarray", model()["w"].data), "1": model()["steps"]}
    )
    content = RecordDict({"fitins.parameters": arrays, "fitins.config": ConfigRecord()})
    reply = protected(Message(content, 1, "train"), context())
    assert_no_secret(reply)
    got = reply.content["fitres.parameters"]
    assert np.all(got["0"].numpy() != model()["w"].numpy())
    assert np.all(got["0"].numpy() != model()["w"].numpy() + 0.125)
    assert got["1"].data == model()["steps"].data
    for name in ("parameters", "properties"):
        content = RecordDict({f"get{name}ins.config": ConfigRecord()})
        asked = Message(content, 1, f"get_{name}")
        assert_withheld(protected(asked, context()))
    with pytest.raises(ValueError, match="client_fn"):
        protected.train()(train)


# ------------------------------------------------------------------ the lifespan function
def fails_before(_context):
    raise ValueError(SECRET.text)
    yield


def fails_after(_context):
    yield
    raise ValueError(SECRET.text)


def yields_twice(_context):
    yield
    yield


def never_yields(_context):
    yield from ()


def is_no_generator(_context):
    return SECRET.text


def exits(_context):
    yield
    sys.exit(SECRET.text)


LIFESPANS = {
    "fails before": (fails_before, ValueError, SECRET.text),
    "fails after": (fails_after, ValueError, SECRET.text),
    "yields twice": (yields_twice, RuntimeError, "should only yield once"),
    "never yields": (never_yields, RuntimeError, "should yield at least once"),
    "is no generator": (is_no_generator, RuntimeError, "should yield at least once"),
    "exits": (exits, SystemExit, SECRET.text),
}


@pytest.mark.parametrize("message_type", ["train", "evaluate", "query"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", list(LIFESPANS))
def test_failing_lifespan_is_withheld(name, when, message_type):
    lifespan, _, _ = LIFESPANS[name]
    app = app_with(train=train, evaluate=report, query=report)
    protected = protect(app, mod())
    assert (app if when == "before" else protected).lifespan()(lifespan) is lifespan
    reply = ask(protected, message_type)
    assert_withheld(reply)
    assert_no_secret(reply)


@pytest.mark.parametrize("name", list(LIFESPANS))
def test_failing_lifespan_speaks_to_the_server_without_protect(name):
    """The mod is inside of it, and Flower sends the text of what is raised."""
    lifespan, error, text = LIFESPANS[name]
    app = ClientApp(mods=[mod()])
    app.train()(train)
    app.lifespan()(lifespan)
    with pytest.raises(error, match=text):
        ask(app)


def test_good_lifespan_runs_around_the_function():
    seen = []
    protected = protect(ClientApp(), mod())

    @protected.lifespan()
    def lifespan(context):
        seen.append(f"enter {context.node_id}")
        yield
        seen.append("leave")

    @protected.train()
    def noted(message, context):
        seen.append("train")
        return train(message, context)

    assert_private(ask(protected))
    assert seen == ["enter 11", "train", "leave"]


def test_report_is_not_charged_when_the_lifespan_fails(tmp_path):
    node_config = {"sdp-ledger": str(tmp_path / "ledger")}
    protected = protect(app_with(train=train), mod())
    protected.lifespan()(fails_after)
    assert_withheld(ask(protected, node_config=node_config))
    assert DeviceLedger(tmp_path / "ledger").entries() == []


# ------------------------------------------------------------------ caps and ledger
def test_caps_hold():
    calls = []
    protected = protect(app_with(train=lambda *args: calls.append(args)), mod())
    for cap in ({"sdp-epsilon-cap": 15.0}, {"sdp-max-norm-cap": 1.5}):
        reply = ask(protected, node_config=cap)
        assert f"{next(iter(cap))} of this device is" in reply.error.reason
    assert calls == []
    loose = {"sdp-epsilon-cap": 16.0, "sdp-max-norm-cap": 2.0}
    assert_private(ask(protect(app_with(train=train), mod()), node_config=loose))


@pytest.mark.parametrize("where", ["node config", "mod"])
def test_ledger_charges_and_remembers(tmp_path, where):
    path = tmp_path / "ledger"
    DeviceLedger.create(path)
    node_config = {"sdp-ledger": str(path), "sdp-total-epsilon-cap": 40.0}
    ledger = None
    if where == "mod":
        ledger, node_config = DeviceLedger(path, total_epsilon_cap=40.0), {}
    protected = protect(app_with(train=train, query=report), mod(ledger=ledger))

    def reply(number):
        return ask(protected, node_config=node_config, message_id=f"message-{number}")

    first, again, second = reply(1), reply(1), reply(2)
    for each in (first, again, second):
        assert_private(each)
    data = [each.content["arrays"]["w"].data for each in (first, again, second)]
    assert data[0] == data[1] != data[2]
    assert "the total epsilon cap of this device is reached" in reply(3).error.reason
    assert_says_nothing(ask(protected, "query", node_config=node_config))
    entries = DeviceLedger(path).entries()
    assert [entry.request.message_id for entry in entries] == ["message-1", "message-2"]
    assert sum(entry.event.epsilon for entry in entries) <= 40.0


# ------------------------------------------------------------------ Flower takes it
def test_flower_loads_a_protected_app(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    name = "protected_app_of_the_tests"
    (tmp_path / f"{name}.py").write_text(
        "from flwr.app import Message\n"
        "from flwr.clientapp import ClientApp\n"
        "from flwr_sdp import SeparatedBudget\n"
        "from flwr_sdp.clients import protect\n"
        "inner = ClientApp()\n"
        "@inner.train()\n"
        "def train(message, context):\n"
        "    return Message(message.content, reply_to=message)\n"
        "budget = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)\n"
        "app = protect(inner, budget=budget, max_norm=2.0)\n"
    )
    try:
        app = get_load_client_app_fn(f"{name}:app", str(tmp_path), multi_app=False)("", "", "")
    finally:
        sys.modules.pop(name, None)
    assert isinstance(app, ClientApp)
    assert_private(ask(app))


# ------------------------------------------------------------------ apps that tell everything
def everywhere(handler, *, when="before"):
    """Return an app that answers everything with `handler`, protected before it is registered."""
    app = ClientApp()
    protected = protect(app, mod(seed=0))
    target = app if when == "before" else protected
    for register in (target.train, target.evaluate, target.query):
        register()(handler)
    target.train("twice")(handler)
    return protected, app


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", list(APPS))
def test_no_secret_leaves_in_training(name, when):
    handler, is_answered = APPS[name]
    protected, _ = everywhere(handler, when=when)
    reply = protected(request(SECRET.received()), context())
    assert_no_secret(reply)
    if not is_answered:
        assert_withheld(reply)
        return
    arrays, received = reply.content["arrays"], SECRET.received()
    assert set(reply.content) == {"arrays", "metrics"}
    assert set(reply.content["metrics"]) == SEEDED
    assert [(a.dtype, a.shape) for a in arrays.values()] == [
        (a.dtype, a.shape) for a in received.values()
    ]
    for key, array in arrays.items():
        assert (array.data == received[key].data) == (key in ("bn.running_var", "steps"))


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
@pytest.mark.parametrize("name", list(OTHER_APPS))
def test_no_secret_leaves_in_evaluation(name, message_type):
    handler, is_answered = OTHER_APPS[name]
    protected, _ = everywhere(handler)
    reply = protected(request(SECRET.received(), message_type), context())
    assert_no_secret(reply)
    if is_answered:
        assert_says_nothing(protected(request(SECRET.received(), message_type), context()))
    else:
        assert_withheld(reply)


# These fail in ways in which there is nothing to be seen.
SILENT = {
    *("empty ArrayRecord", "an empty ArrayRecord", "no record", "nothing", "None"),
    *("recurses without end", "raises what cannot be printed"),
}


def told_without_mod(app, message):
    """Return all that comes out of an app, as one text of bytes."""
    try:
        reply = app(message, context())
    except BaseException as error:  # of every kind, with its causes and notes
        return "".join(traceback.format_exception(error)).encode()
    if isinstance(reply, Message):
        reply = (reply.__dict__, reply.metadata.__dict__)
    return pickle.dumps(reply, protocol=4) + repr(reply).encode()


@pytest.mark.parametrize("name", [*APPS, *OTHER_APPS])
def test_the_same_apps_tell_their_secrets_without_protect(name):
    table, kind = (APPS, "train") if name in APPS else (OTHER_APPS, "evaluate")
    _, app = everywhere(table[name][0])
    told = told_without_mod(app, request(SECRET.received(), kind))
    wide = SECRET.trained["weight"]
    needles = [SECRET.text.encode(), b"4711", wide.tobytes(), wide.astype(np.float32).tobytes()]
    assert any(needle in told for needle in needles) == (name not in SILENT)


# ------------------------------------------------------------------ apps that damage their context
def no_node_config(message, context):
    context.node_config = None
    raise ValueError(SECRET.text)


def node_config_that_raises(message, context):
    class Config(dict):
        def get(self, *_args):
            raise ValueError(SECRET.text)

    context.node_config = Config()
    raise RuntimeError("no text")


def no_metadata(message, context):
    del message.__dict__["_metadata"]
    raise ValueError(SECRET.text)


@pytest.mark.parametrize("handler", [no_node_config, node_config_that_raises, no_metadata])
@pytest.mark.parametrize("message_type", ["train", "evaluate"])
def test_damaged_context_is_withheld(handler, message_type):
    protected, _ = everywhere(handler)
    assert_withheld(protected(request(SECRET.received(), message_type), context()))


# ------------------------------------------------------------------ any mixture of these
NEEDLE = bytes(np.random.default_rng(5).integers(0x80, 0x100, 64, dtype=np.uint8))
"""Bytes that are no text and no usual number, so that any six of them are not there by chance."""
HEX = NEEDLE.hex()
DOUBLES = np.frombuffer(NEEDLE, np.float64)

texts = st.sampled_from([HEX, HEX[:24], f"x{HEX[5:40]}"])
record_names = st.one_of(
    st.sampled_from(
        [
            *("arrays", "metrics", "config", "fitres.metrics", "fitres.status"),
            *("fitres.parameters", "fitres.num_examples", "evaluateres.loss"),
        ]
    ),
    texts,
)
keys = st.one_of(st.sampled_from([*sorted(SETTINGS), "loss", "code", "message", "weight"]), texts)
numbers = st.sampled_from([float(DOUBLES[0]), float(DOUBLES[3]), -1, 0, 1, 4711, 2**62, np.nan])
shapes = st.one_of(
    st.sampled_from([(2, 3), (2,), (3,)]),  # those of the received model
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
)
dtypes = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u1", "?", "S7", "U3", "c16", "M8[s]"])


@st.composite
def arrays(draw):
    """An array that is made of the needle, whatever its shape and dtype; or a damaged one."""
    shape, dtype = draw(shapes), np.dtype(draw(dtypes))
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.frombuffer((NEEDLE * (size // len(NEEDLE) + 1))[:size], np.uint8)
    if dtype.kind == "U":  # not every four bytes are a character
        array = Array(np.full(shape, HEX[:3]))
    elif dtype.kind == "?":
        array = Array((data > 0xC0).reshape(shape))
    else:
        array = Array(np.ascontiguousarray(data).view(dtype).reshape(shape))
    damage = draw(st.sampled_from([None] * 6 + ["data", "dtype", "shape", "stype"]))
    if damage is not None:
        value = {"data": NEEDLE, "shape": (len(NEEDLE), NEEDLE[0])}.get(damage, HEX)
        setattr(array, damage, value)
    return array


metric_records = st.dictionaries(
    keys, st.one_of(numbers, st.just([float(x) for x in DOUBLES])), max_size=4
).map(MetricRecord)
config_records = st.dictionaries(
    keys, st.one_of(texts, st.just(NEEDLE), st.just([HEX]), st.just([NEEDLE])), max_size=4
).map(ConfigRecord)
array_names = st.one_of(st.sampled_from(["weight", "bias", "bn.running_var", "steps"]), texts)
array_records = st.dictionaries(array_names, arrays(), max_size=5).map(ArrayRecord)
trained_records = st.fixed_dictionaries(
    {
        "weight": st.just(Array(DOUBLES[:6].reshape(2, 3))),
        "bias": st.just(Array(DOUBLES[6:])),
    },
    optional={"bn.running_var": arrays(), "steps": arrays()},
).map(ArrayRecord)

contents = st.builds(
    lambda records, trained: RecordDict({**records, **trained}),
    st.dictionaries(
        record_names, st.one_of(metric_records, config_records, array_records), max_size=4
    ),
    st.one_of(st.just({}), trained_records.map(lambda r: {"arrays": r})),
)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "group_id": texts,
        "ttl": numbers.map(float),
        "created_at": numbers.map(float),
        "message_type": st.sampled_from([f"train.x{HEX[:20]}", "query", "get_parameters"]),
        "dst_node_id": st.just(2**62),
        "delivered_at": texts,
    },
)
endings = st.sampled_from(["return"] * 7 + ["raise", "exit", "error", "content", "message"])


def behaves(content, on_reply, on_request, ending):
    """Return an app that does all this at once."""

    def handler(message, context):
        for name, value in on_request.items():
            setattr(message.metadata, name, value)
        context.state[HEX] = ConfigRecord({"x": HEX})
        if ending in ("raise", "exit"):
            raise {"raise": ValueError, "exit": SystemExit}[ending](HEX, NEEDLE)
        if ending == "error":
            return Message(Error(4711, HEX), reply_to=message)
        if ending == "content":
            return content
        if ending == "message":  # the one it received
            message.content = content
            return message
        reply = Message(content, reply_to=message)
        for name, value in on_reply.items():
            setattr(reply.metadata, name, value)
        return reply

    return handler


def windows(size=6):
    """Return every piece of the needle, as bytes, as digits and as a number."""
    pieces = {NEEDLE[i : i + size] for i in range(len(NEEDLE) - size + 1)}
    pieces |= {HEX[i : i + 2 * size].encode() for i in range(len(HEX) - 2 * size + 1)}
    return pieces | {repr(float(x)).encode() for x in DOUBLES}


WINDOWS = windows()


def pieces_in(sent):
    return [piece for piece in WINDOWS if piece in sent]


def run_any_mixture(ask_app, *, examples, outcomes):
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        content=contents,
        on_reply=envelopes,
        on_request=envelopes,
        ending=endings,
        message_type=st.sampled_from(["train", "train.twice", "evaluate", "query"]),
    )
    def check(content, on_reply, on_request, ending, message_type):
        handler = behaves(content, on_reply, on_request, ending)
        asked = request(SECRET.received(), message_type)
        plain = Message(RecordDict(), reply_to=asked).metadata
        sent, reply = ask_app(handler, asked)
        assert not pieces_in(sent)
        if reply is None:
            return
        kind = message_type.split(".")[0]
        outcomes[kind, reply.has_content()] += 1
        envelope = reply.metadata
        assert abs(envelope.created_at - plain.created_at) < 60.0
        assert abs(envelope.ttl - plain.ttl) < 60.0
        envelope.created_at, envelope.ttl = plain.created_at, plain.ttl
        assert envelope == plain
        if reply.has_error():
            assert_withheld(reply)
        elif kind == "train":
            received = SECRET.received()
            assert set(reply.content) == {"arrays", "metrics"}
            assert set(reply.content["metrics"]) == SEEDED
            assert reply.content["metrics"]["num-examples"] == 1
            got = reply.content["arrays"]
            assert [(k, a.dtype, a.shape, a.stype) for k, a in got.items()] == [
                (k, a.dtype, a.shape, a.stype) for k, a in received.items()
            ]
            for key in ("steps", "bn.running_var"):
                assert got[key].data == received[key].data
        else:
            assert {name: dict(rec) for name, rec in reply.content.items()} == {
                "metrics": {"num-examples": 1}
            }

    check()


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_no_mixture_of_these_lets_anything_out():
    outcomes = Counter()

    def ask_protected(handler, asked):
        protected, _ = everywhere(handler)
        reply = protected(asked, context())
        return everything(reply), reply

    run_any_mixture(ask_protected, examples=400, outcomes=outcomes)
    # Of each kind of message, some are answered and some are withheld.
    assert set(outcomes) == {(k, a) for k in ("train", "evaluate", "query") for a in (True, False)}
    assert min(outcomes.values()) >= 5, outcomes


def test_the_mixtures_let_much_out_without_protect():
    def ask_bare(handler, asked):
        _, app = everywhere(handler)
        return told_without_mod(app, asked), None

    with pytest.raises(AssertionError):
        run_any_mixture(ask_bare, examples=50, outcomes=Counter())


def test_error_for_the_server_is_a_fixed_text():
    reasons = {
        everywhere(handler)[0](request(SECRET.received()), context()).error.reason
        for handler, is_answered in APPS.values()
        if not is_answered
    }
    assert reasons == {WITHHELD}
