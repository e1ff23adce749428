"""ScalarRelDP: against the oracle, against its exact finite law, its samples against that law."""

import dataclasses
import itertools
import math
import re
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp import ScalarDP, ScalarRelDP, _validate, seeded_generator
from tests.statistics_helpers import (
    PROPERTY,
    GivenUniform,
    assert_counts,
    assert_detects,
    assert_log_ratio,
    assert_mean_close,
    bolder_response,
    careless_response,
    law_of_scalar,
    load_oracle,
    worst_log_ratio,
)

CASES = load_oracle("scalar")["scalar_rel"]
each_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"eps{case['eps']}-alpha{case['alpha']}-nu{case['nu']}"
)
close = {"rel": 1e-9, "abs": 0}


def of_case(case):
    return ScalarRelDP(
        epsilon=float(case["eps"]),
        num_bins=case["k"],
        accuracy=float(case["alpha"]),
        ratio=float(case["nu"]),
        max_norm=float(case["r_max"]),
    )


def printed_bound(mechanism, r):
    """The bound of Lemma one-dim-relative-error as printed, times max(r, alpha)^2."""
    return _bound(mechanism, r, (mechanism.ratio - 1.0) ** 2)


def repaired_bound(mechanism, r):
    """The bound that charges the first interval with r (nu alpha - r), what rounding costs."""
    nu = mechanism.ratio
    return _bound(mechanism, r, max((nu - 1.0) ** 2, nu * nu / 4.0 if nu <= 2.0 else nu - 1.0))


def _bound(mechanism, r, last):
    grow, bins, nu = math.expm1(mechanism.epsilon), mechanism.num_bins, mechanism.ratio
    powers = nu ** (2 * bins) * (1.0 - nu ** (-2 * bins)) / (1.0 - nu**-2)
    noise = (bins + 1) / grow * nu**2 + powers * (grow + 1.0 + bins) / grow**2
    return (noise + last) * max(r, mechanism.accuracy) ** 2


# ------------------------------------------------------------------ against the oracle
def test_oracle_is_complete():
    assert len(CASES) == 7
    assert sum(len(case["points"]) for case in CASES) == 67


@each_case
def test_constants_match_oracle(case):
    mechanism = of_case(case)
    assert mechanism.step == pytest.approx(float(case["a"]), **close)
    assert mechanism.offset == pytest.approx(float(case["b"]), **close)
    assert mechanism.min_output == pytest.approx(float(case["z_min"]), **close)
    assert mechanism.max_output == pytest.approx(float(case["z_max"]), **close)


@each_case
def test_grid_matches_oracle(case):
    mechanism = of_case(case)
    points = [mechanism._point(index) for index in range(case["k"] + 1)]
    assert points == pytest.approx([float(value) for value in case["values"]], **close)
    assert points[-1] == pytest.approx(float(case["covers"]), **close)


@each_case
def test_squared_error_matches_oracle(case):
    mechanism = of_case(case)
    for point in case["points"]:
        r = float(point["r"])
        assert mechanism.mean_squared_error(r) == pytest.approx(float(point["mse"]), **close)
        assert mechanism.variance(r) == pytest.approx(float(point["mse"]), **close)


@each_case
def test_bounds_of_the_lemma_match_oracle(case):
    """The repaired bound holds wherever the oracle looks; the printed one where it says so."""
    mechanism = of_case(case)
    for point in case["points"]:
        r, error = float(point["r"]), mechanism.mean_squared_error(float(point["r"]))
        assert printed_bound(mechanism, r) == pytest.approx(float(point["bound_lemma"]), **close)
        assert repaired_bound(mechanism, r) == pytest.approx(
            float(point["bound_repaired"]), **close
        )
        assert (error <= printed_bound(mechanism, r)) == point["lemma_holds"]
        assert error <= repaired_bound(mechanism, r)


