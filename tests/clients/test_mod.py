"""The mod: what leaves a device, whatever the app on it does."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flwr_sdp import (
    PrivUnit,
    SeparatedBudget,
    SeparatedMechanism,
    secure_generator,
    seeded_generator,
)
from flwr_sdp.clients import SeparatedDPMod
from tests.adversaries import (
    APPS,
    OTHER_APPS,
    SECRET,
    SEEDED,
    WITHHELD,
    assert_no_secret,
    assert_withheld,
    changes_metadata_of_its_reply,
    raises,
    replies_error,
    replies_to_nobody,
)
from tests.messages import (
    client_app,
    context,
    everything,
    flat,
    numpy_dict,
    record,
    reply_with,
    request,
    shifted,
)
from tests.statistics_helpers import assert_detects, assert_mean_close

ROOT = Path(__file__).resolve().parents[2]
BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
MAX_NORM = 2.0
RELEASED = ("layer.weight", "layer.bias", "scale")


def mod(*, seed=None, max_norm=MAX_NORM, **options):
    if seed is not None:
        options["rng"] = lambda: seeded_generator(seed)
    return SeparatedDPMod(BUDGET, max_norm, **options)


def model():
    return record(
        {
            "layer.weight": np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4),
            "steps": np.array([3, 4], np.int64),
            "layer.bias": np.array([0.25, -0.5], np.float64),
            "scale": np.array(0.5, np.float16),
            "bn.running_mean": np.array([0.1, 0.2], np.float32),
            "bn.num_batches_tracked": np.array(9, np.int64),
            "mask": np.array([True, False, True]),
        }
    )


def vector_model(dim=6):
    return record({"w": np.linspace(-1.0, 1.0, dim)})


def train_by(update):
    """Return a train function that adds `update` to the model, and changes every buffer too."""

    def train(message, _context):
        moved = numpy_dict(shifted(message.content["arrays"], update))
        for name, array in moved.items():
            if array.dtype == np.bool_:
                moved[name] = ~array
            elif not np.issubdtype(array.dtype, np.floating):
                moved[name] = array + 1000
        return reply_with(message, record(moved), loss=0.125)

    return train


def ask(handler, *, seed=0, arrays=None, attach="function", config=None, message_type="train", **o):
    app = client_app(mod(seed=seed, **o), handler, attach=attach)
    return app(request(arrays or model(), message_type), context(config))


def answered(reply):
    assert reply.has_content(), reply.error
    return reply.content["arrays"]


def assert_refused(reply, *texts):
    """Refused before the app was asked, with a reason for the server."""
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.code == 6
    assert reply.error.reason.startswith("SeparatedDPMod: ")
    assert reply.error.reason != WITHHELD
    for text in texts:
        assert text in reply.error.reason


# ------------------------------------------------------------------ an ordinary reply
@pytest.mark.parametrize("attach", ["app", "function"])
@pytest.mark.parametrize("message_type", ["train", "train.twice"])
def test_reply_is_a_model_and_settings_and_nothing_else(attach, message_type):
    reply = ask(train_by(0.01), attach=attach, message_type=message_type)
    assert set(reply.content) == {"arrays", "metrics"}
    assert len(reply.content.array_records) == len(reply.content.metric_records) == 1
    assert len(reply.content.config_records) == 0
    arrays, received = answered(reply), model()
    assert list(arrays) == list(received)
    for name, array in arrays.items():
        assert array.dtype == received[name].dtype == str(array.numpy().dtype)
        assert array.shape == received[name].shape == array.numpy().shape
    mechanism = SeparatedMechanism.from_budget(15, BUDGET, MAX_NORM)
    assert dict(reply.content["metrics"]) == {
        "num-examples": 1,
        "ldp-epsilon-direction": mechanism.event.epsilon_direction,
        "ldp-epsilon-magnitude": mechanism.event.epsilon_magnitude,
        "ldp-max-norm": MAX_NORM,
        "ldp-max-output-norm": mechanism.max_output_norm,
        "ldp-insecure-generator": 1.0,  # it is seeded
    }


@pytest.mark.parametrize(
    ("rng", "is_marked"),
    [
        (secure_generator, False),
        (lambda: seeded_generator(1), True),
        (lambda: np.random.default_rng(1), True),
        (lambda: None, False),  # the mechanism makes a secure one
    ],
    ids=["secure", "seeded", "NumPy's", "none"],
)
def test_reply_says_if_its_noise_is_not_from_a_secure_generator(rng, is_marked):
    """A mod that was left with a generator for tests is seen in the server's report."""
    app = client_app(mod(rng=rng), train_by(0.01))
    metrics = app(request(model()), context()).content["metrics"]
    assert ("ldp-insecure-generator" in metrics) == is_marked


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs torch")


