"""assert_only_private(): it takes a good app, and says what is wrong with a bad one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_sdp import KeystreamGenerator, SeparatedBudget, seeded_generator
from flwr_sdp.clients import Selection, SeparatedDPMod, protect
from flwr_sdp.clients.testing import MARKS, assert_only_private, context, message, reply_bytes
from tests.adversaries import SECRET, WITHHELD
from tests.messages import flat, numpy_dict, record

ROOT = Path(__file__).resolve().parents[2]
BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
MAX_NORM = 2.0


def content():
    """Return what a server sends."""
    arrays = {
        "weight": np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4),
        "bias": np.linspace(0.0, 1.0, 4),
        "bn.running_mean": np.array([0.5, 0.25], np.float32),
        "steps": np.array([3, 4], np.int64),
    }
    return {"arrays": record(arrays), "config": ConfigRecord({"lr": 0.1})}


TRAINED = {
    "weight": np.linspace(0.0, 3.0, 12, dtype=np.float32).reshape(3, 4),
    "bias": np.linspace(2.0, 3.0, 4),
    "bn.running_mean": np.array([0.75, 0.375], np.float32),
    "steps": np.array([47110815, 47110816], np.int64),
}


def train(message, _context):
    metrics = MetricRecord({"num-examples": 47110815, "loss": SECRET.number})
    reply = RecordDict({"arrays": record(TRAINED), "metrics": metrics})
    return Message(reply, reply_to=message)


def mod(budget=BUDGET, max_norm=MAX_NORM, **options):
    return SeparatedDPMod(budget, max_norm, **options)


def unprotected():
    app = ClientApp()
    for action in ("default", "again"):
        app.train(action)(train)
    return app


def with_mod(**options):
    app = ClientApp(mods=[mod(**options)])
    for action in ("default", "again"):
        app.train(action)(train)
    return app


def with_protect(**options):
    return protect(unprotected(), mod(**options))


GOOD = pytest.mark.parametrize("app_of", [with_mod, with_protect])
SECRETS = [47110815, SECRET.number, "loss", *TRAINED.values()]


# ------------------------------------------------------------------ good apps
@GOOD
@pytest.mark.parametrize("message_type", ["train", "train.again"])
def test_good_app_passes(app_of, message_type):
    reply = assert_only_private(app_of(), content(), message_type=message_type, secrets=SECRETS)
    assert reply.metadata.message_type == message_type
    assert reply.metadata.reply_to_message_id.startswith("attempt-1-")
    assert set(reply.content["metrics"]) == {"num-examples", *MARKS}
    received = content()["arrays"]
    assert np.all(flat(reply.content["arrays"], ["weight"]) != flat(received, ["weight"]))


@GOOD
def test_configs_reach_the_app(app_of):
    run_config = {"sdp-epsilon-direction": 4.0, "sdp-epsilon-magnitude": 3.0, "sdp-max-norm": 0.5}
    app = app_of(budget=None, max_norm=None)
    reply = assert_only_private(app, content(), run_config=run_config)
    assert reply.content["metrics"]["ldp-max-norm"] == 0.5
    with pytest.raises(AssertionError, match=r"the device refused: .*sdp-epsilon-cap"):
        assert_only_private(
            app, content(), run_config=run_config, node_config={"sdp-epsilon-cap": 1.0}
        )


@GOOD
def test_selection_and_released_metrics_are_of_the_users_choice(app_of):
    options = {"trainable": ("weight", "bn.*"), "excluded": ()}
    app = app_of(**options, released_metrics="loss")
    selection = Selection(**options)
    assert_only_private(app, content(), selection=selection, released_metrics=["loss"])
    with pytest.raises(AssertionError, match=r"metrics leave: \['loss'\]"):
        assert_only_private(app, content(), selection=selection)
    with pytest.raises(AssertionError, match=re.escape("'bn.running_mean' leaves as it was")):
        assert_only_private(app, content(), released_metrics=["loss"])
    narrower = Selection(trainable=("weight",))
    with pytest.raises(AssertionError, match="leaves as it was trained"):
        assert_only_private(app, content(), selection=narrower, released_metrics=["loss"])


def test_tied_arrays_may_move_together():
    def tied():
        arrays = {"first": np.zeros(4), "second": np.zeros(4)}
        return {"arrays": record(arrays)}

    app = ClientApp(mods=[mod(tied={"second": "first"})])
    app.train()(lambda asked, context: Message(asked.content, reply_to=asked))
    assert_only_private(app, tied(), selection=Selection(tied={"second": "first"}))


def test_device_with_a_ledger_passes(tmp_path):
    """Two messages, not one delivered twice: both reports are charged."""
    node_config = {"sdp-ledger": str(tmp_path / "ledger")}
    assert_only_private(with_mod(), content(), node_config=node_config, secrets=SECRETS)


# ------------------------------------------------------------------ bad apps
def behind(change, app=None):
    """Return an app whose replies are changed on their way out."""
    app = with_mod() if app is None else app

    def changed(message, context):
        reply = app(message, context)
        return change(reply) or reply

    return changed


def adds_a_metric(reply):
    reply.content["metrics"]["accuracy"] = 0.75


def adds_a_metric_record(reply):
    reply.content["more"] = MetricRecord({"accuracy": 0.75})


def adds_a_config_record(reply):
    reply.content["more"] = ConfigRecord({"patient": "Jane"})


def adds_arrays(reply):
    reply.content["more"] = record(TRAINED)


def adds_an_array(reply):
    reply.content["arrays"]["more"] = Array(TRAINED["weight"])


def drops_an_array(reply):
    del reply.content["arrays"]["bias"]


def drops_all_arrays(reply):
    del reply.content["arrays"]


def turns_arrays_around(reply):
    arrays = reply.content["arrays"]
    reply.content["arrays"] = ArrayRecord(dict(reversed(arrays.items())))


def sends_the_count(reply):
    reply.content["metrics"]["num-examples"] = 47110815


def sends_the_count_like_a_legacy_client(reply):
    reply.content["more"] = MetricRecord({"num_examples": 47110815})


def sends_a_buffer(name):
    def change(reply):
        reply.content["arrays"][name] = Array(TRAINED[name])

    return change


def sends_trained_weights(reply):
    reply.content["arrays"]["weight"] = Array(TRAINED["weight"])


def sends_not_a_number(reply):
    reply.content["arrays"]["bias"] = Array(np.full(4, np.nan))


def removes(mark):
    def change(reply):
        del reply.content["metrics"][mark]

    return change


def lengthens(reply):
    received = numpy_dict(content()["arrays"])
    for name in ("weight", "bias"):
        private = reply.content["arrays"][name].numpy()
        longer = received[name] + 100.0 * (private - received[name])
        reply.content["arrays"][name] = Array(longer.astype(private.dtype))


def fails(reply):
    return Message(Error(6, "it broke"), reply_to=message(content()))


BAD = {
    "a metric": (adds_a_metric, r"metrics leave: \['accuracy'\]"),
    "a metric record": (adds_a_metric_record, r"metrics leave: \['accuracy'\]"),
    "a config record": (adds_a_config_record, r"metrics leave: \['patient'\]"),
    "more arrays": (adds_arrays, "a reply has one ArrayRecord; this one has 2"),
    "no arrays": (drops_all_arrays, "a reply has one ArrayRecord; this one has 0"),
    "one array more": (adds_an_array, "other arrays than the message"),
    "one array less": (drops_an_array, "other arrays than the message"),
    "another order": (turns_arrays_around, "other arrays than the message"),
    "the example count": (sends_the_count, "the number of examples leaves"),
    "the legacy count": (sends_the_count_like_a_legacy_client, "the number of examples leaves"),
    "a counter as trained": (sends_a_buffer("steps"), "array 'steps' leaves as it was trained"),
    "statistics as trained": (
        sends_a_buffer("bn.running_mean"),
        "array 'bn.running_mean' leaves as it was trained",
    ),
    "weights as trained": (sends_trained_weights, "beyond|the same twice"),
    "not a number": (sends_not_a_number, "the report is nan long"),
    "too long a report": (lengthens, "the report is .* long, beyond"),
    "an error": (fails, "the device refused: it broke"),
    **{
        f"no {mark}": (removes(mark), rf"not made by SeparatedDPMod: \['{mark}'\]")
        for mark in MARKS
    },
}


@GOOD
@pytest.mark.parametrize("name", list(BAD))
def test_changed_replies_are_found(name, app_of):
    change, match = BAD[name]
    with pytest.raises(AssertionError, match=match):
        assert_only_private(behind(change, app_of()), content())


def test_changes_within_the_bounds_pass():
    """What fails above are the changes, not the way they are made."""
    assert_only_private(behind(lambda reply: None), content(), secrets=SECRETS)


def test_app_without_a_mod_is_found():
    with pytest.raises(AssertionError, match=r"was not made by SeparatedDPMod: .*ldp-max-norm"):
        assert_only_private(unprotected(), content())


def test_app_that_only_claims_the_marks_is_found():
    def claims(reply):
        reply.content["metrics"] = MetricRecord(dict.fromkeys(MARKS, 100.0))
        reply.content["arrays"]["steps"] = content()["arrays"]["steps"]
        reply.content["arrays"]["bn.running_mean"] = content()["arrays"]["bn.running_mean"]

    with pytest.raises(AssertionError, match="array 'weight' is not random: it was the same twice"):
        assert_only_private(behind(claims, unprotected()), content())


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_one_array_that_is_not_noised_is_found(name):
    def denoises(reply):
        reply.content["arrays"][name] = content()["arrays"][name]

    with pytest.raises(AssertionError, match=f"array '{name}' is not random"):
        assert_only_private(behind(denoises), content())


@GOOD
def test_fixed_seed_is_found(app_of):
    app = app_of(rng=lambda: seeded_generator(0))
    with pytest.raises(AssertionError, match="the noise is not from the secure generator"):
        assert_only_private(app, content())


@GOOD
def test_fixed_key_is_found(app_of):
    """Whoever says that it is secure."""
    app = app_of(rng=lambda: KeystreamGenerator(bytes(32), secure=True))
    with pytest.raises(AssertionError, match="array 'weight' is not random: it was the same twice"):
        assert_only_private(app, content())


@GOOD
def test_error_reply_is_found(app_of):
    def broken(message, context):
        raise ValueError("the disk is full")

    app = ClientApp(mods=[mod()]) if app_of is with_mod else protect(ClientApp(), mod())
    app.train()(broken)
    with pytest.raises(AssertionError, match=f"the device refused: {WITHHELD}"):
        assert_only_private(app, content())


# ------------------------------------------------------------------ secrets
def in_a_record_name(reply):
    reply.content[SECRET.text] = MetricRecord()


def in_the_envelope(reply):
    reply.metadata.group_id = f"group {SECRET.text}"


def in_a_released_metric(reply):
    reply.content["metrics"]["loss"] = SECRET.number


def in_a_list(reply):
    reply.content["metrics"]["loss"] = [0.5, SECRET.number]


def in_a_text(reply):
    reply.content["more"] = ConfigRecord({"loss": f"{SECRET.number!r} {SECRET.text}"})


def in_bytes(reply):
    reply.content["more"] = ConfigRecord({"loss": TRAINED["bias"].tobytes()})


def in_single_precision_bytes(reply):
    reply.content["more"] = ConfigRecord({"loss": TRAINED["bias"].astype(np.float32).tobytes()})


def in_the_kind_of_an_array(reply):
    reply.content["arrays"]["steps"].dtype = SECRET.text


def in_the_shape_of_an_array(reply):
    reply.content["arrays"]["steps"].shape = (SECRET.count,)


@pytest.mark.parametrize(
    ("change", "secret"),
    [
        (in_a_record_name, SECRET.text),
        (in_a_record_name, SECRET.text.encode()),
        (in_the_envelope, SECRET.text),
        (in_a_released_metric, SECRET.number),
        (in_a_list, SECRET.number),
        (in_a_text, SECRET.number),
        (in_a_text, SECRET.text),
        (in_bytes, TRAINED["bias"]),
        (in_single_precision_bytes, TRAINED["bias"]),
        (in_the_kind_of_an_array, SECRET.text),
        (in_the_shape_of_an_array, SECRET.count),
    ],
)
def test_secrets_are_found(change, secret):
    app = behind(change)
    with pytest.raises(AssertionError, match="a secret leaves the device"):
        assert_only_private(app, content(), released_metrics=["loss"], secrets=["other", secret])
    assert_only_private(behind(lambda reply: None), content(), secrets=["other", secret])


def test_secrets_and_metrics_may_be_given_one_by_one():
    """They are looked for in both replies, and what gives them can be gone through once."""
    replies = []

    def leaks_at_the_second_time(reply):
        replies.append(reply)
        reply.content["metrics"]["loss"] = SECRET.number if len(replies) == 2 else 0.5

    with pytest.raises(AssertionError, match="a secret leaves the device"):
        assert_only_private(
            behind(leaks_at_the_second_time),
            content(),
            released_metrics=iter(["loss"]),
            secrets=iter([SECRET.number]),
        )
    assert len(replies) == 2


def test_bytes_of_a_reply_are_all_that_leaves():
    asked = message(content(), "train.again", message_id="message-7")
    reply = train(asked, context())
    reply.metadata.group_id = "group-8"
    sent = reply_bytes(reply)
    for part in (b"train.again", b"message-7", b"group-8", b"arrays", b"weight", b"num-examples"):
        assert part in sent
    assert all(array.tobytes() in sent for array in TRAINED.values())
    assert b"47110815" in sent
    assert np.float64(SECRET.number).tobytes() in sent
    failed = Message(Error(6, SECRET.text), reply_to=asked)
    assert SECRET.text.encode() in reply_bytes(failed)


# ------------------------------------------------------------------ outside a run
FRESH = """
from flwr.supercore.task_identity import TaskIdentity
try:
    TaskIdentity.task_id
