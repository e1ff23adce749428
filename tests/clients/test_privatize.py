"""The mechanism for other stacks: arrays in, the same arrays out, private."""

import logging
import math
from collections import OrderedDict, namedtuple
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.clients import privatize_update
from tests.statistics_helpers import assert_detects, assert_mean_close, random_unit

BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
ALMOST_EXACT = SeparatedBudget(epsilon_direction=1e5, epsilon_magnitude=200.0)
MAX_NORM = 2.0


def private(update, *, seed=0, budget=BUDGET, max_norm=MAX_NORM, **options):
    key = seed if isinstance(seed, tuple) else (seed,)
    rng = None if seed is None else seeded_generator(*key)
    return privatize_update(update, budget=budget, max_norm=max_norm, rng=rng, **options)


def by_hand(parts, dtype=np.float32, *, seed=0, budget=BUDGET, max_norm=MAX_NORM):
    """Return what the mechanism makes of the concatenated vector."""
    vector = np.concatenate([np.asarray(part, dtype).ravel() for part in parts])
    mechanism = SeparatedMechanism.from_budget(vector.size, budget, max_norm)
    return mechanism.privatize(vector, seeded_generator(seed))


def flat(arrays):
    return np.concatenate([np.asarray(array).astype(np.float64).ravel() for array in arrays])


def update_of(dtype=np.float32):
    """Return an update of three arrays, one of them a number, one empty."""
    return {
        "w": np.linspace(-0.5, 0.5, 6).reshape(2, 3).astype(dtype),
        "scale": np.array(0.25, dtype),
        "none": np.zeros((0, 3), dtype),
        "b": np.array([0.125, -0.25], dtype),
    }


def tensors(update):
    torch = pytest.importorskip("torch")
    return {name: torch.from_numpy(np.array(array)) for name, array in update.items()}


def assert_same_bits(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


# ------------------------------------------------------------------ what comes out
@pytest.mark.parametrize("make", [dict, OrderedDict], ids=lambda make: make.__name__)
def test_dict_gives_a_dict_of_the_same_names_in_the_same_order(make):
    update = make(reversed(update_of().items()))
    got = private(update)
    assert isinstance(got, dict)
    assert list(got) == list(update)
    for name, array in got.items():
        assert type(array) is np.ndarray
        assert (array.dtype, array.shape) == (update[name].dtype, update[name].shape)
    expected = by_hand(update.values())
    np.testing.assert_array_equal(flat(got.values()), expected)


Pair = namedtuple("Pair", ["weight", "bias"])


@pytest.mark.parametrize("make", [list, tuple, lambda arrays: Pair(*arrays)])
def test_sequences_give_a_list(make):
    arrays = list(update_of().values())[::3]
    got = private(make(arrays))
    assert type(got) is list
    assert [array.shape for array in got] == [(2, 3), (2,)]
    np.testing.assert_array_equal(flat(got), by_hand(arrays))


def test_names_may_be_anything():
    update = dict(zip([1, ("a", 2), None], update_of().values(), strict=False))
    got = private(update)
    assert list(got) == [1, ("a", 2), None]
    np.testing.assert_array_equal(flat(got.values()), by_hand(update.values()))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float32),
    ],
)
def test_numbers_are_those_of_the_mechanism_on_one_vector(dtype, wide):
    """In the order of the arrays, from the same stream; half precision is rounded at the end."""
    update = update_of(dtype)
    got = private(update)
    expected = by_hand(update.values(), wide).astype(dtype)
    assert_same_bits(np.concatenate([array.ravel() for array in got.values()]), expected)
    assert np.all(flat(got.values()) != flat(update.values()))


@pytest.mark.parametrize("order", [("float16", "float64"), ("float64", "float32", "float16")])
def test_one_float64_array_makes_the_vector_float64(order):
    arrays = [np.array([0.1, 0.2, 0.3]).astype(dtype) for dtype in order]
    got = private(arrays)
    expected = np.split(by_hand(arrays, np.float64), len(order))
    for array, part, dtype in zip(got, expected, order, strict=True):
        assert_same_bits(array, part.astype(dtype))


def test_settings_are_those_of_the_mechanism():
    update = update_of(np.float64)
    vector = flat(update.values())
    mechanism = SeparatedMechanism.from_budget(vector.size, BUDGET, 0.3, rule="paper")
    got = private(update, max_norm=0.3, rule="paper")
    np.testing.assert_array_equal(
        flat(got.values()), mechanism.privatize(vector, seeded_generator(0))
    )