@pytest.mark.parametrize("on_device", [False, True])
def test_update_is_privatized_where_a_torch_generator_draws(torch, monkeypatch, on_device):
    """The CPU stands in for an accelerator: the update is a tensor there, and comes back.

    The law is that of any generator; drawn on the device, the norm alone is drawn on the host.
    """
    calls = []
    draw_on_device = PrivUnit.draw_on_device

    def draw(mechanism, rows, *rest):
        calls.append(type(rows))
        return draw_on_device(mechanism, rows, *rest)

    monkeypatch.setattr(PrivUnit, "draw_on_device", draw)
    if on_device:
        monkeypatch.setattr("flwr_sdp.separated.draws_on_device", lambda array, rng: True)
    generator = torch.Generator().manual_seed(5)
    update = np.full(6, 0.5)
    app = client_app(mod(rng=lambda: generator), train_by(update))
    received = vector_model()
    outputs = np.stack(
        [flat(answered(app(request(received), context()))) - flat(received) for _ in range(500)]
    )
    assert calls == [torch.Tensor] * (500 if on_device else 0)
    assert_mean_close(outputs, update)
    mechanism = SeparatedMechanism.from_budget(6, BUDGET, MAX_NORM)
    lengths = np.linalg.norm(outputs, axis=1)
    assert lengths.max() <= mechanism.max_output_norm * (1 + 1e-6)
    assert len(np.unique(outputs[:, 0])) == 500


def test_a_generator_that_fails_leaves_nothing(torch, caplog):
    """As where the device of a generator is out of memory: it fails closed."""

    def fails():
        raise RuntimeError("CUDA out of memory")

    reply = client_app(mod(rng=fails), train_by(0.01))(request(model()), context())
    assert_withheld(reply)
    assert "CUDA out of memory" in caplog.text


def test_on_a_gpu(torch):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    generator = torch.Generator("cuda").manual_seed(5)
    update = np.full(6, 0.5)
    app = client_app(mod(rng=lambda: generator), train_by(update))
    received = vector_model()
    outputs = np.stack(
        [flat(answered(app(request(received), context()))) - flat(received) for _ in range(500)]
    )
    assert_mean_close(outputs, update)


def test_reply_goes_back_to_who_asked():
    message = request(model(), "train.twice", node_id=77)
    metadata = client_app(mod(), train_by(0.1))(message, context()).metadata
    assert metadata.dst_node_id == message.metadata.src_node_id
    assert metadata.src_node_id == 77
    assert metadata.reply_to_message_id == message.metadata.message_id
    assert metadata.message_type == "train.twice"


def test_reply_keeps_the_name_of_the_servers_record():
    message = Message(RecordDict({"weights": vector_model()}), 1, "train")

    def train(message, _context):
        return Message(RecordDict({"other": vector_model()}), reply_to=message)

    assert set(client_app(mod(), train)(message, context()).content) == {"weights", "metrics"}


