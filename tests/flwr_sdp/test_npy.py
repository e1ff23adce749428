"""NumPy's file format without copies, and bfloat16 in it.

The references are ``numpy.save`` and ``numpy.load`` for the format, and for bfloat16 torch and a
table of all its values.
"""

import io
import struct

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import example, given
from hypothesis import strategies as st

from flwr_sdp import npy
from tests.statistics_helpers import assert_detects

BOOLS_AND_INTS = ["?", "|i1", "|u1", "<i2", ">i2", "<u4", ">i4", "<i8", ">u8"]
FLOATS = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
OTHERS = ["<c8", ">c16", "|S3", "<U2", ">U2", "|V2", "<M8[s]", "<m8[ms]"]
RECORD = np.dtype([("a", "<f4"), ("b", "|i1", (2,))])

arrays = st.builds(
    lambda dtype, shape, order, seed: filled(dtype, shape, order, seed),
    st.sampled_from([*BOOLS_AND_INTS, *FLOATS, *OTHERS, RECORD]),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.sampled_from("CF"),
    st.integers(0, 3),
)


def filled(dtype, shape, order="C", seed=0):
    """Return an array of random bytes, which has NaN, infinities and negative zeros in it."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=int))
    if dtype.kind in "bUS":  # not every pattern of bytes is one of these
        numbers = np.random.default_rng(seed).integers(0, 2, size)
    else:
        numbers = np.ndarray(size, dtype, np.random.default_rng(seed).bytes(size * dtype.itemsize))
    return np.asarray(numbers.astype(dtype).reshape(shape), order=order)


def saved(array, version=None):
    """Return what NumPy writes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=True)
    return file.getvalue()


def loaded(data):
    return np.load(io.BytesIO(data), allow_pickle=False)


def with_header(text, numbers=b"", version=(1, 0)):
    """Return a file with a header of one's own."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text.encode("latin1") + numbers


def facts(descr="<f4", shape="(2,)", order="False"):
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"


def assert_same(got, expected):
    """Same type, shape and bytes, NaN and negative zeros included."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


# ------------------------------------------------------------------ read
@given(array=arrays)
def test_read_is_numpys_load(array):
    data = saved(array)
    assert_same(npy.read(data), loaded(data))
    assert_same(npy.read(data), array)


@given(array=arrays)
def test_read_is_a_view_that_nothing_can_be_written_to(array):
    data = saved(array)
    numbers = npy.read(data)
    if array.size == 0:
        return
    assert np.shares_memory(numbers, np.frombuffer(data, np.uint8))
    assert not numbers.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        numbers[...] = numbers


@pytest.mark.parametrize("order", ["C", "F"])
def test_read_keeps_the_order_in_memory(order):
    array = np.asarray(np.arange(24.0).reshape(2, 3, 4), order=order)
    numbers = npy.read(saved(array))
    assert numbers.flags.f_contiguous == (order == "F")
    assert numbers.strides == array.strides
    np.testing.assert_array_equal(numbers, array)


@given(array=arrays)
def test_long_headers_are_read(array):
    """Version (2, 0) has four bytes for the length of its header."""
    data = saved(array, version=(2, 0))
    assert data[6:8] == b"\x02\x00"
    assert_same(npy.read(data), array)


def test_read_takes_what_flower_serialises():
    array = filled("<f4", (3, 2))
    sent = Array(array)
    assert_same(npy.read(sent.data, sent.dtype), array)


def test_arrays_may_be_followed_by_others():
    """As for ``numpy.load``, which reads one array from a file of several."""
    first, second = filled("<f4", (3,)), filled("<i8", (2, 2))
    assert_same(npy.read(saved(first) + saved(second)), first)


@pytest.mark.parametrize("dtype", ["", "float32", "int8", "nonsense", "BFLOAT16"])
def test_other_names_of_types_say_nothing(dtype):
    array = filled("<f2", (3,))
    assert_same(npy.read(saved(array), dtype), array)


# ------------------------------------------------------------------ write
@given(array=arrays)
def test_write_is_numpys_save(array):
    array = np.ascontiguousarray(array).reshape(array.shape)
    assert npy.write(array, array.shape) == saved(array)


