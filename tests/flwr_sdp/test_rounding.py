"""Numbers for people: never below the bound that they stand for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp._rounding import power_of_ten, round_up


@given(value=st.floats(-1e300, 1e300), digits=st.integers(1, 12))
def test_rounded_numbers_are_never_below(value, digits):
    rounded = float(round_up(value, digits))
    assert rounded >= value - 1.1e-12 * abs(value)
    assert rounded <= value + abs(value) * 10.0 ** (1 - digits) + 5e-324


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (8.00049, 4, "8.001"),
        (8.0, 4, "8"),
        (0.02, 6, "0.02"),
        (0.1 + 0.2, 6, "0.3"),
        (0.3000001, 6, "0.300001"),
        (3600.0, 6, "3600"),
        (5.84e4, 2, "5.9e+04"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_examples(value, digits, text):
    assert round_up(value, digits) == text


def test_powers_of_ten_are_never_below():
    """To nearest it would be 10^-2.05e+05: 458 powers of ten too small."""
    assert power_of_ten(-204541.55 * math.log(10.0)) == "10^-2.04e+05"
    assert power_of_ten(-math.log(1000.0)) == "10^-3"
    assert power_of_ten(0.0) == power_of_ten(5.0) == "1 (no protection)"