@each_case
def test_number_of_bins_matches_oracle(case):
    mechanism = of_case(case)
    chosen = ScalarRelDP.from_epsilon(
        mechanism.epsilon,
        mechanism.max_norm,
        accuracy=mechanism.accuracy,
        ratio=mechanism.ratio,
    )
    assert chosen == mechanism


# ------------------------------------------------------------------ where the paper misprints
def test_lemma_counterexample():
    """In units of max(r, alpha)^2: 0.3156 at r = nu alpha / 2, where the lemma prints 0.0231."""
    mechanism = ScalarRelDP(epsilon=20.0, num_bins=73, accuracy=0.01, ratio=1.1, max_norm=10.0)
    r = 1.1 * 0.01 / 2.0
    assert mechanism.mean_squared_error(r) / 0.01**2 == pytest.approx(0.3156, abs=5e-5)
    assert printed_bound(mechanism, r) / 0.01**2 == pytest.approx(0.0231, abs=5e-5)
    assert mechanism.mean_squared_error(r) <= repaired_bound(mechanism, r)


def test_repaired_lemma_holds():
    """5,904 points: budgets 1 to 40, ratios 1.05 to 4, 1 to 12 bins, 41 numbers each."""
    printed_fails = 0
    for epsilon in (1.0, 3.0, 5.0, 10.0, 20.0, 40.0):
        for ratio in (1.05, 1.2, 1.5, 2.0, 2.5, 4.0):
            for bins in (1, 2, 5, 12):
                top = 0.1 * ratio**bins
                mechanism = ScalarRelDP(
                    epsilon=epsilon, num_bins=bins, accuracy=0.1, ratio=ratio, max_norm=top
                )
                for r in np.linspace(0.0, top, 41):
                    error = mechanism.mean_squared_error(float(r))
                    assert error <= repaired_bound(mechanism, r) * (1 + 1e-12)
                    printed_fails += error > printed_bound(mechanism, r)
    assert printed_fails > 100


def test_small_numbers_do_not_gain_what_the_paper_says():
    """E(Z-r)^2 at r = alpha/2 is alpha^2 / 4, not of the order e^(-5 eps / 6)."""
    mechanism = ScalarRelDP.from_epsilon(40.0, 1.0)
    error = mechanism.mean_squared_error(mechanism.accuracy / 2.0)
    assert error == pytest.approx(5.2e-10, rel=0.02)
    assert math.exp(-5.0 * 40.0 / 6.0) == pytest.approx(3.3e-15, rel=0.02)


# ------------------------------------------------------------------ the default grid
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 10.0, 40.0, 80.0])
def test_default_grid(epsilon):
    """alpha_0 = e^(-eps/4), and with it nu - 1 = alpha_0^(-2/3) e^(-eps/3) = e^(-eps/6)."""
    mechanism = ScalarRelDP.from_epsilon(epsilon, 5.0)
    assert mechanism.accuracy == pytest.approx(5.0 * math.exp(-epsilon / 4.0), rel=1e-12)
    assert mechanism.ratio - 1.0 == pytest.approx(math.exp(-epsilon / 6.0), rel=1e-9)
    expected = math.ceil(epsilon / 4.0 / math.log1p(mechanism.ratio - 1.0))
    assert mechanism.num_bins == expected


def test_one_part_of_the_grid_may_be_given():
    """A given accuracy sets the ratio that goes with it; a given ratio leaves the accuracy."""
    mechanism = ScalarRelDP.from_epsilon(10.0, 5.0, accuracy=0.5)
    assert mechanism.accuracy == 0.5
    assert mechanism.ratio - 1.0 == pytest.approx(10 ** (2 / 3) * math.exp(-10 / 3), rel=1e-12)
    mechanism = ScalarRelDP.from_epsilon(10.0, 5.0, ratio=1.5)
    assert mechanism.ratio == 1.5
    assert mechanism.accuracy == 5.0 * math.exp(-2.5)
    # Below alpha_0 = e^(-eps/2) the paper's spacing would exceed 1.
    assert ScalarRelDP.from_epsilon(10.0, 5.0, accuracy=1e-4).ratio == 2.0
    # alpha_0 = 1 leaves one step (not the absolute bound: its rounding costs r_max^2 / 4).
    assert ScalarRelDP.from_epsilon(10.0, 5.0, accuracy=5.0).num_bins == 1
    assert ScalarRelDP.from_epsilon(10.0, 5.0, accuracy=50.0).num_bins == 1