def test_threads_make_no_difference():
    update = [np.full(700_000, 1e-3, np.float32), np.full(3, 1e-3, np.float32)]
    for one, two in zip(private(update), private(update, threads=2), strict=True):
        assert_same_bits(one, two)


def test_outputs_are_new_each_time_by_default():
    update = update_of()
    outputs = {flat(private(update, seed=None).values()).tobytes() for _ in range(10)}
    assert len(outputs) == 10


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [0.25, math.nan])
@pytest.mark.parametrize("count", [1, 2])
def test_inputs_are_unchanged_and_share_no_memory_with_outputs(dtype, value, count):
    """A single array too, which needs no joining; and one that is replaced by zeros."""
    update = [np.full((2, 2), value, dtype) for _ in range(count)]
    before = [array.tobytes() for array in update]
    got = private(update)
    for array in got:
        array[...] = 5.0
    assert [array.tobytes() for array in update] == before
    assert not any(np.shares_memory(a, b) for a in got for b in update)


def test_read_only_arrays_are_taken():
    update = update_of()
    for array in update.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(flat(private(update).values()), by_hand(update.values()))


LAYOUTS = {
    "fortran": lambda a: np.asfortranarray(a),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "matrix": lambda a: a.view(type("Sub", (np.ndarray,), {})),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_order_in_memory_does_not_matter(layout, dtype):
    plain = np.linspace(-0.5, 0.5, 12).reshape(3, 4).astype(dtype)
    rearranged = LAYOUTS[layout](plain)
    np.testing.assert_array_equal(rearranged, plain)
    rest = np.ones(2, dtype)
    expected, got = private([plain, rest]), private([rearranged, rest])
    for a, b in zip(got, expected, strict=True):
        assert_same_bits(np.asarray(a), b)


@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=5),
    dtypes=st.lists(st.sampled_from(["f2", "f4", "f8", "i4", "?"]), min_size=5, max_size=5),
)
@settings(max_examples=60)
def test_any_shapes_and_types(shapes, dtypes):
    rng = np.random.default_rng(0)
    update = [
        np.asarray(10 * rng.standard_normal(shape)).astype(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=False)
    ]
    floats = [array for array in update if array.dtype.kind == "f"]
    if sum(array.size for array in floats) < 2:
        with pytest.raises(ValueError, match="dim must be"):
            private(update)
        return
    wide = np.float64 if any(array.dtype == np.float64 for array in floats) else np.float32
    parts = np.split(by_hand(floats, wide), np.cumsum([array.size for array in floats])[:-1])
    for array, given_array in zip(private(update), update, strict=True):
        assert (array.dtype, array.shape) == (given_array.dtype, given_array.shape)
        if given_array.dtype.kind == "f":
            np.testing.assert_array_equal(array.ravel(), parts.pop(0).astype(array.dtype))
        else:
            assert not array.any()


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.uint64])
def test_whole_numbers_come_back_as_zeros_and_count_for_nothing(dtype):
    """A count of batches that was trained is data, and no noise can be put on it."""
    whole = np.array([0, 1, 1], dtype)
    update = update_of()
    got = private({"steps": whole, **update, "more": whole})
    assert list(got) == ["steps", *update, "more"]
    for name in ("steps", "more"):
        assert (got[name].dtype, got[name].shape) == (whole.dtype, whole.shape)
        assert not got[name].any()
    assert whole.any()
    np.testing.assert_array_equal(flat(got[name] for name in update), by_hand(update.values()))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_half_precision_is_never_infinite(sign):
    """The largest output is beyond float16; what leaves the range takes its largest number."""
    update = [np.array([sign * 60_000.0, 0.0], np.float16), np.array([60_000.0], np.float32)]
    for seed in range(10):
        half, single = private(update, seed=seed, budget=ALMOST_EXACT, max_norm=2e5)
        assert np.all(np.isfinite(half))
        assert single[0] == pytest.approx(60_000.0, rel=0.02)
    longest = 0.0
    for seed in range(10):
        half, _ = private(update, seed=seed, max_norm=3e5)
        assert np.all(np.isfinite(half))
        longest = max(longest, float(np.abs(half).max()))
    assert longest == 65504.0