@pytest.mark.parametrize(
    "update",
    [0.0, 0.01, np.nan, np.inf, -np.inf, 1e30, -1e30],
    ids=["zero", "small", "nan", "inf", "minus-inf", "huge", "minus-huge"],
)
@pytest.mark.parametrize("attach", ["app", "function"])
def test_every_released_number_is_random_and_every_other_one_as_received(update, attach):
    arrays = answered(ask(train_by(update), attach=attach))
    received = model()
    for name in received:
        got, sent = arrays[name].numpy(), received[name].numpy()
        if name in RELEASED:
            assert np.all(np.isfinite(got))
            assert np.all(got != sent)
        else:
            np.testing.assert_array_equal(got, sent)
            assert arrays[name].data == received[name].data


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [None, "layer.bias", "scale"])
def test_update_that_is_not_finite_is_released_as_a_zero_update(value, where, caplog):
    """Bit for bit the reply to a zero update, from one bad coordinate on; only the log tells."""
    zero = answered(ask(train_by(0.0)))
    caplog.clear()
    bad = answered(ask(train_by(value if where is None else {where: value})))
    assert {name: array.data for name, array in bad.items()} == {
        name: array.data for name, array in zero.items()
    }
    assert [entry.name for entry in caplog.records] == ["flwr_sdp.device"]
    assert "not finite" in caplog.text


def test_huge_update_keeps_its_direction():
    """1e30 in float32 overflows when squared; it is released like any update beyond max_norm."""
    arrays = record({"w": np.zeros(8, np.float32)})
    direction = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    huge = answered(ask(train_by({"w": direction * np.float32(1e30)}), arrays=arrays))
    long = answered(ask(train_by({"w": direction * np.float32(1e3)}), arrays=arrays))
    np.testing.assert_allclose(flat(huge), flat(long), rtol=1e-5)


def test_model_may_be_a_few_scalars():
    arrays = record({"a": np.array(1.0, np.float32), "b": np.array(2.0, np.float32)})
    got = answered(ask(train_by(0.1), arrays=arrays))
    assert [array.shape for array in got.values()] == [(), ()]
    assert np.all(flat(got) != flat(arrays))


def test_keys_are_matched_by_name():
    def reordered(message, _context):
        moved = shifted(message.content["arrays"], 0.01)
        return reply_with(message, ArrayRecord(dict(reversed(moved.items()))))

    def in_order(message, _context):
        return reply_with(message, shifted(message.content["arrays"], 0.01))

    first, second = answered(ask(reordered)), answered(ask(in_order))
    assert list(first) == list(second) == list(model())
    assert all(first[name].data == second[name].data for name in first)


def test_excluded_arrays_are_of_the_users_choice():
    arrays = answered(ask(train_by(0.1), excluded=("layer.*",)))
    changed = {name for name, array in model().items() if arrays[name].data != array.data}
    assert changed == {"scale", "bn.running_mean"}


def test_wider_dtype_of_the_app_is_narrowed_again():
    def train(message, _context):
        moved = numpy_dict(shifted(message.content["arrays"], 0.25))
        return reply_with(message, record({k: v.astype(np.float64) for k, v in moved.items()}))

    def plain(message, _context):
        return reply_with(message, shifted(message.content["arrays"], 0.25))

    arrays = record({"w": np.zeros(4, np.float32)})
    assert answered(ask(train, arrays=arrays))["w"].data == (
        answered(ask(plain, arrays=arrays))["w"].data
    )


# ------------------------------------------------------------------ the law of the reply
UPDATE = np.array([0.3, -0.2, 0.1, 0.0, 0.05, -0.4])


def check_unbiased(max_norm, replies=600):
    device = mod(max_norm=max_norm)
    streams = iter(range(replies))
    device._rng = lambda: seeded_generator(1, "reply", next(streams))
    app, received = client_app(device, train_by(UPDATE)), vector_model()
    samples = [flat(answered(app(request(received), context()))) for _ in range(replies)]
    assert_mean_close(samples, flat(received) + UPDATE)


