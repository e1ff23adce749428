"""Between a model and the flat update."""

import dataclasses
from math import prod

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp.clients import BATCH_NORM_STATISTICS, UpdateLayout
from flwr_sdp.released import Selection
from tests.messages import numpy_dict, record


def layout(arrays, excluded=BATCH_NORM_STATISTICS):
    return UpdateLayout.of(record(arrays), Selection(excluded=excluded))


MIXED = {
    "bn.running_mean": np.ones(4, np.float32),
    "bn.weight": np.arange(4, dtype=np.float32),
    "steps": np.array(7, np.int64),
    "mask": np.array([True, False]),
    "head.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "temperature": np.array(2.0, np.float32),
    "bn.num_batches_tracked": np.array(3, np.int64),
    "bn.running_var": np.ones(4, np.float32),
}
RELEASED = ("bn.weight", "head.weight", "temperature")


# ------------------------------------------------------------------ what counts
def test_released_arrays_are_the_trained_floats():
    parts = layout(MIXED)
    assert parts.released == RELEASED
    assert parts.dim == 4 + 6 + 1
    assert list(parts.received) == list(MIXED)


def test_excluded_patterns_replace_the_default():
    parts = layout(MIXED, ("head.*", "temp*"))
    assert parts.released == ("bn.running_mean", "bn.weight", "bn.running_var")


@pytest.mark.parametrize("name", ["bn.Running_mean", "running_means", "weight"])
def test_patterns_match_whole_names_with_case(name):
    assert layout({name: np.ones(2)}).released == (name,)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float16"], "float32"),
        (["float32"], "float32"),
        (["float16", "float32"], "float32"),
        (["float32", "float64"], "float64"),
        (["float64"], "float64"),
        (["float32", "int64"], "float32"),
    ],
)
def test_vector_is_as_wide_as_the_widest_array(dtypes, expected):
    arrays = {f"a{i}": np.zeros(3, dtype) for i, dtype in enumerate(dtypes)}
    parts = layout(arrays)
    assert parts.dtype == np.dtype(expected)
    assert parts.difference(record(arrays)).dtype == np.dtype(expected)


def test_width_does_not_depend_on_excluded_arrays():
    arrays = {"w": np.zeros(2, np.float32), "bn.running_mean": np.zeros(2, np.float64)}
    assert layout(arrays).dtype == np.float32


@pytest.mark.parametrize("arrays", [{}, {"steps": np.array(3)}, {"mask": np.array([True])}])
def test_models_without_floats_have_no_coordinates(arrays):
    parts = layout(arrays)
    assert parts.dim == 0
    assert parts.difference(record(arrays)).size == 0


def test_layout_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout(MIXED).released = ()


# ------------------------------------------------------------------ there and back
@st.composite
def models(draw):
    """Received and trained models of any shapes, with whole numbers so that floats are exact."""
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    dtypes = st.sampled_from(["float16", "float32", "float64", "int64", "bool"])
    received, trained = {}, {}
    for index in range(draw(st.integers(1, 5))):
        shape, dtype = draw(shapes), draw(dtypes)
        numbers = st.lists(st.integers(-50, 50), min_size=prod(shape), max_size=prod(shape))
        for model in (received, trained):
            model[f"a{index}"] = np.array(draw(numbers)).reshape(shape).astype(dtype)
    return received, trained


@given(pair=models())
def test_received_plus_difference_is_trained(pair):
    received, trained = pair
    parts = layout(received)
    update = parts.difference(record(trained))
    assert update.shape == (parts.dim,)
    back = parts.apply(update)
    assert list(back) == list(received)
    for name, array in numpy_dict(back).items():
        expected = trained[name] if name in parts.released else received[name]
        assert array.dtype == received[name].dtype
        np.testing.assert_array_equal(array, expected)
        assert array.shape == received[name].shape


def test_coordinates_lie_in_the_order_of_the_received_model():
    arrays = {"a": np.zeros((2, 2)), "b": np.zeros(()), "c": np.zeros(3)}
    trained = {"c": [6.0, 7.0, 8.0], "a": [[1.0, 2.0], [3.0, 4.0]], "b": 5.0}
    np.testing.assert_array_equal(
        layout(arrays).difference(record(trained)), [1, 2, 3, 4, 5, 6, 7, 8]
    )


