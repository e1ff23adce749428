"""The law of one coordinate of a uniform point on the sphere, and its sampler."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special

from flwr_sdp import seeded_generator
from flwr_sdp.sphere import (
    MAX_THRESHOLD,
    Cap,
    log_density_constant,
    sample_dots,
    threshold_for_log_odds,
)
from tests.statistics_helpers import (
    PROPERTY,
    DotLaw,
    assert_detects,
    assert_follows,
    assert_mean_close,
    dims,
    load_oracle,
)

CASES = load_oracle("privunit")["cases"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-d{case['d']}")


# ------------------------------------------------------------------ against the oracle
@each_case
@pytest.mark.parametrize("where", ["at_gamma_paper", "at_gamma_exact"])
def test_cap_matches_oracle(case, where):
    cap = Cap(case["d"], float(case[where]["gamma"]))
    assert cap.log_probability == pytest.approx(float(case[where]["log_p_cap"]), rel=1e-9)
    assert cap.log_odds == pytest.approx(float(case[where]["log_odds"]), rel=1e-9, abs=0)


@each_case
def test_threshold_for_log_odds_matches_oracle(case):
    threshold = threshold_for_log_odds(case["d"], float(case["eps"]))
    assert threshold == pytest.approx(float(case["gamma_exact"]), rel=1e-9, abs=0)


# ------------------------------------------------------------------ against closed forms
@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, MAX_THRESHOLD])
def test_cap_on_circle_and_sphere(threshold):
    circle, sphere = Cap(2, threshold), Cap(3, threshold)
    angle = math.acos(threshold)
    assert circle.log_probability == pytest.approx(math.log(angle / math.pi), rel=1e-12)
    assert circle.mean_inside == pytest.approx(math.sin(angle) / angle, rel=1e-12)
    assert sphere.log_probability == pytest.approx(math.log((1 - threshold) / 2), rel=1e-12)
    assert sphere.log_odds == pytest.approx(2 * math.atanh(threshold), rel=1e-9)
    assert sphere.mean_inside == pytest.approx((1 + threshold) / 2, rel=1e-12)


@pytest.mark.parametrize("dim", [2, 3, 4, 7, 10, 33, 34, 100, 1000, 10**6])
@pytest.mark.parametrize("sigmas", [0.0, 0.01, 0.5, 0.999, 1.001, 3.0, 8.0, 20.0])
def test_cap_matches_incomplete_beta(dim, sigmas):
    threshold = sigmas / math.sqrt(dim)
    if threshold > MAX_THRESHOLD:
        threshold = 1.0 - 1.0 / (1.0 + sigmas)
    cap, law = Cap(dim, threshold), DotLaw(dim, threshold)
    odds = (1.0 - law.cap) / law.cap
    assert cap.log_probability == pytest.approx(math.log(law.cap), rel=1e-9)
    assert cap.log_odds == pytest.approx(math.log(odds), rel=1e-9, abs=1e-12)
    # The difference of two lgamma in this law is good to 1e-9 at a million dimensions.
    assert cap.mean_inside == pytest.approx(law.mean_inside, rel=2e-9)


@pytest.mark.parametrize("dim", [2, 3, 32, 33, 34, 1000])
def test_log_density_constant_matches_lgamma(dim):
    expected = special.gammaln(dim / 2) - special.gammaln((dim - 1) / 2) - math.log(math.pi) / 2
    assert log_density_constant(dim) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dim", [2, 3, 10, 1000, 10**8])
@pytest.mark.parametrize("sigmas", [0.3, 0.7, 5.0])
def test_log_odds_slope_is_the_derivative(dim, sigmas):
    threshold = min(sigmas / math.sqrt(dim), 0.8)
    width = 1e-4 * threshold
    rise = Cap(dim, threshold + width).log_odds - Cap(dim, threshold - width).log_odds
    assert Cap(dim, threshold).log_odds_slope == pytest.approx(rise / (2 * width), rel=1e-5)


# ------------------------------------------------------------------ over the whole range
@PROPERTY
@given(dim=dims(), threshold=st.floats(0.0, MAX_THRESHOLD))
def test_cap_is_finite_and_consistent(dim, threshold):
    cap = Cap(dim, threshold)
    assert math.isfinite(cap.log_probability)
    assert cap.log_probability <= -math.log(2.0)
    assert math.isfinite(cap.log_odds)
    assert cap.log_odds >= 0.0
    assert max(threshold, 0.0) <= cap.mean_inside < 1.0
    rest = math.log(-math.expm1(cap.log_probability))
    assert cap.log_odds == pytest.approx(rest - cap.log_probability, rel=1e-9, abs=1e-12)


@PROPERTY
@given(dim=dims(), log_odds=st.floats(-7.0, 9.9).map(math.exp))
@example(dim=2, log_odds=2.0)  # Newton's method ends an ulp beyond, here and below
@example(dim=10, log_odds=10.0)
@example(dim=1000, log_odds=50.0)
def test_threshold_errs_on_the_private_side(dim, log_odds):
    threshold = threshold_for_log_odds(dim, log_odds)
    assert 0.0 < threshold <= MAX_THRESHOLD
    price = Cap(dim, threshold).log_odds
    assert price <= log_odds
    if threshold < MAX_THRESHOLD:
        assert price == pytest.approx(log_odds, rel=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 1000, 10**8])
@pytest.mark.parametrize("log_odds", [9e-7, 1e-12, 1e-40, 1e-200, 1e-300])
def test_threshold_of_hardly_any_log_odds(log_odds, dim):
    """There the log-odds are 4 c_d times the threshold."""
    threshold = threshold_for_log_odds(dim, log_odds)
    assert Cap(dim, threshold).log_odds <= log_odds
    assert threshold == pytest.approx(log_odds / 4 / math.exp(log_density_constant(dim)), rel=1e-9)


def test_narrowest_cap_caps_the_threshold():
    assert threshold_for_log_odds(2, 1e4) == MAX_THRESHOLD


# ------------------------------------------------------------------ the sampler
DIMS = [2, 3, 4, 10, 1000, 10**6]


def threshold_of_probability(dim, probability):
    return threshold_for_log_odds(dim, math.log((1 - probability) / probability))


def dots(cap, inside, count):
    rng = seeded_generator(3, "dots", cap.dim, str(cap.threshold), int(inside))
    return sample_dots(cap, np.full(count, inside), rng)


# On either side of 0.15, where the sampler changes its method, and far from it.
@pytest.mark.parametrize("probability", [0.5, 0.16, 0.14, 1e-3])
@pytest.mark.parametrize("dim", DIMS)
def test_dot_inside_the_cap(dim, probability):
    """KS test of 1,000 draws against the exact conditional law; false alarms: 6e-7 a case.

    The mutant is the law of a cap of 15 % less probability.
    """
    cap = Cap(dim, threshold_of_probability(dim, probability))
    assert (cap.log_probability > math.log(0.15)) is (probability > 0.15)
    samples = dots(cap, True, 1000)
    assert np.all(samples >= cap.threshold - 1e-12)
    assert np.all(samples <= 1.0)
    assert_follows(samples, DotLaw(dim, cap.threshold).inside_cdf)
    narrower = DotLaw(dim, threshold_of_probability(dim, 0.85 * probability))
    assert_detects(assert_follows, samples, narrower.inside_cdf)


@pytest.mark.parametrize("probability", [0.5, 0.3, 1e-3])
@pytest.mark.parametrize("dim", DIMS)
def test_dot_outside_the_cap(dim, probability):
    """KS test of 1,000 draws against the exact conditional law; false alarms: 6e-7 a case.

    The mutants are twice too wide, and folded onto one half of the sphere.
    """
    cap = Cap(dim, threshold_of_probability(dim, probability))
    samples = dots(cap, False, 1000)
    assert np.all(samples < cap.threshold)
    assert np.all(samples >= -1.0)
    law = DotLaw(dim, cap.threshold)
    assert_follows(samples, law.outside_cdf)
    assert_detects(assert_follows, 2.0 * samples, law.outside_cdf)
    assert_detects(assert_follows, np.abs(samples), law.outside_cdf)


@pytest.mark.parametrize("dim", [4, 5])
def test_spread_of_dots_in_few_dimensions(dim):
    """Mean square of 6,000 draws against its exact value; false alarms: 6e-7 a case.

    Where rejection from a normal does most; a normal of variance 1/(d-2) for 1/(d-3) would be
    5 or more standard errors off, like the mutant that is 6 % too narrow.
    """
    cap = Cap(dim, threshold_of_probability(dim, 1e-3))
    samples, law = dots(cap, False, 6000), DotLaw(dim, cap.threshold)
    expected = law.second_moment_outside
    assert_mean_close(samples**2, expected)
    assert_detects(assert_mean_close, (0.94 * samples) ** 2, expected)


@pytest.mark.parametrize("epsilon", [10.0, 500.0])
def test_dot_mixture_at_a_million_dimensions(epsilon):
    """KS test of 2,000 mixed draws, and their mean; false alarms: 1.2e-6 a case.

    The mutants have a smaller p, a cap 5 % lower, and the sides swapped.
    """
    dim, flip = 10**6, 1.0
    threshold = threshold_for_log_odds(dim, epsilon)
    cap, rng = Cap(dim, threshold), seeded_generator(4, str(epsilon))

    def draw(cap, flip, swap=False):
        return sample_dots(cap, rng.bernoullis(flip, 2000) != swap, rng)

    law = DotLaw(dim, threshold, flip)

    def check(samples):
        assert_follows(samples, law.cdf)

    samples = draw(cap, flip)
    check(samples)
    assert_mean_close(samples, law.mean)
    assert_detects(check, draw(cap, 0.5))
    assert_detects(check, draw(Cap(dim, 0.95 * threshold), flip))
    assert_detects(check, draw(cap, flip, swap=True))


def test_dots_are_where_they_were_asked_for():
    cap = Cap(100, 0.1)
    inside = np.arange(1000) % 3 == 0
    samples = sample_dots(cap, inside, seeded_generator(5))
    np.testing.assert_array_equal(samples >= 0.1, inside)
    assert len(np.unique(samples)) == 1000
    assert sample_dots(cap, inside[:0], seeded_generator(5)).shape == (0,)