# ------------------------------------------------------------------ one vector
def as_one_vector(update, max_norm, privatize):
    """Check that an update of three arrays is limited in the norm of all of it.

    The bound is five times the root mean square error of the mechanism, and the rounding.
    """
    vector = flat(update)
    mechanism = SeparatedMechanism.from_budget(vector.size, ALMOST_EXACT, max_norm)
    expected = vector * min(1.0, max_norm / np.linalg.norm(vector))
    error = 5.0 * math.sqrt(mechanism.expected_squared_error(float(np.linalg.norm(expected))))
    got = flat(privatize(update))
    assert np.linalg.norm(got - expected) <= error + 2.0**-11 * max_norm < 0.02 * max_norm


@pytest.mark.parametrize("length", [0.5, 2.0, 6.0, 1e4, 1e30])
def test_longer_updates_are_shortened_as_one_vector(length):
    """The mutants limit every array by itself, and do not shorten."""
    vector = length * random_unit(12, seed=2)
    kinds = ("f4", "f8") if length > 1e4 else ("f2", "f8")
    update = [vector[:5].astype(kinds[0]), vector[5].astype("f4"), vector[6:].astype(kinds[1])]
    update = [np.asarray(array) for array in update]
    as_one_vector(update, MAX_NORM, lambda arrays: private(arrays, budget=ALMOST_EXACT))
    if length == 6.0:

        def alone(arrays):
            return [a * min(1.0, MAX_NORM / np.linalg.norm(a)) for a in arrays]

        assert_detects(as_one_vector, update, MAX_NORM, alone)
        assert_detects(as_one_vector, update, MAX_NORM, lambda arrays: arrays)


@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 10.0, 1e6])
def test_outputs_are_no_longer_than_announced(length):
    """The bound is met: that of the mechanism for all coordinates together."""
    update = [array.astype(np.float64) for array in np.split(length * random_unit(9), [4, 5])]
    mechanism = SeparatedMechanism.from_budget(9, BUDGET, MAX_NORM)
    lengths = [np.linalg.norm(flat(private(update, seed=seed))) for seed in range(60)]
    assert max(lengths) <= mechanism.max_output_norm * (1.0 + 1e-12)
    if length >= 10.0:
        assert max(lengths) >= mechanism.max_output_norm * (1.0 - 1e-12)


DRAWS = 4000