def test_half_precision_is_subtracted_in_single():
    """2048 + 1 is not a float16; its difference from 1 is exact in float32 only."""
    parts = layout({"w": np.array([1.0], np.float16)})
    assert parts.difference(record({"w": np.array([2048.0], np.float16)}))[0] == 2047.0


def test_wider_reply_is_taken_in_the_layout_width():
    parts = layout({"w": np.zeros(2, np.float32)})
    update = parts.difference(record({"w": np.array([0.25, 0.5], np.float64)}))
    assert update.dtype == np.float32
    np.testing.assert_array_equal(update, [0.25, 0.5])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_do_not_fit_pass_without_a_warning(value):
    update = layout({"w": np.zeros(2, np.float32)}).difference(record({"w": [value, 1.0]}))
    assert not np.isfinite(update[0])
    assert update[1] == 1.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_result_too_large_for_half_precision_is_the_largest_there_is(sign):
    """Infinity would be refused by a server, and the report wasted."""
    parts = layout({"w": np.array([sign * 60000.0], np.float16)})
    moved = parts.apply(np.array([sign * 60000.0], np.float32))["w"].numpy()
    assert moved[0] == sign * np.finfo(np.float16).max


def test_difference_of_equal_infinities_is_not_finite():
    parts = layout({"w": np.array([np.inf, 0.0])})
    assert np.isnan(parts.difference(record({"w": [np.inf, 0.0]}))[0])


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("trained", "match"),
    [
        ({"a": [0.0]}, r"missing: \['b'\]"),
        ({}, r"missing: \['a', 'b'\]"),
        ({"a": [0.0], "b": [0.0], "c": [0.0]}, r"unknown: 1 array"),
        ({"a": [0.0], "c": [0.0]}, r"missing: \['b'\], unknown: 1"),
        ({"a": [0.0, 0.0], "b": [0.0]}, r"'a' must keep its shape \(1,\)"),
        ({"a": [[0.0]], "b": [0.0]}, r"'a' must keep its shape \(1,\)"),
        ({"a": 0.0, "b": [0.0]}, r"'a' must keep its shape \(1,\)"),
    ],
)
def test_other_arrays_are_refused(trained, match):
    parts = layout({"a": np.zeros(1), "b": np.zeros(1)})
    with pytest.raises(ValueError, match=match):
        parts.difference(record(trained))


def test_arrays_that_are_not_released_may_be_missing():
    parts = layout({"w": np.zeros(2), "steps": np.array(1)})
    np.testing.assert_array_equal(parts.difference(record({"w": np.ones(2)})), [1.0, 1.0])
    assert list(parts.apply(np.ones(2))) == ["w", "steps"]


def test_refusal_names_no_value_and_no_name_of_the_app():
    parts = layout({"a": np.zeros(2)})
    for trained in ({"a": [123.456] * 3}, {"a": [123.456, 0.0], "patient-77": [0.0]}):
        with pytest.raises(ValueError, match="must") as caught:
            parts.difference(record(trained))
        assert "123.456" not in str(caught.value)
        assert "patient" not in str(caught.value)


# ------------------------------------------------------------------ held by value
def test_received_model_is_held_by_value():
    arrays = record({"w": np.zeros(3), "steps": np.array(1)})
    parts = UpdateLayout.of(arrays, ())
    arrays["w"].data = Array(np.full(3, 9.0)).data
    arrays["w"].shape = (1, 3)
    arrays["steps"] = Array(np.array(5))
    np.testing.assert_array_equal(parts.difference(record({"w": np.ones(3), "steps": 0})), 1.0)
    back = numpy_dict(parts.apply(np.ones(3)))
    np.testing.assert_array_equal(back["w"], 1.0)
    assert back["steps"] == 1


def test_apply_leaves_the_update_and_the_layout_alone():
    parts, update = layout({"w": np.zeros(3)}), np.ones(3)
    first = parts.apply(update)
    update[...] = 5.0
    np.testing.assert_array_equal(first["w"].numpy(), 1.0)
    np.testing.assert_array_equal(parts.received["w"].numpy(), 0.0)


def test_empty_record_is_an_empty_layout():
    assert UpdateLayout.of(ArrayRecord(), ()).dim == 0
