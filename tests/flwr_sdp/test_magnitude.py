"""ScalarDP: against the oracle, against its exact finite law, and its samples against that law."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp import ScalarDP, seeded_generator
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

CASES = load_oracle("scalar")["scalar_dp"]
each_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"eps{case['eps']}-k{case['k']}-r{case['r_max']}"
)
close = {"rel": 1e-9, "abs": 0}


def of_case(case):
    return ScalarDP(epsilon=float(case["eps"]), num_bins=case["k"], max_norm=float(case["r_max"]))


# ------------------------------------------------------------------ against the oracle
@each_case
def test_constants_match_oracle(case):
    mechanism = of_case(case)
    assert mechanism.step == pytest.approx(float(case["a"]), **close)
    assert mechanism.offset == pytest.approx(float(case["b"]), **close)
    assert mechanism.min_output == pytest.approx(float(case["z_min"]), **close)
    assert mechanism.max_output == pytest.approx(float(case["z_max"]), **close)


@each_case
def test_variance_matches_oracle(case):
    mechanism = of_case(case)
    for point in case["points"]:
        assert mechanism.variance(float(point["r"])) == pytest.approx(float(point["var"]), **close)


@each_case
def test_number_of_bins(case):
    if case["k_is_ceil_exp_eps_over_3"]:
        mechanism = ScalarDP.from_epsilon(float(case["eps"]), float(case["r_max"]))
        assert mechanism == of_case(case)


def test_number_of_bins_at_epsilon_ten():
    """ceil(e^(10/3)) = 29; the exponent 2 eps / 3 that the paper prints beside 29 gives 786."""
    assert ScalarDP.from_epsilon(10.0, 5.0).num_bins == 29


def test_number_of_bins_is_held_at_large_epsilon():
    assert ScalarDP.from_epsilon(80.0, 1.0).num_bins == math.ceil(math.exp(80.0 / 3.0))
    for epsilon in (83.1, 84.0, 1e4, 1e300):
        assert ScalarDP.from_epsilon(epsilon, 1.0).num_bins == 2**40


# ------------------------------------------------------------------ the exact law
def rounding_law(mechanism, r):
    """Return the probabilities of J, the grid index that `r` is rounded to."""
    bins = mechanism.num_bins
    position = bins * min(max(r, 0.0), mechanism.max_norm) / mechanism.max_norm
    law = np.zeros(bins + 1)
    low = min(int(position), bins - 1)
    law[low], law[low + 1] = 1.0 - (position - low), position - low
    return law


def response_matrix(epsilon, bins):
    """Return P(J-hat = j | J = i): the true index with weight e^eps, any other with weight 1."""
    odds = np.exp(-epsilon)
    return (np.full((bins + 1, bins + 1), odds) + (1 - odds) * np.eye(bins + 1)) / (1 + bins * odds)


def output_law(mechanism, r):
    """Return all outputs of the mechanism at `r` and their probabilities, by enumeration."""
    bins, epsilon = mechanism.num_bins, mechanism.epsilon
    law = rounding_law(mechanism, r) @ response_matrix(epsilon, bins)
    step = (math.exp(epsilon) + bins) / math.expm1(epsilon) * mechanism.max_norm / bins
    offset = bins * (bins + 1) / (2 * (math.exp(epsilon) + bins))
    return step * (np.arange(bins + 1) - offset), law


MECHANISMS = [
    ScalarDP(epsilon=0.1, num_bins=1, max_norm=1.0),
    ScalarDP.from_epsilon(0.5, 5.0),
    ScalarDP(epsilon=1.0, num_bins=7, max_norm=0.3),
    ScalarDP.from_epsilon(2.0, 1.0),
    ScalarDP.from_epsilon(5.0, 2.0),
    ScalarDP.from_epsilon(10.0, 5.0),
    ScalarDP(epsilon=10.0, num_bins=200, max_norm=1e-3),
]
each_mechanism = pytest.mark.parametrize(
    "mechanism", MECHANISMS, ids=lambda m: f"eps{m.epsilon:g}-k{m.num_bins}"
)
SHARES = [-1.0, 0.0, 1e-6, 0.1, 0.25, 1 / 3, 0.5, 0.77, 0.999, 1.0, 3.0]


def check_probability_ratio(mechanism, numbers=()):
    """Check the probability of every output between all pairs of inputs, as the code has it.

    The inputs are the grid points (of a long grid every fourth or so and the last), `numbers`, and
    what lies beyond the range.
    """
    bins, most = mechanism.num_bins, mechanism.max_norm
    grid = most * np.array([*range(0, bins, 1 + bins // 8), bins]) / bins
    laws = {r: law_of_scalar(mechanism, r) for r in (*grid.tolist(), *numbers, -most, 3.0 * most)}
    for r, law in laws.items():
        values, probabilities = output_law(mechanism, r)
        assert sorted(law) == pytest.approx(values, rel=1e-9, abs=1e-9 * mechanism.max_output)
        assert [law[value] for value in sorted(law)] == pytest.approx(
            probabilities, rel=1e-9, abs=1e-12
        )
    assert_log_ratio(laws.values(), mechanism.epsilon)


@each_mechanism
def test_probability_ratio(mechanism):
    """Over all pairs of inputs and all outputs, the largest ratio is e^epsilon exactly."""
    check_probability_ratio(mechanism, [share * mechanism.max_norm for share in SHARES])


@PROPERTY
@given(
    epsilon=st.floats(math.log(0.01), math.log(500.0)).map(math.exp),
    bins=st.integers(1, 40),
    max_norm=st.floats(-3.0, 3.0).map(lambda power: 10.0**power),
    shares=st.lists(st.floats(0.0, 1.1), max_size=3),
)
def test_probability_ratio_over_the_range(epsilon, bins, max_norm, shares):
    mechanism = ScalarDP(epsilon=epsilon, num_bins=bins, max_norm=max_norm)
    check_probability_ratio(mechanism, [share * max_norm for share in shares])


@pytest.mark.parametrize("mutant", [bolder_response, careless_response])
@pytest.mark.parametrize("mechanism", MECHANISMS[1:], ids=lambda m: f"eps{m.epsilon:g}")
def test_probability_ratio_mutants(monkeypatch, mechanism, mutant):
    """Odds of e^epsilon to 1, not to k, and other indices with the true one among them."""
    numbers = (0.0, mechanism.max_norm)
    assert_log_ratio([law_of_scalar(mechanism, r) for r in numbers], mechanism.epsilon)
    monkeypatch.setattr("flwr_sdp.magnitude.randomized_response", mutant)
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
    assert mechanism.min_output == pytest.approx(values.min(), rel=1e-9)
    assert mechanism.max_output == pytest.approx(np.abs(values).max(), rel=1e-9)


# ------------------------------------------------------------------ samples
DRAWN = [MECHANISMS[i] for i in (0, 3, 4, 5)]


@cache
def samples(mechanism, share, drawn_from=None):
    rng = seeded_generator(40, repr(mechanism), str(share))
    r = share * mechanism.max_norm
    source = drawn_from or mechanism
    return source.privatize(np.full(4000, r), rng)


def check_law(mechanism, share, outputs):
    values, law = output_law(mechanism, share * mechanism.max_norm)
    indices = np.rint((outputs - values[0]) / (values[1] - values[0])).astype(int)
    np.testing.assert_allclose(outputs, values[indices], atol=1e-9 * values[-1])
    assert_counts(np.bincount(indices, minlength=len(law)), law)


def check_moments(mechanism, share, outputs):
    r = min(max(share, 0.0), 1.0) * mechanism.max_norm
    assert_mean_close(outputs, r)
    assert_mean_close((outputs - r) ** 2, mechanism.variance(r))


@pytest.mark.parametrize("share", [0.0, 0.28, 1.0, 2.0])
@pytest.mark.parametrize("mechanism", DRAWN, ids=lambda m: f"eps{m.epsilon:g}")
def test_samples(mechanism, share):
    """4,000 draws: chi-square test of the outputs, mean, variance; false alarms: 2e-6 a case."""
    outputs = samples(mechanism, share)
    check_law(mechanism, share, outputs)
    check_moments(mechanism, share, outputs)


@pytest.mark.parametrize(("epsilon", "max_norm"), [(1e-3, 1e306), (1e-310, 1.0)])
def test_outputs_that_would_be_infinite_are_refused(epsilon, max_norm):
    with pytest.raises(ValueError, match="max_norm must keep the largest output finite"):
        ScalarDP.from_epsilon(epsilon, max_norm)


@pytest.mark.parametrize("epsilon", [40.0, 60.0, 83.0, 200.0])
@pytest.mark.parametrize("share", [0.123456789, 0.7])
def test_variance_on_the_finest_grids(epsilon, share):
    """In exact arithmetic: rounding costs f (1 - f) steps squared, and another index is rare."""
    mechanism = ScalarDP.from_epsilon(epsilon, 1.0)
    bins, place = mechanism.num_bins, Fraction(share) * mechanism.num_bins
    fraction, decay = place % 1, Fraction(math.exp(-epsilon))
    rare = (bins + 1) * decay / (1 + bins * decay)  # and then uniform
    square = Fraction(bins * (2 * bins + 1), 6)
    mixture = square - (1 - rare) * place * (bins - place) - rare * Fraction(bins * bins, 4)
    exact = ((1 - rare) * fraction * (1 - fraction) + rare * mixture) / (1 - rare) ** 2
    assert mechanism.variance(share) * bins**2 == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("fraction", [0.03, 0.25, 0.5, 0.97])
def test_a_number_is_rounded_up_with_the_probability_of_its_fraction(fraction):
    """To the last place: a threshold that is 2 % off would pass every test of samples."""
    mechanism = ScalarDP(epsilon=50.0, num_bins=10, max_norm=10.0)
    for shift, expected in ((-1e-12, 4.0), (1e-12, 3.0)):
        output = mechanism.privatize(3.0 + fraction, GivenUniform(fraction + shift))
        assert output / mechanism.step + mechanism.offset == pytest.approx(expected, rel=1e-12)


class AlwaysRoundsDown(ScalarDP):
    """The mutant that rounds to the grid point below."""

    __slots__ = ()

    def _positions(self, r):
        return np.floor(super()._positions(r))


@pytest.mark.parametrize("mechanism", DRAWN[1:], ids=lambda m: f"eps{m.epsilon:g}")
def test_sample_mutants(mechanism):
    """Each of a wrong budget, a wrong rounding and a wrong scale is noticed by its check."""
    epsilon, bins, most = mechanism.epsilon, mechanism.num_bins, mechanism.max_norm
    parameters = {"num_bins": bins, "max_norm": most}
    louder = ScalarDP(epsilon=0.7 * epsilon, **parameters)
    # On the grid of the true mechanism, so that only the probabilities differ.
    indices = np.rint(samples(mechanism, 0.28, louder) / louder.step + louder.offset)
    regridded = mechanism.step * (indices - mechanism.offset)
    assert_detects(check_law, mechanism, 0.28, regridded)
    down = AlwaysRoundsDown(epsilon=epsilon, **parameters)
    assert_detects(check_law, mechanism, 0.28, samples(mechanism, 0.28, down))
    assert_detects(check_moments, mechanism, 1.0, 1.15 * samples(mechanism, 1.0))


def test_samples_of_a_fine_grid():
    """4,000 draws at epsilon 40, k = 617,000: mean and variance; false alarms: 1.2e-6."""
    mechanism = ScalarDP.from_epsilon(40.0, 1.0)
    outputs = samples(mechanism, 0.123456789)
    assert_mean_close(outputs, 0.123456789, variance=mechanism.variance(0.123456789))
    assert np.max(np.abs(outputs - 0.123456789)) <= 1.5 * mechanism.step


def test_outputs_are_not_clipped():
    """Some outputs are negative and some exceed the range; clipping them would be a bias."""
    mechanism = ScalarDP.from_epsilon(0.5, 1.0)
    outputs = samples(mechanism, 0.5)
    assert outputs.min() == pytest.approx(mechanism.min_output)
    assert outputs.max() == pytest.approx(mechanism.max_output)
    assert outputs.min() < 0.0
    assert outputs.max() > mechanism.max_norm
    assert_detects(assert_mean_close, np.clip(samples(mechanism, 0.0), 0.0, 1.0), 0.0)


def test_numbers_out_of_range_are_clipped():
    """A number out of range gives the very output that the end of the range gives."""
    mechanism = ScalarDP.from_epsilon(3.0, 2.0)
    for outside, end in ((-1.0, 0.0), (-1e300, 0.0), (2.5, 2.0), (1e300, 2.0)):
        for seed in range(20):
            output = mechanism.privatize(outside, seeded_generator(41, seed))
            assert output == mechanism.privatize(end, seeded_generator(41, seed))


def test_any_number_type_is_taken():
    mechanism = ScalarDP.from_epsilon(3.0, 2.0)
    expected = mechanism.privatize(1.0, seeded_generator(42))
    for r in (1, np.float32(1.0), np.int64(1)):
        assert mechanism.privatize(r, seeded_generator(42)) == expected
    assert isinstance(mechanism.privatize(0.3), float)


# ------------------------------------------------------------------ limits
@PROPERTY
@given(
    epsilon=st.floats(math.log(1e-3), math.log(2e4)).map(math.exp),
    max_norm=st.floats(-20.0, 20.0).map(lambda power: 10.0**power),
    share=st.floats(0.0, 1.0),
)
def test_everything_is_finite(epsilon, max_norm, share):
    mechanism = ScalarDP.from_epsilon(epsilon, max_norm)
    r = share * max_norm
    variance = mechanism.variance(r)
    assert math.isfinite(variance)
    assert variance >= 0.0
    assert 0.0 < mechanism.step < math.inf
    assert mechanism.min_output <= 0.0
    assert max_norm * (1 - 1e-12) <= mechanism.max_output < math.inf
    assert -mechanism.min_output <= mechanism.max_output
    output = mechanism.privatize(r, seeded_generator(43))
    assert mechanism.min_output * (1 + 1e-9) <= output <= mechanism.max_output * (1 + 1e-9)


@PROPERTY
@given(
    max_norm=st.floats(1e-290, 1e150),
    bins=st.integers(1, 2**40),
)
def test_the_end_of_the_range_stays_on_the_grid(max_norm, bins):
    """k r / r_max must not round above k."""
    mechanism = ScalarDP(epsilon=2e4, num_bins=bins, max_norm=max_norm)
    output = mechanism.privatize(max_norm, seeded_generator(44))
    assert output == pytest.approx(max_norm, rel=1e-12)