@pytest.mark.parametrize("epsilon", [130.0, 1e3, 1e4, 1e300])
def test_default_grid_is_held_at_large_epsilon(epsilon):
    mechanism = ScalarRelDP.from_epsilon(epsilon, 4.0)
    assert mechanism.accuracy == 2.0**-38
    assert mechanism.ratio == 1.0 + 2.0**-30
    assert mechanism.num_bins < 2**40
    assert math.sqrt(mechanism.variance(1.0)) < 1e-9


@pytest.mark.parametrize("power", range(1, 40))
def test_exact_powers_are_reached(power):
    """The top of the grid is max_norm itself, or its neighbour among the floats."""
    for accuracy, ratio in ((0.1, 2.0), (0.3, 1.1), (1e-3, 1.7), (0.25, 2.0), (1.0, 10.0)):
        max_norm = accuracy * ratio**power
        mechanism = ScalarRelDP.from_epsilon(5.0, max_norm, accuracy=accuracy, ratio=ratio)
        assert mechanism.num_bins == power
        above = max_norm * (1.0 + 1e-13)
        longer = ScalarRelDP.from_epsilon(5.0, above, accuracy=accuracy, ratio=ratio)
        assert longer.num_bins == power + 1
        with pytest.raises(ValueError, match="num_bins must be large enough"):
            dataclasses.replace(mechanism, max_norm=above)
        assert mechanism.privatize(max_norm, seeded_generator(70)) <= mechanism.max_output


def test_decimals_that_are_reached_on_paper_are_reached():
    """Settings of up to three digits: in a third of these floats end below max_norm.

    The last point is released as it is, and a number at max_norm, clipped to it, without a bias.
    """
    rounded_down = 0
    settings = itertools.product((7, 9, 14, 23, 28), (110, 115, 160, 190, 305), (1, 3, 5, 9))
    for percent, hundredths, bins in settings:
        top = Fraction(percent, 100) * Fraction(hundredths, 100) ** bins
        accuracy, ratio, max_norm = percent / 100, hundredths / 100, float(top)
        given = {"epsilon": 40.0, "accuracy": accuracy, "ratio": ratio, "max_norm": max_norm}
        mechanism = ScalarRelDP(num_bins=bins, **given)
        assert ScalarRelDP.from_epsilon(**given).num_bins == bins
        rounded_down += accuracy * ratio**bins < max_norm
        outputs, law = output_law(mechanism, max_norm)
        assert outputs @ law == pytest.approx(max_norm, rel=1e-14)
        drawn = mechanism.privatize(np.array([max_norm, 2.0 * max_norm]), seeded_generator(71))
        np.testing.assert_allclose(drawn, max_norm, rtol=1e-14)
        assert mechanism.mean_squared_error(max_norm) < 1e-9 * max_norm**2
        assert dataclasses.replace(mechanism, epsilon=1e4).deviation(max_norm) < 1e-7 * max_norm
        with pytest.raises(ValueError, match="num_bins must be large enough"):
            dataclasses.replace(mechanism, max_norm=max_norm * (1.0 + 1e-14))
    assert rounded_down == 37


@pytest.mark.parametrize(
    ("accuracy", "ratio"), [(0.1, 1.1), (1e-5, 1.03), (0.3, 1.7), (1.0, 2.0), (0.7, 1.001)]
)
def test_interval_holds_its_number(accuracy, ratio):
    """At each grid point and its two neighbours among the floats, where logarithms may err."""
    mechanism = relative(5.0, accuracy * ratio**300, accuracy, ratio)
    for index in range(1, mechanism.num_bins):
        point = mechanism._point(index)
        for r in (math.nextafter(point, 0.0), point, math.nextafter(point, math.inf)):
            at, low, high = mechanism._interval(np.array([r]))
            assert low <= r <= high
            ends = [mechanism._point(int(i)) for i in (at[0], at[0] + 1)]
            np.testing.assert_allclose([low[0], high[0]], ends, rtol=1e-15)