@given(array=arrays)
def test_what_was_written_is_read(array):
    array = np.ascontiguousarray(array).reshape(array.shape)
    data = npy.write(array, array.shape)
    assert_same(npy.read(data), array)
    assert_same(loaded(data), array)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
@pytest.mark.parametrize("given_shape", [(), (1,), (1, 1)])
def test_one_number_takes_any_shape(given_shape, shape):
    number = np.full(given_shape, 1.5, np.float32)
    assert npy.write(number, shape) == saved(number.reshape(shape))


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 2), (1, 6, 1)])
def test_flat_numbers_are_written_in_rows(shape):
    numbers = np.arange(6, dtype=np.float32)
    assert npy.write(numbers, shape) == saved(numbers.reshape(shape))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_nothing_has_a_shape_too(shape):
    assert npy.write(np.empty(0, np.float64), shape) == saved(np.empty(shape))
    assert npy.read(npy.write(np.empty(0, np.float64), shape)).shape == shape


def test_numbers_in_columns_are_contiguous_too():
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(npy.read(npy.write(array, array.shape)), array)


def test_columns_are_written_in_rows_as_bfloat16():
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    data = npy.write(array, array.shape, npy.BFLOAT16)
    np.testing.assert_array_equal(npy.read(data, npy.BFLOAT16), array)


def test_write_leaves_its_numbers_alone():
    for dtype in ("", npy.BFLOAT16):
        numbers = filled("<f4", (8,), seed=1)
        before = numbers.tobytes()
        npy.write(numbers, (8,), dtype)
        assert numbers.tobytes() == before


# ------------------------------------------------------------------ what is no array of numbers
@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, None], object),
        np.array(["text"], object),
        np.array(2.0, object),
        np.empty(0, object),
        np.zeros(2, [("a", "<f4"), ("b", "O")]),
    ],
    ids=["numbers", "text", "scalar", "empty", "record"],
)
def test_objects_are_refused(array):
    """Before a byte of their pickle is read: there may be none."""
    data = saved(array)
    for cut in (data, data[: data.index(b"\n") + 1]):
        with pytest.raises(ValueError, match="array of objects"):
            npy.read(cut)


@given(array=arrays, version=st.sampled_from([(1, 0), (2, 0)]), share=st.floats(0.0, 1.0))
def test_less_than_an_array_is_refused(array, version, share):
    whole = saved(array, version)
    missing = 1 + int(share * (len(whole) - 1))
    with pytest.raises(ValueError, match=r"\w"):
        npy.read(whole[:-missing])


@pytest.mark.parametrize("cut", [1, 3, 4])
def test_part_of_a_number_is_missing(cut):
    with pytest.raises(ValueError, match="not whole"):
        npy.read(saved(np.ones(5, np.float32))[:-cut])


@pytest.mark.parametrize("version", [(3, 0), (0, 0), (1, 1), (2, 1), (255, 255)])
def test_other_versions_are_refused(version):
    data = with_header(facts(), bytes(8), version)
    with pytest.raises(ValueError, match="not an array of plain numbers"):
        npy.read(data)


def test_version_3_of_numpy_is_refused():
    """NumPy writes it for names of fields that are not Latin."""
    array = np.zeros(1, [("größe Ω", "<f4")])
    file = io.BytesIO()
    with pytest.warns(UserWarning, match="format 3.0"):
        np.save(file, array)
    with pytest.raises(ValueError, match="not an array of plain numbers"):
        npy.read(file.getvalue())


@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\x93NUMPY")
@example(data=b"\x93NUMPX\x01\x00")
@example(data=b"PK\x03\x04")
@example(data=b"\x80\x04\x95")
def test_garbage_is_refused(data):
    with pytest.raises(ValueError, match=r"\w"):
        npy.read(data)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "[]",
        "{}",
        "nothing",
        facts(shape="2"),
        facts(shape="(2.0,)"),
        facts(shape="('2',)"),
        facts(order="'yes'"),
        facts(descr="<f3"),
        facts(descr="nothing"),
        facts(descr="|V0"),
        facts(shape="(3,)"),
        facts(shape="(-1, -2)"),
        facts()[:-2] + "'more': 1}",
        "(" * 20_000,
    ],
)
def test_damaged_headers_are_refused(header):
    with pytest.raises(ValueError, match=r"\w"):
        npy.read(with_header(header, bytes(8)))


