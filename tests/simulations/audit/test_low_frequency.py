"""The best estimate of an image's coarse content."""

from functools import cache

import numpy as np
import pytest
from scipy.fft import dctn

from flwr_sdp import PrivUnit, seeded_generator
from flwr_sdp.reconstruction import breach_probability
from simulations.audit import images
from simulations.audit.low_frequency import lowest_frequencies, target
from tests.simulations.audit.checks import assert_rate_at_most
from tests.statistics_helpers import DotLaw, assert_detects, assert_frequency

TRIALS = 20_000


@cache
def reached(epsilon, count, seed=0):
    basis = lowest_frequencies(8, count)
    rng = seeded_generator(seed, count, repr(epsilon))
    private = images.uniform_directions(TRIALS, 64, rng)
    released = PrivUnit.from_epsilon(64, epsilon).privatize(private, rng)
    return images.cosines(target(released, basis), target(private, basis))


def test_waves_are_the_slowest_of_the_cosine_transform():
    waves = lowest_frequencies(8, 64)
    np.testing.assert_allclose(waves @ waves.T, np.eye(64), atol=1e-12)
    image = np.random.default_rng(0).random((8, 8))
    transform = dctn(image, norm="ortho")
    slowest = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)]
    np.testing.assert_allclose(
        lowest_frequencies(8, 6) @ image.ravel(), [transform[pair] for pair in slowest], atol=1e-12
    )
    np.testing.assert_array_equal(waves[:16], lowest_frequencies(8, 16))


def test_everything_is_recovered_without_privacy():
    private = images.digits(100, seeded_generator(0)).pixels
    basis = lowest_frequencies(8, 16)
    truth = target(private, basis)
    assert images.cosines(target(3.0 * images.unit(private), basis), truth).min() > 1.0 - 1e-9
    assert np.median(images.cosines(truth[::-1], truth)) < 0.95


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
@pytest.mark.parametrize("count", [4, 16, 64])
@pytest.mark.parametrize("tolerance", [0.3, 0.7])
def test_success_is_below_the_bound(epsilon, count, tolerance):
    bound = breach_probability(epsilon=epsilon, dim_target=count, tolerance=tolerance, rule="tight")
    assert_rate_at_most(reached(epsilon, count) >= tolerance, bound)


def test_a_bound_for_less_than_was_spent_is_broken():
    bound = breach_probability(epsilon=2.0, dim_target=16, tolerance=0.7, rule="tight")
    assert_detects(assert_rate_at_most, reached(20.0, 16) >= 0.7, bound)


@pytest.mark.parametrize("epsilon", [2.0, 20.0])
def test_success_on_the_whole_image_is_the_exact_law(epsilon):
    mechanism = PrivUnit.from_epsilon(64, epsilon)
    for tolerance in (0.2, 0.5):
        expected = 1.0 - float(DotLaw.of(mechanism).cdf(tolerance))
        assert_frequency(np.sum(reached(epsilon, 64) >= tolerance), TRIALS, expected)


def test_no_other_linear_estimate_is_better():
    """Weighting the waves otherwise, or mixing in others, finds less."""
    basis, rng = lowest_frequencies(8, 16), seeded_generator(9)
    private = images.uniform_directions(TRIALS, 64, rng)
    released = PrivUnit.from_epsilon(64, 10.0).privatize(private, rng)
    truth = target(private, basis)
    best = np.mean(images.cosines(target(released, basis), truth) >= 0.5)
    weights = np.linspace(1.0, 3.0, 16)[:, None]
    others = [weights * basis, basis + 0.5 * lowest_frequencies(8, 32)[16:]]
    for other in others:
        assert np.mean(images.cosines(target(released, other), truth) >= 0.5) < 0.95 * best