@PROPERTY
@given(
    max_norm=st.floats(-20.0, 20.0).map(lambda power: 10.0**power),
    share=st.floats(-12.0, 0.5).map(lambda power: 10.0**power),
    ratio=st.floats(-6.0, 2.0).map(lambda power: 1.0 + 10.0**power),
)
def test_smallest_number_of_bins(max_norm, share, ratio):
    mechanism = ScalarRelDP.from_epsilon(3.0, max_norm, accuracy=share * max_norm, ratio=ratio)
    bins = mechanism.num_bins
    assert mechanism._point(bins) >= max_norm * (1.0 - 1e-9)
    if bins > 1:
        assert mechanism._point(bins - 1) < max_norm


# ------------------------------------------------------------------ the exact law
def grid_of(mechanism):
    powers = np.arange(1, mechanism.num_bins + 1)
    return np.concatenate([[0.0], mechanism.accuracy * mechanism.ratio**powers])


def rounding_law(mechanism, r):
    """Return the probabilities of J, the grid index that `r` is rounded to."""
    grid, r = grid_of(mechanism), min(max(r, 0.0), mechanism.max_norm)
    low = min(max(int(np.searchsorted(grid, r, side="right")) - 1, 0), mechanism.num_bins - 1)
    law = np.zeros(len(grid))
    up = (r - grid[low]) / (grid[low + 1] - grid[low])
    law[low], law[low + 1] = 1.0 - up, up
    return law


def response_matrix(epsilon, bins):
    """Return P(J-hat = j | J = i): the true index with weight e^eps, any other with weight 1."""
    odds = np.exp(-epsilon)
    return (np.full((bins + 1, bins + 1), odds) + (1 - odds) * np.eye(bins + 1)) / (1 + bins * odds)


def output_law(mechanism, r):
    """Return all outputs of the mechanism at `r` and their probabilities, by enumeration."""
    bins, epsilon = mechanism.num_bins, mechanism.epsilon
    law = rounding_law(mechanism, r) @ response_matrix(epsilon, bins)
    gain = (math.exp(epsilon) + bins) / math.expm1(epsilon)
    grid = grid_of(mechanism)
    return gain * (grid - grid.sum() / (math.exp(epsilon) + bins)), law


def relative(epsilon, max_norm, accuracy, ratio):
    return ScalarRelDP.from_epsilon(epsilon, max_norm, accuracy=accuracy, ratio=ratio)


MECHANISMS = [
    relative(0.1, 1.0, 0.9, 1.5),
    ScalarRelDP.from_epsilon(0.5, 5.0),
    relative(1.0, 0.3, 0.01, 1.8),
    relative(3.0, 2.0, 0.1, 2.0),
    ScalarRelDP.from_epsilon(5.0, 2.0),
    ScalarRelDP.from_epsilon(10.0, 5.0),
    relative(10.0, 1e-3, 1e-5, 1.03),
    relative(6.0, 10.0, 0.2, 5.0),
    ScalarRelDP(epsilon=4.0, num_bins=9, accuracy=0.1, ratio=2.0, max_norm=1.0),  # beyond the norm
    ScalarRelDP(epsilon=0.1, num_bins=2, accuracy=1.0, ratio=1.01, max_norm=1.0),  # 0 goes farthest
]
each_mechanism = pytest.mark.parametrize(
    "mechanism", MECHANISMS, ids=lambda m: f"eps{m.epsilon:g}-k{m.num_bins}"
)
SHARES = [-1.0, 0.0, 1e-6, 1e-3, 0.02, 0.1, 0.25, 1 / 3, 0.5, 0.77, 0.999, 1.0, 3.0]