def test_mean_of_the_outputs_is_the_update():
    """4,000 draws in 20 dimensions, at 5 standard errors each: false alarms at 1.1e-5.

    The mutants scale the output by 0.9, and shorten the update, of norm 1.5, to half of it (1,000
    draws show that). Rounding to float16, to the nearest, has errors of 2**-10 or less that
    average out; a standard error is 0.0077.
    """
    vector = 1.5 * random_unit(20, seed=4)
    update = {"w": vector[:12].reshape(3, 4).astype(np.float16), "b": vector[12:]}
    exact = flat(update.values())

    def samples(max_norm, draws):
        outputs = (
            private(update, seed=(7, draw), max_norm=max_norm).values() for draw in range(draws)
        )
        return np.array([flat(output) for output in outputs])

    honest = samples(MAX_NORM, DRAWS)
    assert_mean_close(honest, exact)
    assert_detects(assert_mean_close, 0.9 * honest, exact)
    assert_detects(assert_mean_close, samples(0.75, DRAWS // 4), exact)


def test_mutants_of_the_mean_are_far_enough_off():
    """By the exact error of the mechanism: what is cut off or scaled away is beyond the bound."""
    mechanism = SeparatedMechanism.from_budget(20, BUDGET, MAX_NORM)
    along = math.sqrt(mechanism.expected_squared_error(1.5) / 20 / DRAWS)
    assert 0.1 * np.abs(1.5 * random_unit(20, seed=4)).max() > 5.0 * along


# ------------------------------------------------------------------ not finite
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("where", ["w", "scale", "b"])
def test_update_that_is_not_finite_is_released_as_a_zero_update(value, dtype, where, caplog):
    """From one coordinate on; only the log of the device tells, and not which."""
    zero = private({name: np.zeros_like(array) for name, array in update_of(dtype).items()})
    assert caplog.records == []
    bad = update_of(dtype)
    bad[where][(..., -1) if bad[where].ndim else ()] = value
    got = private(bad)
    for name, array in got.items():
        assert_same_bits(array, zero[name])
    (entry,) = caplog.records
    assert entry.name == "flwr_sdp.device"
    assert entry.levelno == logging.WARNING
    assert entry.getMessage() == (
        "the update is not finite: a zero update is released in its place"
    )


def test_finite_updates_are_not_logged(caplog):
    caplog.set_level(logging.DEBUG, "flwr_sdp.device")
    for scale in (0.0, 1.0, 1e30):
        private([np.full(3, scale, np.float32)])
    assert caplog.records == []


def test_whole_numbers_are_always_finite(caplog):
    """Nor does a mask in the form of integers make an update zero."""
    got = private([np.ones(3, np.float32), np.array([np.iinfo(np.int64).max])])
    np.testing.assert_array_equal(got[0], by_hand([np.ones(3)]))
    assert caplog.records == []


# ------------------------------------------------------------------ tied
def test_the_same_array_counts_once():
    weight, bias = np.full((2, 2), 0.5, np.float32), np.full(3, 0.25, np.float32)
    got = private({"encoder": weight, "b": bias, "decoder": weight})
    assert list(got) == ["encoder", "b", "decoder"]
    np.testing.assert_array_equal(got["encoder"], got["decoder"])
    np.testing.assert_array_equal(flat([got["encoder"], got["b"]]), by_hand([weight, bias]))
    three = private([weight, weight, weight])
    for array in three:
        np.testing.assert_array_equal(array.ravel(), by_hand([weight]))


def test_a_view_of_the_same_memory_counts_once():
    weight = np.full((2, 2), 0.5, np.float32)
    got = private([weight, weight[:]])
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[0].ravel(), by_hand([weight]))


def test_equal_arrays_are_not_tied():
    weight = np.full((2, 2), 0.5, np.float32)
    got = private([weight, weight.copy()])
    np.testing.assert_array_equal(flat(got), by_hand([weight, weight]))
    assert np.all(got[0] != got[1])


def test_parts_of_the_same_memory_are_not_tied():
    """They hold other numbers, or the same ones in another order or another shape."""
    weight = np.linspace(-0.5, 0.5, 4, dtype=np.float32).reshape(2, 2)
    for other in (weight.T, weight.reshape(-1), weight[:1], weight[1:], weight[:, ::-1]):
        got = private([weight, other])
        np.testing.assert_array_equal(flat(got), by_hand([weight, other]))


# ------------------------------------------------------------------ bad input
ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (ONES, "update must be a list or a dict of arrays; got ndarray"),
        (None, "update must be a list or a dict of arrays; got NoneType"),
        (5, "update must be a list or a dict of arrays; got int"),
        ("weights", "update must be a list or a dict of arrays; got str"),
        (b"weights", "update must be a list or a dict of arrays; got bytes"),
        ({"w"}, "update must be a list or a dict of arrays; got set"),
        (iter([ONES]), "update must be a list or a dict of arrays; got list_iterator"),
        ([ONES, [1.0, 2.0]], "update must hold NumPy arrays or torch tensors; 1 is of type list"),
        ({"w": ONES, "b": 0.5}, "'b' is of type float"),
        ({"w": ONES, "b": np.float32(0.5)}, "'b' is of type float32"),
        ({"w": ONES, "b": None}, "'b' is of type NoneType"),
        ({"w": {"x": ONES}}, "'w' is of type dict"),
        ([ONES, "text"], "1 is of type str"),
        ([memoryview(ONES)], "0 is of type memoryview"),
        ([ONES, np.ma.masked_array(ONES)], "update must hold whole arrays; 1 is a MaskedArray"),
        ({"b": np.ma.masked_array([1, 2])}, "'b' is a MaskedArray"),
        ({"w": ONES, "z": np.ones(2, complex)}, "'z' is complex128"),
        ([ONES, np.ones(2, np.complex64)], "1 is complex64"),
        (range(3), "0 is of type int"),
    ],
)
def test_what_is_no_update_is_refused_by_name(update, text):
    with pytest.raises(ValueError, match=r"^update must") as caught:
        private(update)
    assert text in str(caught.value)


@pytest.mark.skipif(
    np.dtype(np.longdouble) == np.dtype(np.float64), reason="longdouble is float64 here"
)
def test_longdouble_is_refused():
    with pytest.raises(ValueError, match=r"update must hold floats of .*; 'w' is float"):
        private({"b": ONES, "w": np.ones(2, np.longdouble)})


