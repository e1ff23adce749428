"""Privacy loss of sampled Gaussians: never below the exact value, and close to it.

The oracles are closed forms and integrals in mpmath, and dp-accounting's own distributions, rounded
up and down. dp-accounting serves at deltas of 1e-10 and above: below, its FFT has no digits left.
"""

import math
import random

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from mpmath import exp, mpf
from scipy import stats

from flwr_sdp.strategies import privacy_loss
from flwr_sdp.strategies.privacy_loss import (
    PrivacyLoss,
    SampledGaussian,
    gaussian_delta,
    gaussian_epsilon,
)
from tests.statistics_helpers import assert_detects
from tests.strategies.exact_losses import (
    cdf,
    delta_add,
    delta_remove,
    exact_delta,
    exact_delta_of_two,
)


def release(rate, noise_multiplier):
    return SampledGaussian(sampling_rate=rate, noise_multiplier=noise_multiplier)


def epsilon_of(rate, noise_multiplier, rounds, delta):
    return PrivacyLoss().epsilon({release(rate, noise_multiplier): rounds}, delta)


def assert_tight(epsilon, delta, exact, looseness=0.003):
    """Check that epsilon is a bound at delta, and less than `looseness` above the smallest one."""
    assert exact(epsilon) <= delta, "too small an epsilon"
    assert epsilon == 0 or exact(epsilon * (1 - looseness)) > delta, "too large an epsilon"


# ------------------------------------------------------------------ the plain Gaussian
def exact_gaussian_delta(noise_multiplier, epsilon):
    """Theorem 8 of Balle and Wang as printed; 50 digits can afford its cancellation."""
    mu, epsilon = 1 / mpf(noise_multiplier), mpf(epsilon)
    return cdf(mu / 2 - epsilon / mu) - exp(epsilon) * cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-5, 1e-9, 1e-18, 1e-40])
@pytest.mark.parametrize("noise_multiplier", [0.05, 0.3, 1.0, 5.0, 300.0, 1e5])
def test_gaussian_epsilon_is_exact(noise_multiplier, delta):
    epsilon = gaussian_epsilon(noise_multiplier, delta)
    assert_tight(epsilon, delta, lambda e: exact_gaussian_delta(noise_multiplier, e), 1e-7)
    assert gaussian_delta(noise_multiplier, epsilon) <= delta


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("noise_multiplier", [0.2, 1.0, 20.0])
def test_gaussian_delta_is_exact(noise_multiplier, epsilon):
    exact = exact_gaussian_delta(noise_multiplier, epsilon)
    assert gaussian_delta(noise_multiplier, epsilon) == pytest.approx(float(exact), rel=1e-11)


def test_hardly_any_noise_has_a_finite_epsilon():
    """1 / (2 z^2) + Phi^-1(1 - delta) / z, up to lower orders."""
    epsilon = gaussian_epsilon(1e-6, 1e-5)
    assert epsilon == pytest.approx(0.5e12 + 1e6 * stats.norm.isf(1e-5), rel=1e-10)


def test_unsampled_releases_compose_exactly():
    counts = {release(1.0, 2.0): 3, release(1.0, 5.0): 10}
    assert PrivacyLoss().epsilon(counts, 1e-6) == gaussian_epsilon((3 / 4 + 10 / 25) ** -0.5, 1e-6)


# ------------------------------------------------------------------ one and two sampled releases
ONE = [
    (0.01, 1.0, 1e-5),
    (0.002, 1.0, 1e-9),
    (0.5, 0.3, 1e-6),
    (0.3, 20.0, 1e-8),
    (0.9, 0.05, 1e-5),
    (1e-7, 1.0, 1e-9),
    (1e-7, 0.3, 1e-9),
    (0.01, 0.3, 1e-18),
    (0.1, 1.0, 1e-18),
    (0.05, 3.0, 1e-30),
    (1 - 1e-9, 1.0, 1e-12),
]


@pytest.mark.parametrize(("rate", "noise_multiplier", "delta"), ONE)
def test_one_release_is_bounded_tightly(rate, noise_multiplier, delta):
    epsilon = epsilon_of(rate, noise_multiplier, 1, delta)
    assert_tight(epsilon, delta, lambda e: exact_delta(rate, noise_multiplier, e))


@pytest.mark.parametrize(
    ("factor", "rate_factor"), [(1.05, 1.0), (1 / 1.05, 1.0), (1.0, 1.05), (1.0, 0.95)]
)
def test_a_wrong_noise_multiplier_or_rate_would_show(factor, rate_factor):
    rate, noise_multiplier, delta = 0.01, 1.0, 1e-5
    epsilon = epsilon_of(rate * rate_factor, noise_multiplier * factor, 1, delta)
    assert_detects(assert_tight, epsilon, delta, lambda e: exact_delta(rate, noise_multiplier, e))