def check_probability_ratio(mechanism, numbers=()):
    """Check the probability of every output between all pairs of inputs, as the code has it.

    The inputs are the grid points in the range (of a long grid every sixth or so), `numbers`, the
    ends of the range and what lies beyond. Two grid points in the range attain it, 0 being one.
    """
    most, bins = mechanism.max_norm, mechanism.num_bins
    grid = [point for point in grid_of(mechanism)[:: 1 + bins // 6].tolist() if point <= most]
    laws = {r: law_of_scalar(mechanism, r) for r in (*grid, *numbers, most, -most, 3.0 * most)}
    for r, law in laws.items():
        values, probabilities = output_law(mechanism, r)
        assert sorted(law) == pytest.approx(values, rel=1e-9, abs=1e-9 * mechanism.max_output)
        assert [law[value] for value in sorted(law)] == pytest.approx(
            probabilities, rel=1e-9, abs=1e-9
        )
    assert_log_ratio(laws.values(), mechanism.epsilon, attained=len(grid) > 1)


@each_mechanism
def test_probability_ratio(mechanism):
    """Over all pairs of inputs and all outputs, the largest ratio is e^epsilon at most."""
    check_probability_ratio(mechanism, [share * mechanism.max_norm for share in SHARES])


@PROPERTY
@given(
    epsilon=st.floats(math.log(0.01), math.log(500.0)).map(math.exp),
    share=st.floats(-2.0, 0.3).map(lambda power: 10.0**power),
    ratio=st.floats(1.3, 8.0),
    numbers=st.lists(st.floats(0.0, 1.1), max_size=2),
)
def test_probability_ratio_over_the_range(epsilon, share, ratio, numbers):
    check_probability_ratio(relative(epsilon, 1.0, share, ratio), numbers)


@pytest.mark.parametrize("mutant", [bolder_response, careless_response])
@pytest.mark.parametrize("mechanism", MECHANISMS[2:8], ids=lambda m: f"eps{m.epsilon:g}")
def test_probability_ratio_mutants(monkeypatch, mechanism, mutant):
    """Odds of e^epsilon to 1, not to k, and other indices with the true one among them."""
    numbers = (0.0, grid_of(mechanism)[1])
    assert_log_ratio([law_of_scalar(mechanism, r) for r in numbers], mechanism.epsilon)
    monkeypatch.setattr("flwr_sdp.relative_magnitude.randomized_response", mutant)
    laws = [law_of_scalar(mechanism, r) for r in numbers]
    assert_detects(assert_log_ratio, laws, mechanism.epsilon)
    assert worst_log_ratio(laws) > mechanism.epsilon


@each_mechanism
@pytest.mark.parametrize("share", SHARES)
def test_moments_of_the_exact_law(share, mechanism):
    r = share * mechanism.max_norm
    values, law = output_law(mechanism, r)
    mean = law @ values
    clipped = min(max(r, 0.0), mechanism.max_norm)
    assert mean == pytest.approx(clipped, rel=1e-9, abs=1e-12 * mechanism.max_output)
    assert mechanism.variance(r) == pytest.approx(law @ (values - mean) ** 2, rel=1e-9)
    assert mechanism.mean_squared_error(r) == pytest.approx(law @ (values - r) ** 2, rel=1e-9)
    assert mechanism.min_output == pytest.approx(values.min(), rel=1e-9)
    assert mechanism.max_output == pytest.approx(np.abs(values).max(), rel=1e-9)
    powers = grid_of(mechanism) / mechanism.accuracy
    np.testing.assert_allclose(
        mechanism.step * (powers - mechanism.offset), values, atol=1e-12 * mechanism.max_output
    )


def test_gain_over_the_absolute_grid():
    """What the geometric grid is for: a smaller worst error than ScalarDP's at small numbers.

    Not where rounding costs most: in the middle of the first interval, and near the end.
    """
    for epsilon in (2.0, 8.0, 10.0, 15.0, 20.0):
        relative = ScalarRelDP.from_epsilon(epsilon, 1.0)
        absolute = ScalarDP.from_epsilon(epsilon, 1.0)
        half = relative.accuracy / 2.0
        assert 1.9 < relative.variance(half) / absolute.variance(half) < 13.5
        worst = max(relative.variance(r) / absolute.variance(r) for r in np.linspace(0.3, 1, 700))
        assert 3.9 < worst < 1000
        if epsilon in (8.0, 10.0, 15.0):
            assert relative.variance(1e-4) < 0.6 * absolute.variance(1e-4)
    relative, absolute = ScalarRelDP.from_epsilon(20.0, 5.0), ScalarDP.from_epsilon(20.0, 5.0)

    def worst(mechanism, low, high):
        return max(mechanism.variance(float(r)) for r in np.linspace(low, high, 300))

    assert worst(relative, 0.04, 0.06) < 0.5 * worst(absolute, 0.04, 0.06)
    assert worst(relative, 0.0, 0.03) > worst(absolute, 0.0, 0.03)


# ------------------------------------------------------------------ samples
DRAWN = [MECHANISMS[i] for i in (1, 3, 5, 7)]
each_drawn = pytest.mark.parametrize("mechanism", DRAWN, ids=lambda m: f"eps{m.epsilon:g}")


@cache
def samples(mechanism, share, drawn_from=None):
    rng = seeded_generator(71, repr(mechanism), str(share))
    r = share * mechanism.max_norm
    source = drawn_from or mechanism
    return source.privatize(np.full(3000, r), rng)


def check_law(mechanism, share, outputs):
    values, law = output_law(mechanism, share * mechanism.max_norm)
    indices = np.abs(outputs[:, None] - values).argmin(axis=1)
    np.testing.assert_allclose(outputs, values[indices], atol=1e-9 * values[-1])
    assert_counts(np.bincount(indices, minlength=len(law)), law)


def check_moments(mechanism, share, outputs):
    r = min(max(share, 0.0), 1.0) * mechanism.max_norm
    values, law = output_law(mechanism, r)
    # Exact variances: where other indices are rare, the samples may hold none of them.
    variance, fourth = law @ (values - r) ** 2, law @ (values - r) ** 4
    assert_mean_close(outputs, r, variance=variance)
    assert_mean_close((outputs - r) ** 2, mechanism.variance(r), variance=fourth - variance**2)


@pytest.mark.parametrize("share", [0.0, 0.013, 0.28, 1.0, 2.0])
@each_drawn
def test_samples(mechanism, share):
    """3,000 draws: chi-square test of the outputs, mean, variance.

    False alarms: 2e-6 a case, and 5e-5 at epsilon 10, where two draws go elsewhere on average.
    """
    outputs = samples(mechanism, share)
    check_law(mechanism, share, outputs)
    check_moments(mechanism, share, outputs)


@pytest.mark.parametrize("fraction", [0.03, 0.25, 0.5, 0.97])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0)])
def test_a_number_is_rounded_up_with_the_probability_of_its_fraction(low, high, fraction):
    """To the last place, in the first interval and in others."""
    mechanism = ScalarRelDP(epsilon=50.0, num_bins=4, accuracy=0.5, ratio=2.0, max_norm=4.0)
    r = low + fraction * (high - low)
    for shift, expected in ((-1e-12, high), (1e-12, low)):
        output = mechanism.privatize(r, GivenUniform(fraction + shift))
        assert output == pytest.approx(expected, abs=1e-12)