IN_CLEAR = {
    "big-endian float32": np.ones(3, np.dtype(np.float32).newbyteorder()),
    "big-endian float64": np.ones(3, np.dtype(np.float64).newbyteorder()),
    "big-endian complex": np.ones(3, np.dtype(np.complex64).newbyteorder()),
    "objects": np.array([1.5, 2.5], object),
    "text": np.array(["a secret"]),
    "bytes": np.array([b"a secret"]),
    "records": np.array([(1.5,)], [("a", "f4")]),
    "bfloat16 without ml_dtypes": np.array([0x3FC0], np.uint16).view("V2"),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "durations": np.array([5], "m8[s]"),
}


@pytest.mark.parametrize("kind", list(IN_CLEAR))
def test_nothing_but_whole_numbers_is_returned_in_clear(kind):
    """It is privatized or refused."""

    def outcome():
        try:
            return private([ONES, IN_CLEAR[kind]]), ""
        except ValueError as error:
            return None, str(error)

    got, refusal = outcome()
    if got is None:
        assert refusal.startswith("update must")
        return
    assert got[1].tobytes() != IN_CLEAR[kind].tobytes()
    assert got[1].dtype == IN_CLEAR[kind].dtype


@pytest.mark.parametrize(
    "update",
    [
        [],
        {},
        (),
        [np.ones(1)],
        [np.array(1.0)],
        [np.ones((0, 5))],
        [np.ones(5, int)],
        {"steps": np.ones(5, int), "w": np.ones(1), "none": np.ones(0)},
    ],
)
def test_less_than_two_coordinates_are_refused(update):
    with pytest.raises(ValueError, match=r"dim must be an integer >= 2"):
        private(update)


def test_less_than_two_coordinates_of_tied_arrays_are_refused():
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="dim must be"):
        private([one, one])
    assert len(private([one, one.copy()])) == 2


@pytest.mark.parametrize("budget", [None, 60.0, (50.0, 10.0), {"epsilon_direction": 1.0}])
def test_other_budgets_are_refused(budget):
    with pytest.raises(ValueError, match="budget must be a SeparatedBudget; got"):
        private([ONES], budget=budget)


@pytest.mark.parametrize("max_norm", [0, 0.0, -1, math.nan, math.inf, "5", True, None, [1.0]])
def test_other_norms_are_refused(max_norm):
    with pytest.raises(ValueError, match="max_norm must be a finite number > 0; got"):
        private([ONES], max_norm=max_norm)


@pytest.mark.parametrize("max_norm", [2, np.float32(2.0), np.int64(2), Fraction(2)])
def test_norms_of_other_types_are_numbers(max_norm):
    np.testing.assert_array_equal(private([ONES], max_norm=max_norm)[0], private([ONES])[0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rule": "loose"}, "rule must be one of"),
        ({"threads": 0}, "threads must be an integer"),
        ({"threads": 1.5}, "threads must be an integer"),
    ],
)
def test_other_settings_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        private([ONES], **options)


def test_settings_have_names():
    with pytest.raises(TypeError):
        privatize_update([ONES], BUDGET, MAX_NORM)
    with pytest.raises(TypeError):
        privatize_update([ONES])


def test_budget_beyond_single_precision_is_refused():
    with pytest.raises(ValueError, match="update must be float64 at this budget"):
        private([ONES], max_norm=2e38)
    assert np.all(np.isfinite(private([ONES.astype(np.float64)], max_norm=2e38)[0]))


# ------------------------------------------------------------------ torch
@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tensors_and_arrays_give_the_same_bits(torch, dtype):
    update = update_of(dtype)
    before = {name: array.tobytes() for name, array in update.items()}
    given_tensors = tensors(update)
    got, expected = private(given_tensors), private(update)
    assert list(got) == list(expected)
    for name, tensor in got.items():
        assert type(tensor) is torch.Tensor
        assert tensor.dtype is given_tensors[name].dtype
        assert tensor.device == given_tensors[name].device
        assert_same_bits(tensor.numpy(), expected[name])
        assert given_tensors[name].numpy().tobytes() == before[name]
        tensor.fill_(5.0)
        assert given_tensors[name].numpy().tobytes() == before[name]


def test_lists_and_tuples_of_tensors(torch):
    arrays = list(update_of().values())
    for make in (list, tuple):
        got = private(make(torch.from_numpy(array) for array in arrays))
        assert type(got) is list
        for tensor, array in zip(got, private(arrays), strict=True):
            assert_same_bits(tensor.numpy(), array)


