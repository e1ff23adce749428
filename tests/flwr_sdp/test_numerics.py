"""The root finder: against functions whose roots are known, and in few steps. The quadrature."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp._numerics import gauss_legendre, root


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


# ------------------------------------------------------------------ quadrature
@pytest.mark.parametrize("count", [2, 4, 20, 96])
def test_nodes_and_weights_are_right_to_their_last_digits(count):
    """Against Newton's method in 50 digits, from Tricomi's estimates."""
    nodes, weights = gauss_legendre(count)
    with mpmath.workdps(50):
        for node, weight, i in zip(nodes, weights, range(count, 0, -1), strict=True):
            x = mpmath.cos(mpmath.pi * (i - mpmath.mpf(1) / 4) / (count + mpmath.mpf(1) / 2))
            for _ in range(6):
                p, before = mpmath.legendre(count, x), mpmath.legendre(count - 1, x)
                slope = count * (x * p - before) / (x * x - 1)
                x -= p / slope
            assert node == float((1 + x) / 2)
            assert weight == float(1 / ((1 - x * x) * slope**2))


@pytest.mark.parametrize("rate", [1e-3, 1.0, 46.0])
def test_exponentials_are_integrated_to_the_last_digits(rate):
    nodes, weights = gauss_legendre(96)
    integral = math.fsum(weights * np.exp(-rate * nodes))
    assert integral == pytest.approx(-math.expm1(-rate) / rate, rel=4e-16)