class AlwaysRoundsDown(ScalarRelDP):
    """The mutant that rounds to the grid point below."""

    __slots__ = ()

    def _clip(self, r):
        return self._interval(super()._clip(r))[1]


@pytest.mark.parametrize("mechanism", DRAWN[1:], ids=lambda m: f"eps{m.epsilon:g}")
def test_sample_mutants(mechanism):
    """Each of a wrong budget, a wrong rounding and a wrong scale is noticed by its check."""
    louder = dataclasses.replace(mechanism, epsilon=0.6 * mechanism.epsilon)
    # On the outputs of the true mechanism, so that only the probabilities differ.
    theirs = output_law(louder, 0.0)[0]
    indices = np.abs(samples(mechanism, 0.28, louder)[:, None] - theirs).argmin(axis=1)
    regridded = output_law(mechanism, 0.0)[0][indices]
    assert_detects(check_law, mechanism, 0.28, regridded)
    parameters = {
        field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)
    }
    down = AlwaysRoundsDown(**parameters)
    assert_detects(check_law, mechanism, 0.28, samples(mechanism, 0.28, down))
    assert_detects(check_moments, mechanism, 1.0, 1.15 * samples(mechanism, 1.0))


def test_samples_of_a_fine_grid():
    """3,000 draws at epsilon 83, k = 21 million: mean and range; false alarms: 6e-7."""
    mechanism = ScalarRelDP.from_epsilon(83.0, 1.0)
    outputs = samples(mechanism, 0.123456789)
    assert_mean_close(outputs, 0.123456789, variance=mechanism.variance(0.123456789))
    assert np.max(np.abs(outputs - 0.123456789)) <= 1.5 * (mechanism.ratio - 1.0) * 0.123456789