@pytest.mark.parametrize("update", [0.25, math.nan, math.inf])
def test_bfloat16_is_rounded_at_the_end(torch, update, caplog):
    tensor = torch.full((2, 3), update).to(torch.bfloat16)
    rest = torch.full((2,), 0.25)
    before = tensor.clone()
    got = private([tensor, rest])
    is_finite = math.isfinite(update)
    parts = [np.full(6, update), np.full(2, 0.25)] if is_finite else [np.zeros(8)]
    expected = torch.from_numpy(by_hand(parts))
    assert got[0].dtype is torch.bfloat16
    assert got[0].shape == (2, 3)
    assert torch.equal(got[0].ravel(), expected[:6].to(torch.bfloat16))
    assert torch.equal(got[1], expected[6:])
    assert torch.equal(tensor.view(torch.int16), before.view(torch.int16))
    assert ("not finite" in caplog.text) == (not is_finite)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_tensors_of_half_precision_are_never_infinite(torch, name):
    dtype = getattr(torch, name)
    largest = torch.finfo(dtype).max
    update = [torch.tensor([largest, -largest], dtype=dtype), torch.zeros(1, dtype=torch.float64)]
    kept = 0
    for seed in range(10):
        got = private(update, seed=seed, max_norm=4.0 * largest)[0]
        assert got.dtype is dtype
        assert torch.all(torch.isfinite(got))
        kept += int(torch.count_nonzero(got.abs() == largest))
    assert kept > 0


def test_gradients_and_parameters(torch):
    weight = torch.nn.Parameter(torch.full((2, 2), 0.5))
    leaf = torch.full((3,), 0.25, requires_grad=True)
    inner = leaf * 2.0
    got = private({"w": weight, "leaf": leaf, "inner": inner})
    np.testing.assert_array_equal(
        flat(got.values()), by_hand([np.full(4, 0.5), np.full(3, 0.25), np.full(3, 0.5)])
    )
    for tensor in got.values():
        assert type(tensor) is torch.Tensor
        assert not tensor.requires_grad
    assert weight.requires_grad
    assert leaf.grad is None
    inner.sum().backward()  # the graph is whole
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))


def test_tensors_of_other_layouts(torch):
    plain = torch.linspace(-0.5, 0.5, 24).reshape(1, 2, 3, 4)
    expected = private([plain])[0]
    layouts = [
        plain.to(memory_format=torch.channels_last),
        plain.transpose(1, 3).contiguous().transpose(1, 3),
        plain.repeat_interleave(2, dim=3)[..., ::2],
    ]
    for tensor in layouts:
        assert torch.equal(tensor, plain)
        got = private([tensor])[0]
        assert got.shape == tensor.shape
        assert torch.equal(got, expected)
    wide = torch.tensor([0.25]).expand(5)
    np.testing.assert_array_equal(private([wide])[0].numpy(), by_hand([np.full(5, 0.25)]))


def test_whole_numbers_in_tensors(torch):
    whole = [torch.tensor([1, 2]), torch.tensor(True), torch.tensor([3], dtype=torch.uint8)]
    got = private([*whole, torch.full((3,), 0.5)])
    for got_one, one in zip(got, whole, strict=False):
        assert (got_one.dtype, got_one.shape) == (one.dtype, one.shape)
        assert not got_one.any()
    np.testing.assert_array_equal(got[3].numpy(), by_hand([np.full(3, 0.5)]))


def test_scalars_and_empty_tensors(torch):
    update = [torch.tensor(0.5), torch.zeros(0), torch.tensor(0.25), torch.zeros(2, 0)]
    got = private(update)
    assert [tensor.shape for tensor in got] == [tensor.shape for tensor in update]
    np.testing.assert_array_equal(flat(got), by_hand([0.5, 0.25]))


def test_empty_tensors_keep_their_types(torch):
    """All of them lie at address 0."""
    update = [torch.zeros(0), torch.ones(3), torch.zeros(0, dtype=torch.float64)]
    got = private(update)
    assert [tensor.dtype for tensor in got] == [tensor.dtype for tensor in update]


def test_tensors_of_the_same_memory_count_once(torch):
    weight, bias = torch.full((2, 2), 0.5), torch.full((3,), 0.25)
    for tied in (weight, weight.detach(), weight[:], weight.view(2, 2)):
        got = private({"encoder": weight, "b": bias, "decoder": tied})
        assert torch.equal(got["encoder"], got["decoder"])
        np.testing.assert_array_equal(
            flat([got["encoder"], got["b"]]), by_hand([np.full(4, 0.5), np.full(3, 0.25)])
        )


