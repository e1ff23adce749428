"""The root finder: against functions whose roots are known, and in few steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp._numerics import root


def counted(function):
    def counting(x):
        counting.calls += 1
        return function(x)

    counting.calls = 0
    return counting


@pytest.mark.parametrize(
    ("function", "low", "high", "expected"),
    [
        (lambda x: x * x - 2.0, 0.0, 2.0, math.sqrt(2.0)),
        (lambda x: 2.0 - x * x, 0.0, 2.0, math.sqrt(2.0)),
        (math.cos, 0.0, 3.0, math.pi / 2),
        (lambda x: math.expm1(50.0 * (x - 0.25)), 0.0, 1.0, 0.25),
        (lambda x: math.atan(1e6 * (x - 1e-3)), 0.0, 1.0, 1e-3),
        (lambda x: (x - 1.0) ** 3, 0.0, 1.5, 1.0),
        (lambda x: x - 1e-200, 0.0, 1.0, 1e-200),
        (lambda x: x, 0.0, 1.0, 0.0),
        (lambda x: x - 1.0, 0.0, 1.0, 1.0),
        (lambda x: 1.0 if x > 0.3 else -1.0, 0.0, 1.0, 0.3),
    ],
)
def test_roots_are_right_to_the_last_bits(function, low, high, expected):
    function = counted(function)
    assert root(function, low, high) == pytest.approx(
        expected, rel=1e-5 if expected == 1.0 else 1e-15
    )
    assert function.calls < 1500  # 1e-200 is far from 1, by halving


@given(
    scale=st.floats(1e-3, 1e3),
    power=st.floats(0.2, 5.0),
    target=st.floats(1e-6, 1.0 - 1e-6),
)
def test_smooth_functions_take_few_steps(scale, power, target):
    function = counted(lambda x: scale * (x**power - target**power))
    found = root(function, 0.0, 1.0)
    assert function(found) == pytest.approx(0.0, abs=1e-12 * scale)
    assert function.calls < 70


def test_no_change_of_sign_is_refused():
    with pytest.raises(ValueError, match=r"the same sign at 1\.0 and 2\.0"):
        root(lambda x: x, 1.0, 2.0)