except RuntimeError:
    print("outside a run")
import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import protect
from flwr_sdp.clients.testing import assert_only_private
app = ClientApp()
app.train()(lambda message, context: Message(message.content, reply_to=message))
budget = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
content = {"arrays": ArrayRecord({"w": Array(np.zeros(6))})}
reply = assert_only_private(protect(app, budget=budget, max_norm=2.0), content)
print(*reply.content["arrays"])
try:
    assert_only_private(app, content)
except AssertionError as error:
    print(str(error)[:42])
"""


def test_it_needs_no_fixture():
    output = subprocess.run(
        [sys.executable, "-c", FRESH],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    ).stdout
    assert output.splitlines() == [
        "outside a run",
        "w",
        "the reply was not made by SeparatedDPMod: ",
    ]


# ------------------------------------------------------------------ known gaps
def hides_the_count(reply):
    content = {"more": MetricRecord({"num-examples": 47110815}), **reply.content}
    reply.content = RecordDict(content)


def hides_a_text(reply):
    reply.content["more"] = ConfigRecord({"message": SECRET.text, "code": 47110815})


def renames_a_dtype(reply):
    reply.content["arrays"]["steps"].dtype = "patient"


def narrows(reply):
    private = reply.content["arrays"]["bias"].numpy()
    reply.content["arrays"]["bias"] = Array(private.astype(np.float32))


def flattens(reply):
    private = reply.content["arrays"]["weight"].numpy()
    reply.content["arrays"]["weight"] = Array(private.ravel())


def damages(reply):
    reply.content["arrays"]["weight"].data = b"patient"


@pytest.mark.parametrize(
    "change", [hides_the_count, hides_a_text, renames_a_dtype, narrows, flattens, damages]
)
def test_further_changes_are_found(change):
    with pytest.raises(AssertionError):
        assert_only_private(behind(change), content())


def test_array_without_numbers_passes():
    arrays = record({"w": np.zeros(6), "none": np.zeros((0, 3))})
    app = ClientApp(mods=[mod()])
    app.train()(lambda asked, context: Message(asked.content, reply_to=asked))
    assert_only_private(app, {"arrays": arrays})


def test_what_is_not_one_model_is_refused():
    arrays = content()["arrays"]
    for wrong in ({"config": ConfigRecord({"lr": 0.1})}, {"one": arrays, "other": arrays}):
        with pytest.raises(ValueError, match=r"content must have one ArrayRecord; it has \d"):
            assert_only_private(with_mod(), wrong)


def test_the_status_of_a_legacy_client_is_found():
    """It is a text that the client writes; the mod sends an empty one."""

    def tells(status):
        def change(reply):
            reply.content["fitres.status"] = ConfigRecord(status)

        return behind(change)

    assert_only_private(tells({"code": 0, "message": ""}), content())
    with pytest.raises(AssertionError, match="the client's status leaves"):
        assert_only_private(tells({"code": 0, "message": SECRET.text}), content())
