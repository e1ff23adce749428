"""The exact risk on the sphere, against high precision, brute force and finite differences."""

import math

import mpmath
import numpy as np
import pytest

from flwr_sdp import seeded_generator
from simulations.streams.sphere_risk import SphereRisk
from simulations.streams.users import on_sphere
from tests.statistics_helpers import assert_detects, assert_mean_close

SIGNAL = 4.0


def high_precision_gap(dim, norm, along):
    """L(theta) - L(theta*) from its definition, with 30 digits."""
    with mpmath.workdps(30):
        constant = mpmath.gamma(mpmath.mpf(dim) / 2) / (
            mpmath.sqrt(mpmath.pi) * mpmath.gamma(mpmath.mpf(dim - 1) / 2)
        )

        def mean(function):
            def integrand(angle):
                sine = mpmath.sin(angle)
                return (function(sine) + function(-sine)) * mpmath.cos(angle) ** (dim - 2)

            points = [0, *(mpmath.pi / 2 * mpmath.mpf(2) ** -k for k in range(8, -1, -1))]
            return constant * mpmath.quad(integrand, points)

        pull = mean(lambda t: t / (1 + mpmath.exp(-SIGNAL * t)))
        risks = [
            mean(lambda t, r=r: mpmath.log(1 + mpmath.exp(r * t))) - pull * a
            for r, a in ((norm, along), (SIGNAL, SIGNAL))
        ]
        return float(risks[0] - risks[1])


@pytest.mark.parametrize("dim", [2, 3, 7, 500])
@pytest.mark.parametrize(("norm", "along"), [(0.0, 0.0), (1.5, -0.7), (4.0, 3.0), (60.0, 2.0)])
def test_gap_agrees_with_high_precision(dim, norm, along):
    exact = high_precision_gap(dim, norm, along)
    gap = SphereRisk(dim, SIGNAL).gap(np.array([norm]), np.array([along]))[0]
    assert gap == pytest.approx(exact, abs=1e-11)


def test_gap_agrees_with_brute_force_in_three_dimensions():
    """400,000 users, 5 standard errors: 5.7e-7 false alarms; a signal 3% off is noticed."""
    rng = seeded_generator(1)
    truth, theta = np.array([0.0, 0.0, SIGNAL]), np.array([1.0, -2.0, 0.5])
    x = on_sphere(400_000, 3, rng).astype(np.float64)
    y = np.where(rng.uniforms(len(x)) < 1.0 / (1.0 + np.exp(-x @ truth)), 1.0, -1.0)
    excess = np.logaddexp(0.0, -y * (x @ theta)) - np.logaddexp(0.0, -y * (x @ truth))

    def check(signal):
        measure = SphereRisk(3, signal).measure(truth[None] * signal / SIGNAL)
        assert_mean_close(excess, measure(theta[None])[0][0])

    check(SIGNAL)
    assert_detects(check, 1.03 * SIGNAL)


def test_gap_is_zero_at_the_truth_and_nowhere_negative():
    truths = SIGNAL * on_sphere(50, 12, seeded_generator(2)).astype(np.float64)
    truths *= SIGNAL / np.linalg.norm(truths, axis=1, keepdims=True)
    measure = SphereRisk(12, SIGNAL).measure(truths)
    gap, error = measure(truths)
    np.testing.assert_allclose(gap, 0.0, atol=1e-14)
    np.testing.assert_allclose(error, 0.0)
    gap, error = measure(truths[::-1])
    assert gap.min() > 0.0
    np.testing.assert_allclose(error, np.linalg.norm(truths - truths[::-1], axis=1))


@pytest.mark.parametrize("dim", [2, 3, 10, 500])
def test_curvature_is_that_of_the_gap(dim):
    risk, step = SphereRisk(dim, SIGNAL), 1e-3
    along, across = risk.curvature
    moved = risk.gap(
        np.array([SIGNAL + step, SIGNAL - step]), np.array([SIGNAL + step, SIGNAL - step])
    )
    assert moved.mean() * 2.0 / step**2 == pytest.approx(along, rel=1e-4)
    sideways = risk.gap(np.array([math.hypot(SIGNAL, step)]), np.array([SIGNAL]))[0]
    assert 2.0 * sideways / step**2 == pytest.approx(across, rel=1e-4)