def test_outputs_are_not_clipped():
    """Some outputs are negative and some exceed the range; clipping them would be a bias."""
    mechanism = ScalarRelDP.from_epsilon(0.5, 1.0)
    outputs = samples(mechanism, 0.5)
    assert outputs.min() == pytest.approx(mechanism.min_output)
    assert outputs.max() == pytest.approx(mechanism.max_output)
    assert outputs.min() < 0.0
    assert outputs.max() > mechanism.max_norm
    assert_detects(assert_mean_close, np.clip(samples(mechanism, 0.0), 0.0, 1.0), 0.0)


def test_numbers_out_of_range_are_clipped():
    """A number out of range gives the very output that the end of the range gives."""
    mechanism = ScalarRelDP.from_epsilon(3.0, 2.0)
    for outside, end in ((-1.0, 0.0), (-1e300, 0.0), (2.5, 2.0), (1e300, 2.0)):
        for seed in range(20):
            output = mechanism.privatize(outside, seeded_generator(72, seed))
            assert output == mechanism.privatize(end, seeded_generator(72, seed))
    assert mechanism.mean_squared_error(5.0) == mechanism.variance(2.0) + 9.0
    assert mechanism.mean_squared_error(-1.0) == mechanism.variance(0.0) + 1.0


def test_any_number_type_is_taken():
    mechanism = ScalarRelDP.from_epsilon(3.0, 2.0)
    expected = mechanism.privatize(1.0, seeded_generator(73))
    for r in (1, np.float32(1.0), np.int64(1)):
        assert mechanism.privatize(r, seeded_generator(73)) == expected
    assert isinstance(mechanism.privatize(0.3), float)
    whole = ScalarRelDP(epsilon=1, num_bins=np.int64(3), accuracy=1, ratio=2, max_norm=8)
    assert isinstance(whole.privatize(np.float32(3.0)), float)
    assert isinstance(whole.variance(3), float)


# ------------------------------------------------------------------ limits
@PROPERTY
@given(
    epsilon=st.floats(math.log(1e-3), math.log(2e4)).map(math.exp),
    max_norm=st.floats(-20.0, 20.0).map(lambda power: 10.0**power),
    share=st.floats(0.0, 1.0),
)
def test_everything_is_finite(epsilon, max_norm, share):
    mechanism = ScalarRelDP.from_epsilon(epsilon, max_norm)
    r = share * max_norm
    variance = mechanism.variance(r)
    assert math.isfinite(variance)
    assert variance >= 0.0
    assert 0.0 < mechanism.step < math.inf
    assert mechanism.offset >= 0.0
    assert mechanism.min_output <= 0.0
    assert max_norm * (1 - 1e-12) <= mechanism.max_output < math.inf
    assert -mechanism.min_output <= mechanism.max_output
    output = mechanism.privatize(r, seeded_generator(74))
    assert mechanism.min_output * (1 + 1e-9) <= output <= mechanism.max_output * (1 + 1e-9)