@pytest.mark.parametrize("shape", ["(-1,)", "(-1, 1)", "(-1, 2)"])
def test_negative_lengths_are_refused(shape):
    with pytest.raises(ValueError, match=r"\w"):
        npy.read(with_header(facts(shape=shape), bytes(8)))


def test_lengths_that_no_memory_has_are_refused():
    with pytest.raises(ValueError, match=r"\w"):
        npy.read(with_header(facts(shape=f"({2**62}, 4)"), bytes(8)))


def test_header_with_an_open_bracket_is_refused():
    with pytest.raises(ValueError, match=r"\w"):
        npy.read(with_header("{", bytes(8)))


# ------------------------------------------------------------------ bfloat16
PATTERNS = np.arange(2**16, dtype=np.uint16)


def value_of(pattern):
    """Return the number of a bfloat16 by the definition: sign, 8 bits of exponent, 7 of fraction.

    Written in Python's own numbers. NaN and the infinities are left out.
    """
    sign = -1.0 if pattern >> 15 else 1.0
    exponent, fraction = pattern >> 7 & 0xFF, pattern & 0x7F
    if exponent == 0:
        return sign * fraction * 2.0**-133
    return sign * (128 + fraction) * 2.0 ** (exponent - 134)


FINITE = PATTERNS[(PATTERNS >> 7 & 0xFF) != 0xFF]
VALUES = np.array([value_of(int(pattern)) for pattern in FINITE], np.float32)


def from_patterns(patterns):
    """Return the numbers of bit patterns, through the format."""
    return npy.read(saved(patterns.view("V2")), npy.BFLOAT16)


def to_patterns(numbers):
    """Return the bit patterns of numbers, through the format."""
    data = npy.write(numbers, numbers.shape, npy.BFLOAT16)
    return loaded(data).view(np.uint16)


def test_every_finite_pattern_means_what_the_definition_says():
    assert len(FINITE) == 2**16 - 2**8
    got = from_patterns(FINITE)
    assert got.dtype == np.float32
    assert_same(got, VALUES)


def test_the_other_patterns_are_nan_and_infinity():
    special = from_patterns(np.setdiff1d(PATTERNS, FINITE))
    assert np.count_nonzero(np.isinf(special)) == 2
    assert np.count_nonzero(np.isnan(special)) == 2**8 - 2


def test_every_finite_pattern_comes_back():
    """Widened and narrowed again: negative zero and the subnormal ones too."""
    np.testing.assert_array_equal(to_patterns(from_patterns(FINITE)), FINITE)
    np.testing.assert_array_equal(to_patterns(VALUES), FINITE)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bfloat16_of_any_shape(shape, order):
    patterns = np.asarray(filled("<u2", shape) & np.uint16(0x7F7F), order=order)
    numbers = from_patterns(patterns)
    assert numbers.shape == shape
    np.testing.assert_array_equal(
        to_patterns(np.ascontiguousarray(numbers).reshape(-1)), (patterns.reshape(-1))
    )
    data = npy.write(np.ascontiguousarray(numbers), shape, npy.BFLOAT16)
    np.testing.assert_array_equal(npy.read(data, npy.BFLOAT16), numbers)
    assert npy.read(data, npy.BFLOAT16).shape == shape
    assert npy.read(data).dtype == np.dtype("V2")


def test_widening_is_a_copy():
    data = saved(np.array([0x3F80], np.uint16).view("V2"))
    numbers = npy.read(data, npy.BFLOAT16)
    numbers[0] = 5.0
    assert npy.read(data, npy.BFLOAT16)[0] == 1.0


def nearest_even(numbers):
    """Return bit patterns by search among all values, without a look at the bits of `numbers`.

    Positive patterns are in the order of their values, so that of two neighbours in the middle of
    which a number lies, the even one is that with the even pattern.
    """
    positive = FINITE[FINITE < 2**15]
    table = np.array([value_of(int(pattern)) for pattern in positive])  # float64: exact
    magnitude = np.abs(numbers.astype(np.float64))
    above = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    left, right = magnitude - table[above - 1], table[above] - magnitude
    is_right = (right < left) | ((right == left) & (positive[above] % 2 == 0))
    return np.where(is_right, positive[above], positive[above - 1]) | np.where(
        np.signbit(numbers), 0x8000, 0
    ).astype(np.uint16)