def test_mean_of_the_reply_is_received_plus_update():
    """600 replies, 6 coordinates at 5 standard errors each: false alarms at 3.4e-6.

    The mutant shortens the update, of norm 0.55, to 0.3.
    """
    check_unbiased(MAX_NORM)
    assert_detects(check_unbiased, 0.3)


@pytest.mark.parametrize("scale", [0.0, 1e-12, 0.1, 1.0, 3.0, 1e6])
def test_norm_of_the_release_has_the_announced_bound(scale):
    """The bound holds always, and is met: it is the largest norm, not just an upper bound."""
    received, lengths = vector_model(), []
    for seed in range(60):
        reply = ask(train_by(scale * UPDATE), seed=seed, arrays=received)
        bound = reply.content["metrics"]["ldp-max-output-norm"]
        lengths.append(np.linalg.norm(flat(answered(reply)) - flat(received)))
    assert max(lengths) <= bound * (1.0 + 4e-12)
    if scale >= 10.0:
        assert max(lengths) >= bound * (1.0 - 4e-12)


def test_local_learning_rate_is_the_unit_of_max_norm():
    """4 steps of 0.5 bound the update like 2 steps of 1: the same bytes from the same stream."""
    received = vector_model()
    reply = ask(train_by(10 * UPDATE), arrays=received, max_norm=4.0, local_learning_rate=0.5)
    same = ask(train_by(10 * UPDATE), arrays=received, max_norm=2.0)
    other = ask(train_by(10 * UPDATE), arrays=received, max_norm=4.0)
    assert reply.content["metrics"]["ldp-max-norm"] == 2.0
    assert answered(reply)["w"].data == answered(same)["w"].data
    assert answered(reply)["w"].data != answered(other)["w"].data


def test_replies_differ_by_default_and_leave_global_generators_alone():
    app, received = client_app(SeparatedDPMod(BUDGET, MAX_NORM), train_by(0.0)), vector_model()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    replies = {answered(app(request(received), context()))["w"].data for _ in range(20)}
    assert len(replies) == 20
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