@PROPERTY
@given(
    epsilon=st.floats(0.01, 15.0),
    share=st.floats(-3.0, 0.3).map(lambda power: 10.0**power),
    ratio=st.floats(1.05, 8.0),
    r=st.floats(-0.1, 1.2),
)
def test_exact_law_over_the_range(epsilon, share, ratio, r):
    """Unbiased, and its variance, by enumeration, for any grid."""
    mechanism = ScalarRelDP.from_epsilon(epsilon, 1.0, accuracy=share, ratio=ratio)
    values, law = output_law(mechanism, r)
    clipped = min(max(r, 0.0), 1.0)
    assert law @ values == pytest.approx(clipped, abs=1e-11 * mechanism.max_output)
    exact = law @ (values - clipped) ** 2
    assert mechanism.variance(r) == pytest.approx(exact, rel=1e-8)
    assert mechanism.variance(r) <= repaired_bound(mechanism, clipped) * (1 + 1e-9)


# ------------------------------------------------------------------ bad input
NOT_NUMBERS = (math.nan, math.inf, -math.inf, "5", True, None, 1j, [1.0])
GOOD = {"epsilon": 1.0, "num_bins": 10, "accuracy": 0.1, "ratio": 2.0, "max_norm": 1.0}
BAD_FIELDS = {
    "epsilon": (0, -1, *NOT_NUMBERS),
    "num_bins": (0, -1, 2.0, 2**40 + 1, *NOT_NUMBERS),
    "accuracy": (0, -1, *NOT_NUMBERS),
    "ratio": (0, -1, 1, 0.5, *NOT_NUMBERS),
    "max_norm": (0, -1, *NOT_NUMBERS),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BAD_FIELDS.items() for value in values],
    ids=repr,
)
def test_bad_parameters(field, value):
    text = re.escape(_validate.shown(value))
    with pytest.raises(ValueError, match=f"^{field} must be .*got {text}"):
        ScalarRelDP(**(GOOD | {field: value}))
    if field != "num_bins" and value is not None:
        parameters = {name: GOOD[name] for name in ("epsilon", "max_norm", "accuracy", "ratio")}
        with pytest.raises(ValueError, match=f"^{field} must be .*got {text}"):
            ScalarRelDP.from_epsilon(**(parameters | {field: value}))


@pytest.mark.parametrize("r", NOT_NUMBERS)
def test_bad_numbers(r):
    mechanism = ScalarRelDP(**GOOD)
    for call in (mechanism.privatize, mechanism.variance, mechanism.mean_squared_error):
        with pytest.raises(ValueError, match=r"^r must be a finite number; got a value of type"):
            call(r)


def test_grids_that_end_too_early_or_too_late():
    with pytest.raises(
        ValueError, match=r"num_bins must be large enough .*max_norm \(1.0\); got 3"
    ):
        ScalarRelDP(**(GOOD | {"num_bins": 3}))
    assert ScalarRelDP(**(GOOD | {"num_bins": 4})).num_bins == 4
    with pytest.raises(ValueError, match="num_bins must keep the largest output finite"):
        ScalarRelDP(**(GOOD | {"num_bins": 5000}))
    with pytest.raises(ValueError, match="ratio must be so large that"):
        ScalarRelDP.from_epsilon(1.0, 1.0, accuracy=1e-300, ratio=1.0 + 1e-12)


def test_mechanism_is_a_value():
    mechanism = ScalarRelDP(**GOOD)
    assert mechanism == ScalarRelDP(**GOOD)
    assert hash(mechanism) == hash(ScalarRelDP(**GOOD))
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.epsilon = 2.0