def hard_numbers():
    """Return every middle between two neighbours, the floats beside it, and random ones."""
    positive = FINITE[FINITE < 2**15].astype(np.uint32)[:-1]
    middles = ((positive << 16) + 0x8000).view(np.float32)
    random = np.random.default_rng(0).integers(0, 0x7F7F_0000, 50_000, dtype=np.uint32)
    numbers = np.concatenate(
        [
            middles,
            np.nextafter(middles, np.float32(0.0)),
            np.nextafter(middles, np.float32(np.inf)),
            random.view(np.float32),
        ]
    )
    return np.concatenate([numbers, -numbers])


def check_rounding(round_numbers):
    numbers = hard_numbers()
    np.testing.assert_array_equal(round_numbers(numbers), nearest_even(numbers))


def test_rounding_is_to_the_nearest_and_to_even_in_the_middle():
    """The mutants cut off, and round up in the middle."""
    check_rounding(to_patterns)
    bits = {
        "cut": lambda x: (x.view(np.uint32) >> 16).astype(np.uint16),
        "half up": lambda x: ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16),
    }
    for mutant in bits.values():
        assert_detects(check_rounding, mutant)


def test_rounding_is_that_of_torch():
    torch = pytest.importorskip("torch")
    numbers = hard_numbers()
    expected = torch.from_numpy(numbers).to(torch.bfloat16)
    np.testing.assert_array_equal(to_patterns(numbers), expected.view(torch.uint16).numpy())
    every = torch.from_numpy(FINITE.copy()).view(torch.bfloat16).float().numpy()
    assert_same(from_patterns(FINITE), every)


def test_arrays_of_ml_dtypes_are_read():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = VALUES[::37].reshape(5, -1).astype(ml_dtypes.bfloat16)
    for sent in (Array(array), Array(np.asfortranarray(array))):
        assert sent.dtype == npy.BFLOAT16
        np.testing.assert_array_equal(npy.read(sent.data, sent.dtype), array.astype(np.float32))
    back = npy.read(npy.write(array.astype(np.float32), array.shape, npy.BFLOAT16))
    np.testing.assert_array_equal(back.view(ml_dtypes.bfloat16), array)


@pytest.mark.parametrize("descr", ["<V2", "|V2", ">V2"])
def test_bfloat16_may_be_written_down_in_three_ways(descr):
    """``numpy.save`` of an array of ml_dtypes gives the first, this module the second."""
    data = with_header(facts(descr), struct.pack("<2H", 0x3FC0, 0xC000))
    np.testing.assert_array_equal(npy.read(data, npy.BFLOAT16), [1.5, -2.0])


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "|u1"])
def test_numbers_of_another_width_are_not_taken_for_bfloat16(dtype):
    array = filled(dtype, (4,))
    assert_same(npy.read(saved(array), npy.BFLOAT16), array)


# ------------------------------------------------------------------ names of types
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", ">f4", "<f8"])
def test_floats_are_floats(dtype):
    assert npy.is_float(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "complex64", "|V2", "<U3", "object"])
def test_nothing_else_is(dtype):
    assert not npy.is_float(dtype)


def test_records_are_not_floats():
    assert not npy.is_float(str(RECORD))


def test_largest():
    assert npy.largest("float16") == 65504.0
    assert npy.largest("float32") == 2.0**128 - 2.0**104
    assert npy.largest("float64") == 2.0**1023 * (2.0 - 2.0**-52)
    assert npy.largest("bfloat16") == 2.0**128 - 2.0**120 == VALUES.max()
    assert npy.largest(">f4") == npy.largest("float32")


def test_largest_survives_narrowing():
    for sign in (1.0, -1.0):
        number = np.array([sign * npy.largest("bfloat16")], np.float32)
        np.testing.assert_array_equal(from_patterns(to_patterns(number)), number)