TWINS = """
import os, random, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from flwr.supercore.task_identity import TaskIdentity
from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import SeparatedDPMod
from tests.messages import client_app, context, record, reply_with, request
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
budget = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
app = client_app(SeparatedDPMod(budget, 1.0), lambda m, c: reply_with(m, m.content["arrays"]))
model = record({"w": np.zeros(6)})
app(request(model), context())
for twin in range(2):
    if os.fork() == 0:
        random.seed(0)
        np.random.seed(0)
        numbers = [random.random(), np.random.random()]
        if "torch" in sys.argv:
            torch.manual_seed(0)
            numbers.append(float(torch.rand(1)))
        reply = app(request(model), context())
        print(reply.content["arrays"]["w"].data.hex(), *numbers, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("torch", ["", "torch"], ids=["numpy", "torch"])
def test_processes_seeded_alike_send_different_replies(torch):
    """Two copies of one process, every common generator seeded the same."""
    code = TWINS
    if torch:
        pytest.importorskip("torch")
        code = "import torch\n" + code
    output = subprocess.run(
        [sys.executable, "-c", code, torch],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
    ).stdout
    (first, *seeded), (second, *seeded_again) = map(str.split, output.splitlines())
    assert len(seeded) == (3 if torch else 2)
    assert seeded == seeded_again
    assert first != second


# ------------------------------------------------------------------ an app that changes its message
def replaced_record(message, _context):
    moved = shifted(message.content["arrays"], UPDATE)
    message.content["arrays"] = shifted(moved, 100.0)
    return reply_with(message, moved)


def altered_in_place(message, _context):
    moved = shifted(message.content["arrays"], UPDATE)
    for name, array in message.content["arrays"].items():
        array.data = shifted(moved, 100.0)[name].data
    return reply_with(message, moved)


def emptied_to_save_memory(message, _context):
    (weights,) = message.content["arrays"].to_numpy_ndarrays(keep_input=False)
    return reply_with(message, record({"w": weights + UPDATE}))


def trained_in_place_and_returned_content(message, _context):
    message.content["arrays"] = shifted(message.content["arrays"], UPDATE)
    return Message(message.content, reply_to=message)


def trained_in_place_and_returned_message(message, _context):
    message.content["arrays"] = shifted(message.content["arrays"], UPDATE)
    return message


def removed_the_record(message, _context):
    moved = shifted(message.content["arrays"], UPDATE)
    del message.content["arrays"]
    return reply_with(message, moved)


@pytest.mark.parametrize(
    "app",
    [
        replaced_record,
        altered_in_place,
        emptied_to_save_memory,
        trained_in_place_and_returned_content,
        trained_in_place_and_returned_message,
        removed_the_record,
    ],
)
@pytest.mark.parametrize("attach", ["app", "function"])
def test_what_is_subtracted_is_what_was_received(app, attach):
    honest = answered(ask(train_by(UPDATE), arrays=vector_model()))
    got = answered(ask(app, arrays=vector_model(), attach=attach))
    assert got["w"].data == honest["w"].data


# ------------------------------------------------------------------ settings
CONFIG = {"sdp-epsilon-direction": 8.0, "sdp-epsilon-magnitude": 8.0, "sdp-max-norm": 2.0}


def from_config(config, **options):
    device = SeparatedDPMod(rng=lambda: seeded_generator(0), **options)
    return client_app(device, train_by(UPDATE))(request(vector_model()), context(config))


def test_settings_come_from_the_run_config():
    got, expected = from_config(CONFIG), ask(train_by(UPDATE), arrays=vector_model())
    assert answered(got)["w"].data == answered(expected)["w"].data
    assert got.content["metrics"] == expected.content["metrics"]


def test_rule_and_learning_rate_come_from_the_run_config():
    got = from_config(CONFIG | {"sdp-rule": "paper", "sdp-local-learning-rate": 0.5})
    mechanism = SeparatedMechanism.from_budget(6, BUDGET, 1.0, rule="paper")
    metrics = got.content["metrics"]
    assert metrics["ldp-max-norm"] == 1.0
    assert metrics["ldp-epsilon-direction"] == mechanism.event.epsilon_direction
    assert metrics["ldp-max-output-norm"] == mechanism.max_output_norm


def test_constructor_wins_over_the_run_config():
    config = {
        "sdp-epsilon-direction": 1.0,
        "sdp-epsilon-magnitude": 1.0,
        "sdp-max-norm": 1.0,
        "sdp-rule": "paper",
        "sdp-local-learning-rate": 7.0,
    }
    reply = ask(
        train_by(UPDATE), arrays=vector_model(), config=config, rule="tight", local_learning_rate=1
    )
    expected = ask(train_by(UPDATE), arrays=vector_model())
    assert reply.content["metrics"] == expected.content["metrics"]


@pytest.mark.parametrize("key", list(CONFIG))
def test_missing_setting_is_an_error_reply_that_names_it(key, caplog):
    reply = from_config({name: value for name, value in CONFIG.items() if name != key})
    assert_refused(reply, f"{key} is missing")
    assert f"{key} is missing" in caplog.text


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "5", True])
@pytest.mark.parametrize("key", [*CONFIG, "sdp-local-learning-rate", "sdp-rule"])
def test_bad_setting_is_an_error_reply_that_names_it(key, value):
    reply = from_config(CONFIG | {key: value})
    assert_refused(reply, repr(value), key.removeprefix("sdp-"))


def test_app_is_not_asked_when_a_setting_is_missing():
    """Nothing is trained in vain, and nothing the app does can change the settings."""
    calls = []
    app = client_app(SeparatedDPMod(), lambda *args: calls.append(args))
    assert_refused(app(request(vector_model()), context({})))
    assert calls == []


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
@pytest.mark.parametrize("field", ["max_norm", "local_learning_rate"])
def test_bad_numbers_are_refused_at_once(field, value):
    with pytest.raises(ValueError, match=rf"{field} must be .*got {value!r}"):
        SeparatedDPMod(**{field: value})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"budget": 60.0}, "budget must be a SeparatedBudget; got 60.0"),
        ({"budget": (50.0, 10.0)}, "budget must be"),
        ({"rule": "loose"}, "rule must be one of 'tight', 'paper'; got 'loose'"),
        ({"rule": 0}, "rule must be one of .*got 0"),
        ({"excluded": [1]}, r"excluded must be names; got one of type int"),
        ({"excluded": 5}, "excluded must be"),
        ({"released_metrics": [None]}, "released_metrics must be names"),
        ({"released_metrics": 5}, "released_metrics must be"),
        ({"released_metrics": ["num-examples"]}, "released_metrics must not name 'num-examples'"),
        ({"released_metrics": "ldp-max-norm"}, "released_metrics must not name"),
    ],
)
def test_other_bad_settings_are_refused_at_once(options, match):
    with pytest.raises(ValueError, match=match):
        SeparatedDPMod(**options)


# ------------------------------------------------------------------ evaluate and query
def report_metrics(message, _context):
    content = {
        "metrics": MetricRecord({"num-examples": 32, "accuracy": 0.75, "loss": 1.25}),
        "notes": ConfigRecord({"patient": "secret"}),
    }
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("attach", ["app", "function"])
@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_metrics_are_dropped(message_type, attach):
    reply = ask(report_metrics, message_type=message_type, attach=attach)
    assert {name: dict(rec) for name, rec in reply.content.items()} == {
        "metrics": {"num-examples": 1}
    }


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_named_metrics_leave(message_type):
    reply = ask(report_metrics, message_type=message_type, released_metrics=["accuracy", "auc"])
    assert dict(reply.content["metrics"]) == {"num-examples": 1, "accuracy": 0.75}


def test_named_metrics_of_training_leave_and_no_others():
    reply = ask(train_by(0.1), released_metrics="loss")
    assert set(reply.content["metrics"]) == SEEDED | {"loss"}
    assert reply.content["metrics"]["loss"] == 0.125
    assert set(ask(train_by(0.1)).content["metrics"]) == SEEDED


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_arrays_leave_after_training_only(message_type):
    assert_withheld(ask(train_by(0.1), message_type=message_type))


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_other_messages_need_no_settings_and_no_arrays(message_type):
    app = client_app(SeparatedDPMod(), report_metrics)
    reply = app(Message(RecordDict(), 1, message_type), context())
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


# ------------------------------------------------------------------ nothing else leaves
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("attach", ["app", "function"])
@pytest.mark.parametrize("name", list(APPS))
def test_no_secret_leaves_in_training(name, attach):
    handler, is_answered = APPS[name]
    app = client_app(mod(seed=0), handler, attach=attach)
    reply = app(request(SECRET.received()), context())
    assert_no_secret(reply)
    if not is_answered:
        assert_withheld(reply)
        return
    received = SECRET.received()
    assert set(reply.content) == {"arrays", "metrics"}
    assert set(reply.content["metrics"]) == SEEDED
    assert list(answered(reply)) == list(received)
    for key in ("bn.running_var", "steps"):
        assert answered(reply)[key].data == received[key].data


def test_the_search_for_secrets_finds_them():
    """Each of the things that are searched for is found in a reply without the mod."""
    message = request(SECRET.received())
    sent = everything(SECRET.reply(message))
    assert [needle for needle in SECRET.as_sent() if needle not in sent] == []
    with pytest.raises(AssertionError, match="secrets leave"):
        assert_no_secret(SECRET.reply(message))
    bare = Message(RecordDict({"arrays": record(SECRET.update)}), reply_to=message)
    with pytest.raises(AssertionError, match="secrets leave"):
        assert_no_secret(bare)
    for handler in (replies_error, replies_to_nobody, changes_metadata_of_its_reply):
        assert SECRET.text.encode() in everything(handler(message, None))


@pytest.mark.parametrize("attach", ["app", "function"])
@pytest.mark.parametrize("message_type", ["evaluate", "query"])
@pytest.mark.parametrize("name", list(OTHER_APPS))
def test_no_secret_leaves_in_evaluation(name, message_type, attach):
    handler, is_answered = OTHER_APPS[name]
    app = client_app(mod(), handler, attach=attach)
    reply = app(request(SECRET.received(), message_type), context())
    assert_no_secret(reply)
    if is_answered:
        assert {key: dict(rec) for key, rec in reply.content.items()} == {
            "metrics": {"num-examples": 1}
        }
    else:
        assert_withheld(reply)


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"arrays": ArrayRecord()},
        {"arrays": vector_model(), "more": vector_model()},
        {"arrays": record({"steps": np.array([1, 2, 3])})},
        {"arrays": record({"w": np.array([1.0])})},
        {"metrics": MetricRecord({"w": 1.0})},
    ],
    ids=["nothing", "empty", "two records", "no floats", "one number", "no arrays"],
)
def test_messages_that_no_private_reply_fits_are_withheld(records):
    message = Message(RecordDict(records), 1, "train")
    reply = client_app(mod(), lambda m, c: Message(m.content, reply_to=m))(message, context())
    assert_refused(reply)


# ------------------------------------------------------------------ errors
def test_error_reply_is_the_same_whatever_went_wrong():
    replies = [
        client_app(mod(), handler)(request(SECRET.received()), context())
        for handler, is_answered in APPS.values()
        if not is_answered
    ]
    assert len({(reply.error.code, reply.error.reason) for reply in replies}) == 1


@pytest.mark.parametrize("message_type", ["train", "evaluate", "query"])
def test_traceback_and_partition_go_to_the_log_of_the_device(message_type, caplog):
    with caplog.at_level(logging.ERROR):
        reply = ask(raises(ValueError("the disk is full")), message_type=message_type)
    assert_withheld(reply)
    (entry,) = caplog.records
    assert entry.name == "flwr_sdp.device"
    assert "partition 3" in entry.getMessage()
    assert "node 11" in entry.getMessage()
    assert message_type in entry.getMessage()
    assert "the disk is full" in caplog.text
    assert "Traceback" in caplog.text


def test_reason_of_the_apps_own_error_stays_in_the_log(caplog):
    assert_withheld(ask(replies_error))
    assert SECRET.text in caplog.text


def test_log_is_not_flowers(caplog):
    """Flower's own log may be collected; the log of the device must not end up in it."""
    assert not logging.getLogger("flwr_sdp.device").name.startswith("flwr.")
    assert logging.getLogger("flwr_sdp.device").parent is not logging.getLogger("flwr")