@pytest.mark.parametrize("exact_direction", [delta_remove, delta_add])
@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "delta"), [(0.5, 1.0, 1e-5), (0.01, 5.0, 1e-7), (0.9, 0.5, 1e-18)]
)
def test_either_direction_is_bounded_tightly(exact_direction, rate, noise_multiplier, delta):
    """For one release, removing a client costs more; adding one is computed all the same."""
    counts, remove = {release(rate, noise_multiplier): 1}, exact_direction is delta_remove
    epsilon = PrivacyLoss()._epsilon(counts, delta, remove, 0.0)
    q, z = mpf(rate), mpf(noise_multiplier)
    assert_tight(epsilon, delta, lambda e: exact_direction(q, z, mpf(e)))
    assert epsilon <= PrivacyLoss().epsilon(counts, delta)


def test_a_missing_direction_would_show():
    rate, noise_multiplier, delta = 0.01, 1.0, 1e-5
    epsilon = PrivacyLoss()._epsilon({release(rate, noise_multiplier): 1}, delta, False, 0.0)
    assert_detects(assert_tight, epsilon, delta, lambda e: exact_delta(rate, noise_multiplier, e))


def test_random_single_releases_are_never_underestimated():
    """20 settings over eight orders of magnitude of the rate and 40 of delta."""
    draw = random.Random(11)  # noqa: S311 - a reproducible grid
    for _ in range(20):
        rate = 10 ** draw.uniform(-8, -0.001)
        noise_multiplier = 10 ** draw.uniform(-1.5, 2)
        delta = 10 ** draw.uniform(-40, -1)
        epsilon = epsilon_of(rate, noise_multiplier, 1, delta)
        assert exact_delta(rate, noise_multiplier, epsilon) <= delta, (
            rate,
            noise_multiplier,
            delta,
        )


@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "delta"),
    [
        (0.000618, 0.625, 6.13e-11),
        (0.003, 0.35, 1e-18),
    ],
)
def test_two_releases_are_bounded_tightly(rate, noise_multiplier, delta):
    """The last digits of the integral are not exact: it is held to within 1e-6 of delta."""
    epsilon = epsilon_of(rate, noise_multiplier, 2, delta)
    exact = exact_delta_of_two(rate, noise_multiplier, epsilon)
    assert exact <= delta * (1 + 1e-6)
    assert exact_delta_of_two(rate, noise_multiplier, epsilon * 0.995) > delta


# ------------------------------------------------------------------ many releases
@pytest.mark.parametrize(
    ("noise_multiplier", "rounds", "delta"),
    [(1.0, 50, 1e-5), (5.0, 5000, 1e-18), (30.0, 1000, 1e-9), (2.0, 10, 1e-100), (0.1, 3, 1e-6)],
)
def test_many_releases_match_the_closed_form_where_there_is_one(noise_multiplier, rounds, delta):
    """At a rate of nearly 1 the whole machinery has to find the exact value of the Gaussian."""
    counts = {release(1 - 1e-13, noise_multiplier): rounds}
    loss = PrivacyLoss()
    epsilon = max(loss._epsilon(counts, delta, remove, 0.0) for remove in (True, False))
    exact = gaussian_epsilon(noise_multiplier / math.sqrt(rounds), delta)
    assert exact * (1 - 1e-9) <= epsilon <= exact * 1.002


@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "rounds", "delta"),
    [
        (0.01, 1.0, 200, 1e-9),
        (0.002, 1.0, 100, 1e-9),
        (0.1, 4.0, 100, 1e-9),
        (0.3, 2.0, 40, 1e-3),
    ],
)
def test_many_releases_lie_between_the_roundings_of_dp_accounting(
    rate, noise_multiplier, rounds, delta
):
    low, high = (
        privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-4,
            use_connect_dots=False,
        )
        .self_compose(rounds)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )
    assert low < high
    epsilon = epsilon_of(rate, noise_multiplier, rounds, delta)
    assert low < epsilon < high * 1.003
    for wrong in (0.95, 1.05):
        mutant = epsilon_of(rate, noise_multiplier * wrong, rounds, delta)
        assert not low < mutant < high * 1.003


def test_releases_of_several_kinds_compose():
    """A split of the same releases is the same; a mixture lies between its parts."""
    weak, strong = release(0.01, 1.0), release(0.02, 0.8)
    loss = PrivacyLoss()
    mixed = loss.epsilon({weak: 50, strong: 50}, 1e-6)
    assert loss.epsilon({weak: 100}, 1e-6) < mixed < loss.epsilon({strong: 100}, 1e-6)
    swapped = loss.epsilon({strong: 50, weak: 50}, 1e-6)
    assert swapped == pytest.approx(mixed, rel=1e-9)
    almost = release(0.01, math.nextafter(1.0, 2.0))
    both = loss.epsilon({weak: 40, almost: 60}, 1e-6)
    assert both == pytest.approx(loss.epsilon({weak: 100}, 1e-6), rel=2e-3)


def test_a_plain_release_counts_beside_sampled_ones():
    """Together they cost more than either, and less than the sum."""
    sampled, plain = {release(0.01, 1.0): 100}, {release(1.0, 5.0): 2}
    loss = PrivacyLoss()
    parts = [loss.epsilon(counts, 1e-6) for counts in (sampled, plain)]
    assert max(parts) < loss.epsilon({**sampled, **plain}, 1e-6)
    assert loss.epsilon({**sampled, **plain}, 2e-6) < sum(parts)