def test_equal_tensors_are_not_tied(torch):
    weight = torch.linspace(-0.5, 0.5, 4).reshape(2, 2)
    for other in (weight.clone(), weight.T, weight.view(-1), weight[1:], weight.flip(0)):
        got = private([weight, other])
        np.testing.assert_array_equal(flat(got), by_hand([weight, other.contiguous()]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_of_a_module_with_tied_weights(torch, dtype):
    """As a language model has them: the layer that reads words is the one that writes them."""
    module = torch.nn.ModuleDict(
        {
            "encoder": torch.nn.Embedding(5, 3),
            "norm": torch.nn.BatchNorm1d(3),
            "decoder": torch.nn.Linear(3, 5, bias=False),
        }
    ).to(getattr(torch, dtype))
    module["decoder"].weight = module["encoder"].weight
    state = module.state_dict()
    assert state["encoder.weight"] is not state["decoder.weight"]
    got = private(state)
    assert list(got) == list(state)
    assert torch.equal(got["encoder.weight"], got["decoder.weight"])
    assert got["norm.num_batches_tracked"] == 0
    once = {
        name: tensor.float()
        for name, tensor in state.items()
        if name not in ("decoder.weight", "norm.num_batches_tracked")
    }
    expected = torch.from_numpy(by_hand(once.values())).to(getattr(torch, dtype)).float()
    np.testing.assert_array_equal(flat(got[name].float() for name in once), expected)
    module.load_state_dict(got)
    assert module["decoder"].weight is module["encoder"].weight


def test_arrays_and_tensors_do_not_mix(torch):
    with pytest.raises(ValueError, match=r"update must be in one place; .*\['NumPy', 'cpu'\]"):
        private([np.ones(3, np.float32), torch.ones(3)])
    with pytest.raises(ValueError, match=r"update must be in one place; .*\['NumPy', 'cpu'\]"):
        private({"w": torch.ones(3), "steps": np.array(3)})
    with pytest.raises(ValueError, match=r"update must be in one place; .*\['cpu', 'meta'\]"):
        private([torch.ones(3), torch.ones(3, device="meta")])


@pytest.mark.parametrize("name", ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_other_types_are_refused(torch, name):
    bad = torch.ones(2).to(getattr(torch, name))
    with pytest.raises(ValueError, match=f"update must hold floats of .*; 'z' is {name}"):
        private({"w": torch.ones(3), "z": bad})


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_tensors_are_not_returned_in_clear(torch):
    """Whole numbers with a scale are an update too, rounded."""
    quantized = torch.quantize_per_tensor(torch.tensor([0.5, -0.25]), 0.01, 0, torch.qint8)
    with pytest.raises(ValueError, match=r"update must hold floats of .*; 1 is qint8"):
        private([torch.ones(3), quantized])


def test_sparse_tensors_are_refused_by_name(torch):
    with pytest.raises(ValueError, match=r"update must hold dense tensors; 'w' is torch.sparse"):
        private({"w": torch.ones(3).to_sparse()})


def test_a_torch_generator_is_taken(torch):
    for update in ([torch.full((3,), 0.25)], [np.full(3, 0.25, np.float32)]):
        outputs = [
            privatize_update(
                update, budget=BUDGET, max_norm=MAX_NORM, rng=torch.Generator().manual_seed(seed)
            )[0]
            for seed in (1, 1, 2)
        ]
        assert np.array_equal(outputs[0], outputs[1])
        assert not np.array_equal(outputs[0], outputs[2])


def test_on_a_gpu(torch):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    update = tensors(update_of())
    got = private({name: tensor.cuda() for name, tensor in update.items()})
    for name, tensor in private(update).items():
        assert got[name].device.type == "cuda"
        assert torch.equal(got[name].cpu(), tensor)


def test_arrays_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    update = [np.full((2, 2), 0.5, ml_dtypes.bfloat16), np.full(3, 0.25, np.float32)]
    got = private(update)
    expected = by_hand([np.full(4, 0.5), np.full(3, 0.25)])
    assert got[0].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got[0].ravel(), expected[:4].astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(got[1], expected[4:])
    with pytest.raises(ValueError, match="0 is float8_e4m3fn"):
        private([np.ones(3, ml_dtypes.float8_e4m3fn)])