# ------------------------------------------------------------------ Flower takes the reply
def test_plain_fedavg_aggregates_private_replies():
    received = model()
    replies = [ask(train_by(0.1), seed=seed, arrays=received) for seed in range(3)]
    arrays, metrics = FedAvg().aggregate_train(1, replies)
    expected = np.mean([flat(answered(reply), received) for reply in replies], axis=0)
    np.testing.assert_allclose(flat(arrays, received), expected, rtol=1e-3)
    assert list(arrays) == list(received)
    assert set(metrics) == SEEDED - {"num-examples"}


def test_plain_fedavg_aggregates_private_evaluations():
    replies = [ask(report_metrics, message_type="evaluate") for _ in range(3)]
    assert dict(FedAvg().aggregate_evaluate(1, replies)) == {}


def test_two_mods_in_one_app_are_refused(caplog):
    """Attached to the app and to the function, a report would be noised, and paid for, twice."""
    app = ClientApp(mods=[mod(seed=1)])
    app.train(mods=[mod(seed=2)])(train_by(0.01))
    assert_withheld(app(request(model()), context()))
    assert "two SeparatedDPMods" in caplog.text


def test_the_owner_may_interrupt():
    """Flower sends no text of it; to hold it back would make a device that cannot be stopped."""

    def interrupted(message, context):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(interrupted)