def test_more_releases_cost_more():
    loss = PrivacyLoss()
    costs = [loss.epsilon({release(0.01, 1.0): n}, 1e-6) for n in (1, 2, 5, 20, 100, 1000, 10_000)]
    assert np.all(np.diff(costs) > 0)


# ------------------------------------------------------------------ delta
@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "rounds", "delta"),
    [
        (0.01, 1.0, 100, 1e-5),
        (0.01, 1.0, 100, 1e-18),
        (1e-7, 1.0, 1000, 1e-9),
        (0.3, 30.0, 1000, 1e-12),
        (1.0, 4.0, 10, 1e-7),
    ],
)
def test_delta_and_epsilon_agree(rate, noise_multiplier, rounds, delta):
    loss, counts = PrivacyLoss(), {release(rate, noise_multiplier): rounds}
    assert loss.delta(counts, loss.epsilon(counts, delta)) == pytest.approx(delta, rel=0.02)


def test_delta_of_one_release_is_a_tight_bound():
    for epsilon in (0.0, 1e-3, 0.1, 1.0, 5.0):
        exact = float(exact_delta(0.01, 1.0, epsilon))
        assert exact <= PrivacyLoss().delta({release(0.01, 1.0): 1}, epsilon) <= 1.01 * exact


def test_delta_of_a_hopeless_epsilon_is_small_and_positive():
    assert 0 < PrivacyLoss().delta({release(0.01, 1.0): 1}, 300.0) < 1e-190


def test_nothing_released_costs_nothing():
    assert PrivacyLoss().epsilon({}, 1e-9) == 0.0
    assert PrivacyLoss().delta({}, 0.0) == 0.0


# ------------------------------------------------------------------ edges
EDGES = [
    (rate, noise_multiplier, rounds, delta)
    for rate in (1e-7, 0.01, 1.0)
    for noise_multiplier in (1e-3, 0.3, 50.0)
    for rounds in (1, 4000)
    for delta in (1e-18, 1e-5)
]


@pytest.mark.parametrize(("rate", "noise_multiplier", "rounds", "delta"), EDGES)
def test_edges_are_finite_and_at_most_the_unsampled_gaussian(rate, noise_multiplier, rounds, delta):
    epsilon = epsilon_of(rate, noise_multiplier, rounds, delta)
    unsampled = gaussian_epsilon(noise_multiplier / math.sqrt(rounds), delta)
    assert 0 <= epsilon <= unsampled * (1 + 1e-12)
    # One release costs no more than all, and is never underestimated.
    if rate < 1:
        single = epsilon_of(rate, noise_multiplier, 1, delta)
        assert exact_delta(rate, noise_multiplier, single) <= delta
        assert epsilon >= single * 0.99


@pytest.mark.parametrize("delta", [1e-250, 5e-324])
def test_the_smallest_deltas_have_a_bound(delta):
    epsilon = epsilon_of(0.01, 1.0, 10, delta)
    assert 0 < epsilon == gaussian_epsilon(10**-0.5, delta) < math.inf


@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "rounds", "delta"),
    [(1e-6, 1.0, 10, 0.01), (0.5, 1.0, 3, 0.999), (0.9, 50.0, 2, 0.9), (0.1, 2.0, 1, 0.5)],
)
def test_a_large_delta_asks_for_nothing(rate, noise_multiplier, rounds, delta):
    assert epsilon_of(rate, noise_multiplier, rounds, delta) == 0.0


def test_delta_of_an_epsilon_of_zero_is_the_total_variation():
    """Of many releases at a rate of 1 in all but name: erf(mu / sqrt 8), exactly."""
    counts = {release(1 - 1e-13, 10.0): 50}
    loss = PrivacyLoss()
    exact = math.erf(math.sqrt(0.5) / math.sqrt(8.0))
    for remove in (True, False):
        assert exact * (1 - 1e-9) <= loss._delta(counts, 0.0, remove) <= exact * 1.01


def test_rounding_of_the_fft_is_part_of_the_bound(monkeypatch):
    """With an arithmetic 10^8 times as coarse, the bound is as valid, and larger."""
    fine = epsilon_of(0.01, 1.0, 2, 1e-9)
    monkeypatch.setattr(privacy_loss, "_UNIT", 2e-8)
    assert epsilon_of(0.01, 1.0, 2, 1e-9) > fine


def test_numbers_of_low_precision_do_not_set_that_of_the_bound():
    """0.25 and 1.5 are exact in half precision; what is computed from them is not."""
    low = SampledGaussian(sampling_rate=np.float16(0.25), noise_multiplier=np.float16(1.5))
    assert low == release(0.25, 1.5)
    assert PrivacyLoss().epsilon({low: 10}, 1e-6) == epsilon_of(0.25, 1.5, 10, 1e-6)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan, True, "1"])
def test_rates_are_checked(rate):
    with pytest.raises(ValueError, match="sampling_rate must be a finite number"):
        release(rate, 1.0)
