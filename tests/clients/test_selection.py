"""Some arrays of a model, through the device and the server: subsets, tied weights, half precision.

Where a test needs to know what a private update is close to, the budget is so large that the
mechanism has an error of about 1e-3 of the norm; the bound is five times its exact root mean
square.
"""

import io
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.clients import BATCH_NORM_STATISTICS, Selection, SeparatedDPMod, UpdateLayout
from flwr_sdp.strategies.accumulator import ClippedSum
from tests.adversaries import assert_withheld
from tests.messages import MARKS, FakeGrid, client_app, context, reply_with, request
from tests.rounds import inner, make, play
from tests.statistics_helpers import assert_detects, random_unit

BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
ALMOST_EXACT = SeparatedBudget(epsilon_direction=1e5, epsilon_magnitude=200.0)
MAX_NORM = 2.0
LARGEST_BFLOAT16 = 2.0**128 - 2.0**120


# ------------------------------------------------------------------ models
def saved(numbers):
    file = io.BytesIO()
    np.save(file, numbers)
    return file.getvalue()


def bfloat16(values):
    """Return an array as ml_dtypes would have it sent; values of more than eight bits fail."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    assert not np.any(bits & 0xFFFF), "not bfloat16"
    data = saved((bits >> 16).astype(np.uint16).view("V2"))
    return Array("bfloat16", values.shape, "numpy.ndarray", data.replace(b"|V2", b"<V2"))


def array_of(value):
    return value if isinstance(value, Array) else Array(np.asarray(value))


def record(arrays):
    return ArrayRecord({name: array_of(value) for name, value in arrays.items()})


def numbers(array):
    """Return the numbers of an array, those of bfloat16 as float32."""
    if array.dtype != "bfloat16":
        return array.numpy()
    patterns = array.numpy().view(np.uint16).astype(np.uint32)
    return (patterns << np.uint32(16)).view(np.float32)


def vector(arrays, names):
    return np.concatenate([numbers(arrays[name]).astype(np.float64).ravel() for name in names])


def model():
    return record(
        {
            "body.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
            "body.lora_A.weight": np.asfortranarray(np.linspace(0, 1, 6).reshape(2, 3)),
            "body.lora_B.weight": np.array([[0.5], [-0.25], [2.0]], np.float16),
            "steps": np.array([3, 4], np.int64),
            "bn.running_mean": np.array([0.1, 0.2], np.float32),
            "bn.weight": np.array(1.5, np.float32),
            "mask": np.array([True, False, True]),
            "head.weight": np.linspace(-2, 2, 8, dtype=np.float32).reshape(4, 2),
            "head.bias": np.array([0.25, -0.5], np.float32),
        }
    )


def half_model(dtype):
    """Return a model with an array of half precision, and one in single."""
    values = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -0.125]])
    half = bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)
    return record({"w": half, "b": np.array([0.5, -1.0], np.float32)})


# ------------------------------------------------------------------ devices
def mod(*, seed=0, budget=BUDGET, max_norm=MAX_NORM, **selection):
    return SeparatedDPMod(budget, max_norm, rng=lambda: seeded_generator(seed), **selection)


def train_all(update=0.01):
    """Return a train function that moves every array there is: counters and masks too.

    `update` is a step for each of the floats, or a dict of steps by name, for those that it has.
    """

    def train(message, _context):
        moved = {}
        for name, array in message.content["arrays"].items():
            value = numbers(array)
            if value.dtype == bool:
                moved[name] = ~value
            elif value.dtype.kind in "iu":
                moved[name] = value + 1000
            else:
                step = update.get(name, 7.0) if isinstance(update, dict) else update
                wide = np.float64 if value.dtype == np.float64 else np.float32
                moved[name] = value.astype(wide) + np.asarray(step, wide)
        return reply_with(message, record(moved))

    return train


def replying(arrays):
    """Return a train function that answers with certain arrays."""
    return lambda message, _context: reply_with(message, record(arrays))


def ask(handler, arrays=None, **options):
    return client_app(mod(**options), handler)(request(arrays or model()), context())


def answered(reply):
    assert reply.has_content(), reply.error
    return reply.content["arrays"]


def assert_same_arrays(got, expected, names=None):
    """The same bytes, under the same names of types, in the same shapes."""
    for name in expected if names is None else names:
        assert vars(got[name]) == vars(expected[name]), name


def changed(got, expected):
    assert list(got) == list(expected)
    return {name for name in expected if vars(got[name]) != vars(expected[name])}


def assert_near(got, expected, mechanism, rounding=0.0):
    """Check an output of a mechanism against what it should be close to."""
    error = 5.0 * math.sqrt(mechanism.expected_squared_error(float(np.linalg.norm(expected))))
    assert error < 0.02 * mechanism.magnitude.max_norm  # the check means something
    assert np.linalg.norm(got - expected) <= error + rounding


HEAD = {"trainable": "head.*"}
LORA = {"trainable": ["*.lora_?.*"]}
SUBSETS = {
    "head": (HEAD, ("head.weight", "head.bias"), 10),
    "lora": (LORA, ("body.lora_A.weight", "body.lora_B.weight"), 9),
    "lora and head": (
        {"trainable": ("*.lora_?.*", "head.*")},
        ("body.lora_A.weight", "body.lora_B.weight", "head.weight", "head.bias"),
        19,
    ),
    "without biases": (
        {"trainable": "head.*", "excluded": "*.bias"},
        ("head.weight",),
        8,
    ),
    "statistics": (
        {"trainable": ("bn.*", "mask", "steps"), "excluded": ()},
        ("bn.running_mean", "bn.weight"),
        3,
    ),
    "all": (
        {},
        (
            "body.weight",
            "body.lora_A.weight",
            "body.lora_B.weight",
            "bn.weight",
            "head.weight",
            "head.bias",
        ),
        12 + 9 + 1 + 10,
    ),
}
subsets = pytest.mark.parametrize("subset", list(SUBSETS))


# ------------------------------------------------------------------ a subset, on the device
@subsets
@pytest.mark.parametrize("update", [0.0, 0.01, 1e4, math.nan])
def test_trained_arrays_move_and_all_others_come_back_byte_for_byte(subset, update):
    """Whatever the app did to them."""
    options, names, _ = SUBSETS[subset]
    got = answered(ask(train_all(update), **options))
    assert changed(got, model()) == set(names)
    for name in names:
        assert (got[name].dtype, got[name].shape) == (model()[name].dtype, model()[name].shape)
        assert np.all(np.isfinite(numbers(got[name])))
        if got[name].dtype != "float16":  # in which a small step may be none
            assert np.all(numbers(got[name]) != numbers(model()[name]))


@subsets
def test_the_mechanism_is_that_of_the_coordinates_that_are_trained(subset):
    options, _, dim = SUBSETS[subset]
    metrics = ask(train_all(), **options).content["metrics"]
    mechanism = SeparatedMechanism.from_budget(dim, BUDGET, MAX_NORM)
    assert metrics["ldp-max-output-norm"] == mechanism.max_output_norm
    assert metrics["ldp-epsilon-direction"] == mechanism.event.epsilon_direction
    for other in (dim - 1, dim + 1):
        mechanism = SeparatedMechanism.from_budget(other, BUDGET, MAX_NORM)
        assert metrics["ldp-max-output-norm"] != mechanism.max_output_norm


@subsets
def test_frozen_arrays_may_be_left_out(subset):
    """The reply has them all the same."""
    options, names, _ = SUBSETS[subset]

    def train(message, _context):
        trained = train_all()(message, _context).content["arrays"]
        return reply_with(message, ArrayRecord({name: trained[name] for name in names}))

    got = answered(ask(train, **options))
    assert list(got) == list(model())
    assert_same_arrays(got, answered(ask(train_all(), **options)))


@pytest.mark.parametrize(
    "frozen",
    [
        np.full((3, 4), 1e30, np.float32),
        np.full((3, 4), math.nan, np.float32),
        np.zeros(7, np.float32),
        np.array(["text"]),
        Array("float32", (3, 4), "numpy.ndarray", b"damaged"),
        Array("float32", (3, 4), "pickle", b""),
    ],
    ids=["huge", "nan", "another shape", "text", "damaged", "pickle"],
)
def test_frozen_arrays_are_not_looked_at(frozen):
    def train(message, _context):
        trained = dict(train_all()(message, _context).content["arrays"].items())
        return reply_with(message, record(trained | {"body.weight": frozen}))

    assert_same_arrays(answered(ask(train, **HEAD)), answered(ask(train_all(), **HEAD)))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"head.weight": np.zeros((4, 2))}, "missing: ['head.bias'], unknown: 0"),
        ({}, "missing: ['head.bias', 'head.weight'], unknown: 0"),
        (
            {"head.weight": np.zeros((4, 2)), "head.bias": np.zeros(2), "more": np.zeros(2)},
            "missing: none, unknown: 1",
        ),
        (
            {"weight": np.zeros((4, 2)), "bias": np.zeros(2)},
            "missing: ['head.bias', 'head.weight'], unknown: 2",
        ),
        ({"head.weight": np.zeros((2, 4)), "head.bias": np.zeros(2)}, "must keep its shape (4, 2)"),
        ({"head.weight": np.zeros((4, 2)), "head.bias": np.array("x")}, "must keep its shape (2,)"),
    ],
    ids=["missing", "empty", "unknown", "renamed", "shape", "text"],
)
def test_replies_of_other_arrays_are_withheld(arrays, text, caplog):
    assert_withheld(ask(replying(arrays), **HEAD))
    assert text in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trainable": "haed.*"}, "'haed.*' matches none of them"),
        ({"trainable": ("head.*", "*.lora_C.*")}, "'*.lora_C.*' matches none of them"),
        ({"tied": {"head.bias": "missing"}}, "tied must name arrays of the model; got 'missing'"),
        ({"tied": {"head.bias": "head.weight"}}, "of one dtype and shape"),
        ({"trainable": "steps"}, "dim must be"),
        ({"trainable": "bn.*"}, "dim must be"),
        ({"trainable": ()}, "dim must be"),
    ],
)
def test_selections_that_do_not_fit_are_refused_before_the_app_is_asked(options, text):
    calls = []
    reply = ask(lambda *given: calls.append(given), **options)
    assert reply.has_error()
    assert text in reply.error.reason
    assert calls == []


# ------------------------------------------------------------------ a subset, at the server
def summed(arrays, replies, *, clip_norm=math.inf, noise_std=0.0, divisor=1.0, rate=1.0, **options):
    """Return the release of some replies, and the sum it came from."""
    total = ClippedSum(arrays, clip_norm, Selection(**options))
    for reply in replies:
        total.add(reply)
    release = total.release(
        divisor=divisor, noise_std=noise_std, learning_rate=rate, rng=seeded_generator(0)
    )
    return release.arrays, total


def moved_by(arrays, update):
    """Return what an app that moves all arrays replies."""
    return train_all(update)(request(arrays), None).content["arrays"]


@subsets
def test_server_sums_what_the_device_sends(subset):
    """The dimension is the same, and arrays that no one should have moved count for nothing."""
    options, names, dim = SUBSETS[subset]
    step = dict.fromkeys(names, 0.5)
    moved, total = summed(model(), [moved_by(model(), step)], **options)
    assert total.dim == dim
    assert changed(moved, model()) == set(names)
    np.testing.assert_allclose(vector(moved, names) - vector(model(), names), 0.5, rtol=1e-3)


@subsets
def test_noise_reaches_what_is_trained_and_nothing_else(subset):
    options, names, _ = SUBSETS[subset]
    moved, _ = summed(model(), [], noise_std=1.0, **options)
    assert changed(moved, model()) == set(names)
    for name in names:
        assert np.all(numbers(moved[name]) != numbers(model()[name]))


def test_frozen_arrays_are_no_part_of_the_norm():
    """Of length 1 with them out of it. A mutant that counts them moves the model by 0.003."""
    step = {"head.weight": np.full((4, 2), 0.1), "head.bias": np.full(2, 0.1)}
    reply = moved_by(model(), step | {"body.weight": 100.0})
    names = ("head.weight", "head.bias")

    def check(options):
        moved, total = summed(model(), [reply], clip_norm=1.0, **options)
        assert total.projected == 0
        np.testing.assert_allclose(vector(moved, names) - vector(model(), names), 0.1, rtol=1e-5)

    check(HEAD)
    assert_detects(check, {"trainable": ("head.*", "body.weight")})


def test_frozen_arrays_may_be_damaged_but_not_missing():
    reply = dict(moved_by(model(), 0.5).items())
    reply["body.weight"] = Array(np.full(3, math.nan))
    moved, _ = summed(model(), [reply], **HEAD)
    assert changed(moved, model()) == {"head.weight", "head.bias"}
    del reply["body.weight"]
    with pytest.raises(ValueError, match="its arrays are not those of the model"):
        summed(model(), [reply], **HEAD)


def test_server_optimiser_changes_what_is_trained_only():
    arrays = model()
    averaged = record(
        {name: numbers(array).astype(np.float64) * 3.0 for name, array in arrays.items()}
    )
    restored = ClippedSum(arrays, 1.0, Selection(**HEAD)).like_model(averaged)
    assert changed(restored, arrays) == {"head.weight", "head.bias"}
    np.testing.assert_allclose(numbers(restored["head.bias"]), [0.75, -1.5])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"trainable": "haed.*"}, "matches none of them"),
        ({"tied": {"head.bias": "missing"}}, "tied must name arrays"),
        ({"tied": {"head.bias": "head.weight"}}, "of one dtype and shape"),
    ],
)
def test_server_refuses_selections_that_do_not_fit(options, text):
    with pytest.raises(ValueError, match=text):
        ClippedSum(model(), 1.0, Selection(**options))
    with pytest.raises(ValueError, match=text):
        play(make(**options), FakeGrid([1]), model(), lambda *_: None)


# ------------------------------------------------------------------ device and server together
def devices(handler, **options):
    """Return what a fleet of devices answers, each from a stream of its own."""

    def answer(index, message):
        return client_app(mod(seed=index, **options), handler)(message, context())

    return answer


@subsets
def test_a_round_with_noise_leaves_frozen_arrays_byte_for_byte(subset):
    options, names, dim = SUBSETS[subset]
    strategy = make(noise_multiplier=0.5, clip_norm=3.0, **options)
    moved, metrics = play(
        strategy, FakeGrid([1, 2, 3]), model(), devices(train_all(0.01), **options)
    )
    assert metrics["replies"] == 3
    assert metrics["refused"] == 0
    assert metrics["noise-norm"] == pytest.approx(0.5 * 3.0 * math.sqrt(dim) / 3.0)
    assert changed(moved, model()) == set(names)


@subsets
def test_a_round_moves_the_model_by_the_mean_of_the_updates(subset):
    """Three devices, whose updates differ: the error of the mean is at most the largest one.

    The model is rounded to half precision twice, by a device and by the server.
    """
    options, names, dim = SUBSETS[subset]
    mechanism = SeparatedMechanism.from_budget(dim, ALMOST_EXACT, MAX_NORM)
    updates = np.random.default_rng(1).standard_normal((3, dim))
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    arrays = model()

    def steps(update):
        parts, start = {}, 0
        for name in names:
            size = numbers(arrays[name]).size
            parts[name] = update[start : start + size].reshape(numbers(arrays[name]).shape)
            start += size
        return parts

    def answer(index, message):
        device = mod(seed=index, budget=ALMOST_EXACT, **options)
        return client_app(device, train_all(steps(updates[index])))(message, context())

    strategy = make(clip_norm=math.inf, **options)
    moved, metrics = play(strategy, FakeGrid([1, 2, 3]), arrays, answer)
    assert metrics["replies"] == 3
    step = vector(moved, names) - vector(arrays, names)
    error = 5.0 * math.sqrt(mechanism.expected_squared_error(1.0))
    assert np.linalg.norm(step - updates.mean(axis=0)) <= error + 2.0**-8 < 0.05


def test_inner_optimiser_gets_the_subset_too():
    strategy = make(inner(FedAdam), clip_norm=3.0, noise_multiplier=0.5, **HEAD)
    moved, metrics = play(strategy, FakeGrid([1, 2]), model(), devices(train_all(), **HEAD))
    assert metrics["replies"] == 2
    assert changed(moved, model()) == {"head.weight", "head.bias"}


names_of_arrays = st.sampled_from(list(model()))
TWIN = {**dict(model().items()), "twin": model()["head.bias"]}


@settings(max_examples=40)
@given(
    trainable=st.lists(st.one_of(st.just("*"), names_of_arrays), max_size=4),
    excluded=st.lists(names_of_arrays, max_size=3),
    is_tied=st.booleans(),
)
def test_device_and_server_agree_on_what_is_an_update(trainable, excluded, is_tied):
    selection = Selection(
        trainable=trainable,
        excluded=(*excluded, *BATCH_NORM_STATISTICS),
        tied={"twin": "head.bias"} if is_tied else {},
    )
    arrays = ArrayRecord(TWIN)
    layout, total = UpdateLayout.of(arrays, selection), ClippedSum(arrays, 1.0, selection)
    assert layout.dim == total.dim
    moved = layout.apply(np.ones(layout.dim))
    total.add(moved)
    release = total.release(divisor=1.0, noise_std=1.0, learning_rate=1.0, rng=seeded_generator(0))
    assert changed(release.arrays, arrays) == changed(moved, arrays)
    size = sum(numbers(arrays[name]).size for name in changed(moved, arrays))
    is_twice = is_tied and "twin" in changed(moved, arrays)
    assert layout.dim == size - 2 * is_twice


# ------------------------------------------------------------------ tied weights
TIED = {"decoder": "encoder"}


def tied_model():
    weight = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    return record({"encoder": weight, "b": np.zeros(2, np.float32), "decoder": weight})


def max_output_norm(dim):
    return SeparatedMechanism.from_budget(dim, BUDGET, MAX_NORM).max_output_norm


@pytest.mark.parametrize("update", [0.01, 1e4, math.nan])
def test_tied_weights_count_once_and_stay_equal(update):
    reply = ask(train_all(update), tied_model(), tied=TIED)
    got = answered(reply)
    assert changed(got, tied_model()) == {"encoder", "decoder", "b"}
    assert vars(got["decoder"]) == vars(got["encoder"])
    assert reply.content["metrics"]["ldp-max-output-norm"] == max_output_norm(8)


def test_they_are_two_arrays_to_whoever_does_not_say():
    reply = ask(train_all(), tied_model())
    got = answered(reply)
    assert np.all(numbers(got["decoder"]) != numbers(got["encoder"]))
    assert reply.content["metrics"]["ldp-max-output-norm"] == max_output_norm(14)


def test_tied_weights_are_released_as_one_array_would_be():
    """From the same stream the same numbers as without the second name."""
    single = ArrayRecord({name: tied_model()[name] for name in ("encoder", "b")})
    expected = answered(ask(train_all(), single))
    got = answered(ask(train_all(), tied_model(), tied=TIED))
    assert_same_arrays(got, expected)


def test_second_name_may_be_left_out_of_the_reply_and_the_first_may_not(caplog):
    def without(name):
        def train(message, _context):
            trained = dict(train_all()(message, _context).content["arrays"].items())
            del trained[name]
            return reply_with(message, record(trained))

        return train

    expected = answered(ask(train_all(), tied_model(), tied=TIED))
    assert_same_arrays(answered(ask(without("decoder"), tied_model(), tied=TIED)), expected)
    assert_withheld(ask(without("encoder"), tied_model(), tied=TIED))
    assert "missing: ['encoder']" in caplog.text


@pytest.mark.parametrize("error", [1e-6, 1.0, math.nan, math.inf])
def test_tied_copies_that_differ_are_withheld(error, caplog):
    """One number of one of them is enough."""
    step = np.zeros((2, 3))
    step[1, 2] = error
    handler = train_all({"encoder": 0.0, "decoder": step, "b": 0.0})
    assert_withheld(ask(handler, tied_model(), tied=TIED))
    assert "'encoder' and 'decoder' must stay equal" in caplog.text
    caplog.clear()
    assert answered(ask(handler, tied_model())), "two arrays may differ"


def test_tied_copies_of_another_shape_are_withheld():
    def train(message, _context):
        trained = dict(train_all()(message, _context).content["arrays"].items())
        trained["decoder"] = Array(numbers(trained["decoder"]).T.copy())
        return reply_with(message, record(trained))

    assert_withheld(ask(train, tied_model(), tied=TIED))


def test_received_copies_that_differ_become_equal():
    """What the second name held is replaced by the first, on both sides."""
    arrays = dict(tied_model().items()) | {"decoder": Array(np.ones((2, 3), np.float32))}
    handler = replying({name: tied_model()[name] for name in ("encoder", "b")})
    got = answered(ask(handler, record(arrays), tied=TIED))
    assert vars(got["decoder"]) == vars(got["encoder"])
    moved, _ = summed(record(arrays), [got], tied=TIED)
    assert vars(moved["decoder"]) == vars(moved["encoder"])


def test_server_releases_tied_weights_as_one_array():
    moved, total = summed(
        tied_model(), [moved_by(tied_model(), 0.5)], noise_std=1.0, tied=TIED, clip_norm=10.0
    )
    assert total.dim == 8
    assert vars(moved["decoder"]) == vars(moved["encoder"])
    single = ArrayRecord({name: tied_model()[name] for name in ("encoder", "b")})
    expected, _ = summed(single, [moved_by(single, 0.5)], noise_std=1.0, clip_norm=10.0)
    assert_same_arrays(moved, expected)


def test_server_does_not_look_at_the_second_copy():
    """A device that lies there moves nothing; and the norm has it once."""
    honest = {"encoder": np.full((2, 3), 1.0 / math.sqrt(6.0)), "b": 0.0}
    for decoder in (honest["encoder"], 0.0, 1e30, math.nan):
        reply = moved_by(tied_model(), honest | {"decoder": decoder})
        moved, total = summed(tied_model(), [reply], clip_norm=1.0, tied=TIED)
        assert total.projected == 0
        step = vector(moved, ["encoder"]) - vector(tied_model(), ["encoder"])
        np.testing.assert_allclose(step, 1.0 / math.sqrt(6.0), rtol=1e-5)
        assert vars(moved["decoder"]) == vars(moved["encoder"])
    _, total = summed(tied_model(), [moved_by(tied_model(), honest)], clip_norm=1.0)
    assert total.projected == 1


@pytest.mark.parametrize("optimiser", [None, FedAdam])
def test_tied_weights_stay_equal_over_rounds(optimiser):
    strategy = make(
        None if optimiser is None else inner(optimiser), noise_multiplier=0.5, tied=TIED
    )
    arrays = tied_model()
    for server_round in (1, 2, 3):
        before = arrays
        arrays, metrics = play(
            strategy, FakeGrid([1, 2]), arrays, devices(train_all(), tied=TIED), server_round
        )
        assert metrics["replies"] == 2
        assert metrics["noise-norm"] == pytest.approx(0.5 * strategy.clip_norm * 8**0.5 / 2)
        assert vars(arrays["decoder"]) == vars(arrays["encoder"])
        assert changed(arrays, before) == {"encoder", "decoder", "b"}


def test_tied_weights_that_are_frozen_come_back_as_they_were():
    """Even if their copies differ, in what was received and in the reply."""
    arrays = record(dict(tied_model().items()) | {"decoder": np.ones((2, 3), np.float32)})
    handler = train_all({"encoder": 1.0, "decoder": 2.0, "b": 0.01})
    got = answered(ask(handler, arrays, trainable="b", tied=TIED))
    assert changed(got, arrays) == {"b"}
    moved, _ = summed(arrays, [got], noise_std=1.0, trainable="b", tied=TIED)
    assert changed(moved, arrays) == {"b"}


# ------------------------------------------------------------------ one norm
def mixed(dtypes):
    """Return a model of zeros in three arrays, and their names."""
    arrays = {}
    for name, dtype, shape in zip("abc", dtypes, [(2, 3), (), (5,)], strict=True):
        zeros = np.zeros(shape)
        arrays[name] = bfloat16(zeros) if dtype == "bfloat16" else zeros.astype(dtype)
    return record(arrays)


def parts_of(update):
    return {"a": update[:6].reshape(2, 3), "b": update[6], "c": update[7:]}


DTYPES = [
    ("float32", "float32", "float32"),
    ("float16", "float32", "float64"),
    ("float64", "float16", "float32"),
    ("bfloat16", "float32", "float16"),
    ("float32", "bfloat16", "float16"),
]


def shortened(update, most):
    return update * min(1.0, most / np.linalg.norm(update))


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("length", [0.5, 2.0, 6.0, 100.0])
def test_update_is_limited_as_one_vector_on_the_device(dtypes, length):
    """The mutants limit each array by itself, and take the longest coordinate for the norm."""
    update = length * random_unit(12, seed=3)
    arrays = mixed(dtypes)
    got = answered(ask(train_all(parts_of(update)), arrays, budget=ALMOST_EXACT))
    mechanism = SeparatedMechanism.from_budget(12, ALMOST_EXACT, MAX_NORM)
    released = vector(got, "abc")
    rounding = 2.0**-8 * MAX_NORM
    assert_near(released, shortened(update, MAX_NORM), mechanism, rounding)
    if length == 6.0:
        alone = [
            shortened(part.ravel(), MAX_NORM)
            for part in map(np.atleast_1d, (update[:6], update[6], update[7:]))
        ]
        for mutant in (np.concatenate(alone), np.clip(update, -MAX_NORM, MAX_NORM)):
            error = np.linalg.norm(mutant - shortened(update, MAX_NORM))
            assert error > 0.5


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("length", [0.5, 2.0, 6.0, 100.0])
def test_update_is_limited_as_one_vector_at_the_server(dtypes, length):
    """Against float64 by hand: the reply is in single precision, the release is rounded once."""
    update = (length * random_unit(12, seed=3)).astype(np.float32).astype(np.float64)
    arrays = mixed(dtypes)
    moved, total = summed(arrays, [moved_by(arrays, parts_of(update))], clip_norm=2.0)
    assert total.projected == (length > 2.0)
    for part, name in zip(np.split(shortened(update, 2.0), [6, 7]), "abc", strict=True):
        digits = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 52}[moved[name].dtype]
        got = numbers(moved[name]).astype(np.float64).ravel()
        np.testing.assert_allclose(got, part, rtol=2.0**-digits + 1e-12, atol=2.0**-25)


# ------------------------------------------------------------------ half precision, on the device
def half(values, dtype):
    """Return float32 numbers rounded to half precision, by NumPy or by a search of neighbours."""
    values = np.asarray(values, np.float32)
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    below = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    above = ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    to_below = np.abs(values.astype(np.float64) - below)
    to_above = np.abs(values.astype(np.float64) - above)
    is_even = (bits >> np.uint32(16)) % 2 == 0  # in the middle, the even one
    return np.where((to_below < to_above) | ((to_below == to_above) & is_even), below, above)


HALVES = ["float16", "bfloat16"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("update", [0.0, 0.25, 64.0])
def test_half_precision_is_that_of_the_result_alone(dtype, update):
    """The numbers of a float32 model with the same values, from the same stream, rounded once."""
    arrays = half_model(dtype)
    wide = record({name: numbers(array).astype(np.float32) for name, array in arrays.items()})
    got = answered(ask(train_all(update), arrays))
    expected = answered(ask(train_all(update), wide))
    assert got["w"].dtype == dtype
    assert got["w"].shape == (2, 3)
    np.testing.assert_array_equal(
        numbers(got["w"]).astype(np.float32), half(numbers(expected["w"]), dtype)
    )
    assert vars(got["b"]) == vars(expected["b"])


@pytest.mark.parametrize("dtype", HALVES)
def test_app_may_reply_in_half_or_in_single_precision(dtype):
    arrays = half_model(dtype)
    values = numbers(arrays["w"]).astype(np.float32) + np.float32(0.25)
    b = numbers(arrays["b"]) + np.float32(0.25)
    same = bfloat16(values) if dtype == "bfloat16" else values.astype(np.float16)
    replies = [
        answered(ask(replying({"w": each, "b": b}), arrays))
        for each in (same, values, values.astype(np.float64))
    ]
    for got in replies[1:]:
        assert_same_arrays(got, replies[0])


def test_bfloat16_under_no_name_is_withheld():
    """Two bytes without a meaning; its log says which array it was."""
    arrays = half_model("bfloat16")
    bare = Array("|V2", (2, 3), "numpy.ndarray", arrays["w"].data)
    assert_withheld(ask(replying({"w": bare, "b": np.zeros(2, np.float32)}), arrays))


LARGEST = {"float16": 65504.0, "bfloat16": LARGEST_BFLOAT16, "float32": 2.0**128 - 2.0**104}


def of_values(values, dtype):
    return record({"w": bfloat16(values) if dtype == "bfloat16" else np.array(values, dtype)})


@pytest.mark.parametrize(
    ("dtype", "value", "step"),
    [
        ("float16", 65504.0, 5000.0),
        ("float16", 60000.0, 20000.0),
        ("bfloat16", LARGEST_BFLOAT16, 2.0**119),
    ],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_beyond_half_precision_are_the_largest_there_is(dtype, value, step, sign, caplog):
    """Never infinite: the server would refuse the reply. The app replies in float64."""
    arrays = of_values([sign * value, 0.0], dtype)
    handler = replying({"w": np.array([sign * (value + step), 0.0])})
    got = answered(ask(handler, arrays, budget=ALMOST_EXACT, max_norm=2.0 * step))
    assert caplog.text == ""  # the update was finite
    assert numbers(got["w"])[0] == sign * LARGEST[dtype]
    assert abs(numbers(got["w"])[1]) < 0.05 * step
    moved, _ = summed(arrays, [got])
    assert numbers(moved["w"])[0] == sign * LARGEST[dtype]


@pytest.mark.parametrize(
    ("dtype", "max_norm"),
    [
        ("float16", 20_000.0),
        ("bfloat16", 2.0**124),
        ("float32", 2.0**124),
    ],
)
def test_noise_on_the_largest_numbers_is_no_trouble(dtype, max_norm):
    """Warnings are errors here, and an error would withhold a reply because of its noise."""
    budget = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=1.0)
    arrays = of_values([LARGEST[dtype], -LARGEST[dtype]], dtype)
    values = []
    for seed in range(20):
        reply = ask(train_all(0.0), arrays, seed=seed, budget=budget, max_norm=max_norm)
        values.append(numbers(answered(reply)["w"]).astype(np.float64))
    assert np.all(np.abs(values) <= LARGEST[dtype])
    kept = np.abs(values) == LARGEST[dtype]
    assert 0 < np.count_nonzero(kept) < kept.size


@pytest.mark.parametrize("dtype", HALVES)
def test_subsets_and_ties_of_half_precision(dtype):
    """LoRA on a frozen model in half precision, with tied adapters."""
    base = half_model(dtype)["w"]
    arrays = ArrayRecord({"base": base, "x.lora_A.w": base, "y.lora_A.w": base})
    options = {"trainable": "*.lora_?.*", "tied": {"y.lora_A.w": "x.lora_A.w"}}
    reply = ask(train_all(0.25), arrays, **options)
    got = answered(reply)
    assert reply.content["metrics"]["ldp-max-output-norm"] == max_output_norm(6)
    assert changed(got, arrays) == {"x.lora_A.w", "y.lora_A.w"}
    assert vars(got["x.lora_A.w"]) == vars(got["y.lora_A.w"])
    moved, total = summed(arrays, [got], noise_std=1.0, **options)
    assert total.dim == 6
    assert changed(moved, arrays) == {"x.lora_A.w", "y.lora_A.w"}
    assert vars(moved["x.lora_A.w"]) == vars(moved["y.lora_A.w"])
    assert moved["x.lora_A.w"].dtype == dtype


def test_bfloat16_beside_float64_on_the_device():
    arrays = record({"w": bfloat16([1.0, 2.0, 4.0]), "d": np.array([0.5, 1.0])})
    update = {"w": [0.5, 0.25, -0.5], "d": [0.25, 0.0]}
    got = answered(ask(train_all(update), arrays, budget=ALMOST_EXACT))
    count = len(got["w"].data) - got["w"].data.index(b"\n") - 1
    assert count == 2 * 3  # bytes
    step = vector(got, "wd") - vector(arrays, "wd")
    np.testing.assert_allclose(step, [0.5, 0.25, -0.5, 0.25, 0.0], atol=0.03)


# ------------------------------------------------------------------ half precision, at the server
@pytest.mark.parametrize("other", ["float32", "float64"])
@pytest.mark.parametrize("dtype", HALVES)
def test_server_sums_half_precision_in_double(dtype, other):
    """Three replies, one too long, against float64 by hand; the result is rounded to the nearest.

    The mutants forget the clipping, and add up in half precision.
    """
    arrays = dict(half_model(dtype).items())
    arrays["b"] = Array(np.array([0.5, -1.0], other))
    arrays = ArrayRecord(arrays)
    digits = {"float16": 11, "bfloat16": 8}[dtype]
    old = vector(arrays, "wb")
    updates = 2.0**-6 * np.random.default_rng(5).integers(-64, 65, (3, 8))
    updates[2] *= 4.0
    replies = []
    for update in updates:
        values = half(old[:6].reshape(2, 3) + update[:6].reshape(2, 3), dtype)
        w = bfloat16(values) if dtype == "bfloat16" else values.astype(np.float16)
        replies.append(record({"w": w, "b": (old[6:] + update[6:]).astype(other)}))
    moved, total = summed(arrays, replies, clip_norm=1.5, divisor=2.0, rate=0.5)
    assert moved["w"].dtype == dtype
    assert moved["b"].dtype == other
    differences = np.array([vector(reply, "wb") - old for reply in replies])
    lengths = np.linalg.norm(differences, axis=1, keepdims=True)
    assert total.projected == np.count_nonzero(lengths > 1.5) > 0

    def check(differences, lengths):
        exact = old + 0.5 * (differences * np.minimum(1.0, 1.5 / lengths)).sum(axis=0) / 2.0
        got = vector(moved, "wb")
        half_a_digit = np.abs(exact[:6]) * 2.0**-digits * (1.0 + 1e-5) + 2.0**-25
        assert np.all(np.abs(got[:6] - exact[:6]) <= half_a_digit)
        np.testing.assert_allclose(got[6:], exact[6:], rtol=1e-6)

    check(differences, lengths)
    assert_detects(check, differences, np.minimum(lengths, 1e-9))


@pytest.mark.parametrize("dtype", HALVES)
def test_small_updates_of_half_precision_are_not_lost_in_the_sum(dtype):
    """1,000 steps of the last digit of 1: at 1.1 and above one step is no longer a number."""
    digit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]

    reply = of_values([1.0 + digit, 0.0], dtype)
    moved, _ = summed(of_values([1.0, 0.0], dtype), [reply] * 1000)
    assert numbers(moved["w"])[0] == half([1.0 + 1000 * digit], dtype)[0]


@pytest.mark.parametrize("dtype", HALVES)
def test_replies_of_half_precision_that_are_not_finite_are_refused(dtype):
    arrays = half_model(dtype)
    total = ClippedSum(arrays, 1.0)
    for value in (math.inf, -math.inf, math.nan):
        bad = np.array([[value, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
        w = bfloat16(bad) if dtype == "bfloat16" else bad.astype(np.float16)
        with pytest.raises(ValueError, match="not finite"):
            total.add(record({"w": w, "b": np.zeros(2, np.float32)}))
    bare = record({"w": half_model(dtype)["w"].numpy().view("V2"), "b": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="has dtype"):
        total.add(bare)


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
def test_models_beyond_their_range_are_the_largest_there_is(dtype):
    """Noise or many updates may take a coordinate there; an infinite model is lost for good."""
    most = LARGEST[dtype]
    less = most / 2 if dtype == "float16" else 0.0
    moved, _ = summed(of_values([most, 0.0], dtype), [of_values([less, 0.0], dtype)], rate=-1.0)
    assert numbers(moved["w"])[0] == np.float32(most)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_round_of_half_precision(dtype):
    """Two devices and a server, without noise: against the mean of the updates."""
    arrays = half_model(dtype)
    strategy = make(clip_norm=math.inf)
    answer = devices(train_all({"w": 0.25, "b": -0.5}), budget=ALMOST_EXACT)
    moved, metrics = play(strategy, FakeGrid([1, 2]), arrays, answer)
    assert metrics["replies"] == 2
    assert moved["w"].dtype == dtype
    step = vector(moved, "wb") - vector(arrays, "wb")
    np.testing.assert_allclose(step, [0.25] * 6 + [-0.5] * 2, atol=0.03)
    noisy, _ = play(make(noise_multiplier=1.0), FakeGrid([1, 2]), arrays, answer)
    assert noisy["w"].dtype == dtype
    assert np.all(numbers(noisy["w"]) != numbers(moved["w"]))


def test_a_server_optimiser_takes_float16():
    arrays = half_model("float16")
    moved, _ = play(make(inner(FedAdam)), FakeGrid([1]), arrays, reply_of(arrays, 0.25))
    assert changed(moved, arrays) == {"w", "b"}
    assert moved["w"].dtype == "float16"


def test_a_server_optimiser_of_bfloat16_is_refused_before_anyone_is_asked():
    """Flower's own cannot compute with numbers that NumPy does not know."""
    asked = []
    with pytest.raises(ValueError, match=r"strategy must only average, .* bfloat16; got FedAdam"):
        play(
            make(inner(FedAdam)), FakeGrid([1]), half_model("bfloat16"), lambda *a: asked.append(a)
        )
    assert asked == []


def reply_of(arrays, update):
    """Return what a device answers that sends a certain update as private."""

    def answer(_index, message):
        return reply_with(message, moved_by(arrays, update), **MARKS)

    return answer
