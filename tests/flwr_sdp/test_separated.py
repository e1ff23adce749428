"""The product of a private direction and a private magnitude."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flwr_sdp import (
    KeystreamGenerator,
    PrivUnit,
    ScalarDP,
    ScalarRelDP,
    SeparatedBudget,
    SeparatedEvent,
    SeparatedMechanism,
    seeded_generator,
)
from flwr_sdp.privunit import RULES, paper_cap_threshold
from flwr_sdp.sphere import sample_dots
from tests.statistics_helpers import (
    PROPERTY,
    DotLaw,
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_log_ratio,
    assert_mean_close,
    bolder_response,
    dims,
    dims_and_epsilons,
    law_of_scalar,
    random_unit,
)

BUDGET = SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=8.0)
DTYPES = [np.float32, np.float64]


def make(dim=10, max_norm=2.0, budget=BUDGET, rule="tight"):
    return SeparatedMechanism.from_budget(dim, budget, max_norm, rule=rule)


# ------------------------------------------------------------------ parameters
def test_budget_adds_up():
    assert BUDGET.total == 18.0


@pytest.mark.parametrize("part", [None, 5.0, PrivUnit, "PrivUnit"])
def test_parts_of_another_kind_are_refused(part):
    """The norm of a report is known for these two kinds of magnitude alone."""
    good = make()
    with pytest.raises(ValueError, match=r"^direction must be a PrivUnit; got"):
        SeparatedMechanism(direction=part, magnitude=good.magnitude)
    with pytest.raises(ValueError, match=r"^magnitude must be a ScalarDP or a ScalarRelDP; got"):
        SeparatedMechanism(direction=good.direction, magnitude=part)
    with pytest.raises(ValueError, match=r"^direction must be a PrivUnit; got"):
        SeparatedMechanism(direction=good.magnitude, magnitude=good.direction)


@pytest.mark.parametrize("rule", ["tight", "paper"])
def test_from_budget_uses_the_two_mechanisms(rule):
    mechanism = make(rule=rule)
    assert mechanism.direction == PrivUnit.from_epsilon(10, 10.0, rule=rule)
    assert mechanism.magnitude == ScalarDP.from_epsilon(8.0, 2.0)
    assert mechanism.dim == 10


def test_the_papers_product_takes_the_cap_or_not_with_even_odds():
    """Equation separated-product: no flip is paid for, so that p = 1/2."""
    mechanism = SeparatedMechanism.from_budget(500, BUDGET, 2.0, rule="paper", flip_share=0.0)
    assert mechanism.direction.cap_threshold == paper_cap_threshold(500, 10.0)
    assert mechanism.direction.epsilon_flip == 0.0
    assert mechanism.direction.cap_probability == 0.5


@pytest.mark.parametrize("budget", [None, 18.0, (10.0, 8.0), SeparatedBudget])
def test_budgets_of_another_kind_are_refused(budget):
    with pytest.raises(ValueError, match=r"^budget must be a SeparatedBudget; got"):
        SeparatedMechanism.from_budget(10, budget, 2.0)


@PROPERTY
@given(case=dims_and_epsilons(), share=st.floats(0.05, 0.95))
def test_event_never_exceeds_the_budget(case, share):
    dim, epsilon = case
    budget = SeparatedBudget(
        epsilon_direction=share * epsilon, epsilon_magnitude=(1 - share) * epsilon
    )
    mechanism = make(dim=dim, budget=budget)
    event = mechanism.event
    assert event.epsilon_direction == mechanism.direction.epsilon <= budget.epsilon_direction
    assert event.epsilon_magnitude == mechanism.magnitude.epsilon <= budget.epsilon_magnitude
    assert event.epsilon <= budget.total
    assert event == SeparatedEvent(
        epsilon_direction=event.epsilon_direction, epsilon_magnitude=event.epsilon_magnitude
    )
    assert math.isfinite(mechanism.max_output_norm)
    assert mechanism.max_output_norm >= mechanism.magnitude.max_norm * (1 - 1e-12)
    for norm in (0.0, 1.0, 2.0, 5.0):
        assert 0.0 <= mechanism.expected_squared_error(norm) < math.inf


def test_splits_of_the_papers_experiments():
    """0.99 and 0.01 within the direction; 13/16, 1/16 and 1/8 of a total."""
    networks = make(rule="paper")
    assert networks.direction.epsilon_flip == 0.01 * BUDGET.epsilon_direction
    total = 31.25
    budget = SeparatedBudget.from_total(total)
    assert budget.epsilon_magnitude == total / 8
    assert budget.total == pytest.approx(total, rel=1e-15)
    logistic = SeparatedMechanism.from_budget(500, budget, 2.0, rule="paper", flip_share=1 / 14)
    assert logistic.direction.epsilon_flip == pytest.approx(total / 16, rel=1e-15)
    threshold = paper_cap_threshold(500, 13 / 16 * total)
    assert logistic.direction.cap_threshold == pytest.approx(threshold, rel=1e-12)
    assert logistic.event.epsilon <= total


@PROPERTY
@given(
    epsilon=st.floats(-7.0, 10.0).map(math.exp),
    share=st.floats(1e-6, 1.0 - 1e-6),
)
@example(epsilon=0.3, share=0.1)
def test_a_split_never_costs_more_than_the_total(epsilon, share):
    budget = SeparatedBudget.from_total(epsilon, magnitude_share=share)
    assert epsilon * (1 - 1e-15) <= budget.total <= epsilon


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, math.nan, "1/8", True])
def test_bad_shares(share):
    with pytest.raises(ValueError, match="magnitude_share must be"):
        SeparatedBudget.from_total(10.0, magnitude_share=share)


def test_magnitudes_with_relative_error_are_taken():
    """2,500 outputs: their mean; false alarms: 7e-6."""
    magnitude = ScalarRelDP.from_epsilon(6.0, 2.0)
    mechanism = SeparatedMechanism(direction=make().direction, magnitude=magnitude)
    rows = np.tile(0.7 * random_unit(10), (2500, 1))
    outputs = mechanism.privatize(rows, seeded_generator(76))
    assert_mean_close(outputs, rows[0])
    assert_detects(assert_mean_close, 1.15 * outputs, rows[0])
    assert np.linalg.norm(outputs, axis=1).max() <= mechanism.max_output_norm * (1 + 1e-12)
    errors = np.sum((outputs - rows) ** 2, axis=1)
    assert_mean_close(errors, mechanism.expected_squared_error(0.7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_independent_releases(dtype):
    """3,000 pairs of rows, one of them zero: means, and no correlation; false alarms: 2e-5."""
    rows = np.tile(np.stack([random_unit(10), np.zeros(10)]), (3000, 1)).astype(dtype)
    outputs = make().privatize(rows, seeded_generator(77)).astype(np.float64)
    assert_mean_close(outputs[::2], rows[0])
    assert_mean_close(outputs[1::2], 0.0)
    noise = outputs - rows

    def check(first, second):
        assert_mean_close(np.sum(first * second, axis=1), 0.0)

    check(noise[::2], noise[1::2])
    check(noise[2::2], noise[:-2:2])
    assert_detects(check, noise[::2], noise[::2])


# ------------------------------------------------------------------ samples
MAX_NORM = 2.0
NORMS = [0.0, 0.3 * MAX_NORM, MAX_NORM, 3.0 * MAX_NORM]


def vector_of(norm, dtype=np.float64, dim=10):
    return (norm * random_unit(dim)).astype(dtype)


@cache
def samples(norm, dtype=np.float64, mutant=None):
    """Return 2,500 outputs for the vector of a norm, or 1,000 of a mutant."""
    if mutant == "longer":
        return 1.05 * samples(norm, dtype)
    mechanism, factor = make(), 1.0
    if mutant == "wrong p":
        wrong = dataclasses.replace(mechanism.direction, epsilon_flip=1.0)
        factor = mechanism.direction.scale / wrong.scale
        mechanism = dataclasses.replace(mechanism, direction=wrong)
    if mutant == "wrong offset":
        mechanism = dataclasses.replace(mechanism, magnitude=NoOffset.of(mechanism.magnitude))
    rng = seeded_generator(60, str(norm), dtype.__name__)
    vector, count = vector_of(norm, dtype), 1000 if mutant else 2500
    outputs = [mechanism.privatize(vector, rng) for _ in range(count)]
    return factor * np.array(outputs, dtype=np.float64)


class NoOffset(ScalarDP):
    """The mutant magnitude that does not take the mean of the uniform index off."""

    __slots__ = ()

    @classmethod
    def of(cls, magnitude):
        return cls(epsilon=3.0, num_bins=magnitude.num_bins, max_norm=magnitude.max_norm)

    @property
    def offset(self):
        return 0.0


def check_unbiased(norm, outputs):
    unit = random_unit(10)
    expected = min(norm, MAX_NORM)
    assert_mean_close(outputs, expected * unit)
    assert_mean_close(outputs @ unit, expected)


def exact_squared_error(norm):
    """Enumerate the magnitudes: E|Z - w|^2 = scale^2 E[M^2] - 2 |w| E[M] + |w|^2."""
    mechanism = make()
    scale, epsilon = 1.0 / DotLaw.of(mechanism.direction).mean, mechanism.magnitude.epsilon
    bins = mechanism.magnitude.num_bins
    position = bins * min(norm, MAX_NORM) / MAX_NORM
    low = min(int(position), bins - 1)
    rounded = np.zeros(bins + 1)
    rounded[low], rounded[low + 1] = 1 - (position - low), position - low
    law = (rounded * math.expm1(epsilon) + 1.0) / (math.exp(epsilon) + bins)
    step = (math.exp(epsilon) + bins) / math.expm1(epsilon) * MAX_NORM / bins
    magnitudes = step * (np.arange(bins + 1) - bins * (bins + 1) / 2 / (math.exp(epsilon) + bins))
    return scale**2 * (law @ magnitudes**2) - 2 * norm * (law @ magnitudes) + norm**2


def check_squared_error(norm, outputs):
    errors = np.sum((outputs - vector_of(norm)) ** 2, axis=1)
    assert_mean_close(errors, exact_squared_error(norm))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_samples(norm, dtype):
    """2,500 outputs: their mean (the clipped vector) and squared error.

    False alarms: 7e-6 a case, 6e-7 for each of 12 comparisons.
    """
    outputs = samples(norm, dtype)
    check_unbiased(norm, outputs)
    check_squared_error(norm, outputs)
    norms = np.linalg.norm(outputs, axis=1)
    assert norms.max() <= make().max_output_norm * (1 + 3e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_expected_squared_error(norm):
    assert make().expected_squared_error(norm) == pytest.approx(exact_squared_error(norm), rel=1e-9)


@pytest.mark.parametrize("norm", NORMS[1:])
@pytest.mark.parametrize("mutant", ["longer", "wrong p", "wrong offset"])
def test_sample_mutants(norm, mutant):
    outputs = samples(norm, mutant=mutant)
    assert_detects(check_unbiased, norm, outputs)
    if mutant == "wrong p":
        assert_detects(check_squared_error, norm, outputs)


class Absolute(ScalarDP):
    """The mutant magnitude that is never negative."""

    __slots__ = ()

    def privatize(self, r, rng=None):
        return np.abs(super().privatize(r, rng))


def test_negative_magnitudes_turn_the_direction_round():
    """3,000 outputs at an epsilon of 1, where a third of the magnitudes are negative: their mean.

    False alarms: 6e-6. Without the signs they are three times too long in the mean.
    """
    budget = SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=1.0)
    mechanism, vector = make(budget=budget), 0.6 * random_unit(10)

    def check(mechanism):
        outputs = mechanism.privatize(np.tile(vector, (3000, 1)), seeded_generator(78))
        assert_mean_close(outputs, vector)

    check(mechanism)
    magnitude = mechanism.magnitude
    absolute = Absolute(
        epsilon=magnitude.epsilon, num_bins=magnitude.num_bins, max_norm=magnitude.max_norm
    )
    assert_detects(check, dataclasses.replace(mechanism, magnitude=absolute))


def test_long_vectors_are_clipped_and_not_followed():
    """The mean for a vector of three times the range is not that vector."""
    assert_detects(assert_mean_close, samples(NORMS[3]), vector_of(NORMS[3]))


def test_longest_outputs_are_reached():
    """The largest norm is attained, so it is not a loose bound."""
    mechanism = make(budget=SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=1.0))
    outputs = [mechanism.privatize(vector_of(2.0), seeded_generator(61, i)) for i in range(30)]
    longest = max(np.linalg.norm(output) for output in outputs)
    assert longest == pytest.approx(mechanism.max_output_norm, rel=4e-12)


# ------------------------------------------------------------------ the zero vector
def check_zero(outputs):
    for probe in (np.eye(10)[0], np.eye(10)[9], random_unit(10, seed=7)):
        cosines = outputs @ probe / np.linalg.norm(outputs, axis=1)
        assert_follows(cosines, DotLaw(10).uniform_cdf)
    assert_mean_close(np.sum(outputs**2, axis=1), exact_squared_error(0.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_vector_has_a_random_direction(dtype):
    """2,500 outputs: KS test of three cosines, and the mean square; false alarms: 2e-6.

    The mutants give it a fixed direction, and nothing but a zero.
    """
    outputs = samples(0.0, dtype)
    check_zero(outputs)
    lengths = np.linalg.norm(outputs, axis=1, keepdims=True)
    signs = np.where(outputs[:, :1] > 0, 1.0, -1.0)
    assert_detects(check_zero, signs * lengths * random_unit(10))
    assert_detects(check_zero, 1e-3 * outputs)


@pytest.mark.parametrize("dim", [2, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_vector_in_other_dimensions(dtype, dim):
    """KS test of one cosine of 500 outputs; false alarms: 6e-7. The mutant is folded in half."""
    mechanism, rng = make(dim=dim), seeded_generator(62, dim)
    outputs = np.array([mechanism.privatize(np.zeros(dim, dtype), rng) for _ in range(500)])
    cosines = outputs[:, 0].astype(np.float64) / np.linalg.norm(outputs.astype(np.float64), axis=1)
    assert_follows(cosines, DotLaw(dim).uniform_cdf)
    assert_detects(assert_follows, np.abs(cosines), DotLaw(dim).uniform_cdf)


def test_negative_zero_is_zero():
    mechanism = make()
    np.testing.assert_array_equal(
        mechanism.privatize(np.full(10, -0.0), seeded_generator(63)),
        mechanism.privatize(np.zeros(10), seeded_generator(63)),
    )


# ------------------------------------------------------------------ huge and tiny vectors
EXTREMES = [
    (np.float32, 1e30),
    (np.float32, 3e37),
    (np.float32, 1e-30),
    (np.float32, 1e-37),
    (np.float32, 1e-40),  # subnormal: 5 digits are left
    (np.float64, 1e30),
    (np.float64, 1e160),  # its square overflows
    (np.float64, 1e300),
    (np.float64, 1e-160),  # its square underflows
    (np.float64, 1e-300),
    (np.float64, 1e-310),
]


def extreme_vector(size, dtype, dim):
    """Return a vector whose largest coordinate is `size`."""
    direction = random_unit(dim)
    return (size * (direction / np.max(np.abs(direction)))).astype(dtype)


@pytest.mark.parametrize("dim", [10, 5000])
@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
def test_extreme_vectors_are_released_like_ordinary_ones(size, dtype, dim):
    """The same stream gives the same output as a vector of ordinary size on the same side."""
    mechanism = make(dim=dim)
    ordinary = extreme_vector(100.0 if size > 1 else 1e-15, dtype, dim)
    output = mechanism.privatize(extreme_vector(size, dtype, dim), seeded_generator(64))
    expected = mechanism.privatize(ordinary, seeded_generator(64))
    assert output.dtype == dtype
    assert np.all(np.isfinite(output))
    np.testing.assert_allclose(output, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("dim", [10, 5000])
@pytest.mark.parametrize(("dtype", "size"), [e for e in EXTREMES if e[1] not in (1e-40, 1e-310)])
def test_extreme_vectors_keep_their_direction(size, dtype, dim):
    """Sign of the dot product of 200 outputs, against its exact law; false alarms: 6e-7 a case.

    The range ends at the vector's own norm, where an output can be as long (otherwise at 1), so
    that the magnitude is almost surely positive. The mutant forgets the direction.
    """
    vector = extreme_vector(size, dtype, dim)
    norm = float(np.linalg.norm(vector.astype(np.longdouble)))
    max_norm = norm if norm < min(1e100, 1e-3 * float(np.finfo(dtype).max)) else 1.0
    budget = SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=15.0)
    mechanism, rng = make(dim=dim, max_norm=max_norm, budget=budget), seeded_generator(65, dim)
    outputs = np.array([mechanism.privatize(vector, rng) for _ in range(200)])
    cosines = outputs.astype(np.float64) / max_norm @ random_unit(dim)
    law = DotLaw.of(mechanism.direction)
    same_side = 1.0 - float(law.cdf(0.0))

    def check(cosines):
        assert_frequency(np.count_nonzero(cosines > 0), len(cosines), same_side)

    check(cosines)
    assert_detects(check, np.where(np.arange(200) % 2, 1, -1) * cosines)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(dtype, size) for dtype, size in EXTREMES if 1e-38 < size < 1e37 or size == 1e-160],
)
def test_extreme_vectors_keep_their_magnitude(size, dtype):
    """At an epsilon where it is exact to 1e-8 of the range, which is four times as long."""
    vector = extreme_vector(size, dtype, 10)
    norm = float(np.linalg.norm(vector.astype(np.longdouble)))
    budget = SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=60.0)
    mechanism = make(max_norm=4.0 * norm, budget=budget)
    output = mechanism.privatize(vector, seeded_generator(79)).astype(np.longdouble)
    length = float(np.linalg.norm(output)) / mechanism.direction.scale
    assert length == pytest.approx(norm, rel=1e-5 if dtype is np.float32 else 1e-7)


@pytest.mark.filterwarnings("error")
def test_huge_vectors_cause_no_warning():
    make().privatize(np.full(10, 1e300), seeded_generator(64))


def test_tiny_vectors_with_long_outputs_stay_finite():
    """Small budgets make long outputs, and one that is not finite would betray the input."""
    budget = SeparatedBudget(epsilon_direction=1e-3, epsilon_magnitude=1e-3)
    mechanism = make(dim=5000, max_norm=100.0, budget=budget)
    vector = vector_of(1.1e-30, np.float32, 5000)
    for seed in range(20):
        output = mechanism.privatize(vector, seeded_generator(75, seed))
        assert np.all(np.isfinite(output))


def test_direction_of_a_vector_at_the_edge_of_its_type():
    """The magnitude of the longest float32 vector is that of its norm, beyond float32."""
    dim = 10
    vector = np.full(dim, np.finfo(np.float32).max)
    output = make(dim=dim).privatize(vector, seeded_generator(66))
    expected = make(dim=dim).privatize(np.ones(dim, np.float32) * 100, seeded_generator(66))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_coordinates_of_very_different_size(dtype):
    """A vector whose small coordinates vanish beside the large one counts as the large one."""
    vector = np.zeros(10, dtype)
    vector[3], vector[4] = 1e30, 1e-30
    other = np.zeros(10, dtype)
    other[3] = 1e30
    np.testing.assert_allclose(
        make().privatize(vector, seeded_generator(67)),
        make().privatize(other, seeded_generator(67)),
        rtol=1e-6,
    )


# ------------------------------------------------------------------ what goes in and out
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 3, 10, 4096, 4097, 40_000])
def test_shape_and_dtype_are_kept(dim, dtype):
    mechanism = make(dim=dim)
    vector = vector_of(1.0, dtype, dim)
    before = vector.copy()
    outputs = [mechanism.privatize(vector, seeded_generator(68, i)) for i in range(5)]
    np.testing.assert_array_equal(vector, before)
    for output in outputs:
        assert output.shape == (dim,)
        assert output.dtype == dtype
        assert not np.shares_memory(output, vector)
        length = np.linalg.norm(output.astype(np.float64))
        assert length <= mechanism.max_output_norm * (1 + 3e-5)
        # Its length is one of the finitely many that the magnitude can take.
        magnitude, scale = mechanism.magnitude, mechanism.direction.scale
        lengths = scale * np.abs(
            magnitude.step * (np.arange(magnitude.num_bins + 1) - magnitude.offset)
        )
        assert np.min(np.abs(lengths / length - 1)) < 3e-5


def test_layout_of_the_input_does_not_matter():
    vector = vector_of(1.0)
    strided = np.zeros((10, 2))
    strided[:, 1] = vector
    frozen = vector.copy()
    frozen.flags.writeable = False
    expected = make().privatize(vector, seeded_generator(69))
    for same in (strided[:, 1], frozen):
        np.testing.assert_array_equal(make().privatize(same, seeded_generator(69)), expected)


def test_generators_of_numpy_and_none_are_accepted():
    mechanism, vector = make(), vector_of(1.0)
    first = mechanism.privatize(vector, np.random.default_rng(1))
    np.testing.assert_array_equal(first, mechanism.privatize(vector, np.random.default_rng(1)))
    assert not np.array_equal(mechanism.privatize(vector), mechanism.privatize(vector))
    with pytest.raises(TypeError, match="rng must be"):
        mechanism.privatize(vector, 1)


# ------------------------------------------------------------------ privacy of the product
class GivenCoins(KeystreamGenerator):
    """A generator whose first coins are given, and which keeps the log-odds asked for."""

    def __init__(self, *coins):
        super().__init__(bytes(32), secure=False)
        self.coins, self.log_odds = list(coins), []

    def bernoullis(self, log_odds, count):
        self.log_odds.append(log_odds)
        return np.full(count, self.coins.pop(0))


def log_densities(mechanism, vector):
    """Return the log density of the direction, relative to the uniform law, where it may lie.

    Inside the cap and outside, p / P(cap) and (1 - p) / P(rest); 0 for a zero vector. The coin
    that is tossed says what p is. Where the sign of the magnitude is known, at the end of the
    range, the direction is on the side that the coin says.
    """
    norm, law = np.linalg.norm(vector), DotLaw.of(mechanism.direction)
    for side in (True, False):
        rng = GivenCoins(True, side)
        output = mechanism.privatize(vector, rng)
        _, log_odds = rng.log_odds  # that of the magnitude, and that of the direction
        if norm >= mechanism.magnitude.max_norm:
            cosine = output @ vector / np.linalg.norm(output) / norm
            assert cosine >= law.threshold - 1e-9 if side else cosine <= law.threshold + 1e-9
    if norm == 0.0:
        return [0.0]
    log_p, log_not_p = -np.logaddexp(0.0, [-log_odds, log_odds])
    return [log_p - math.log(law.cap), log_not_p - math.log1p(-law.cap)]


def check_joint_ratio(mechanism, shares=()):
    """Check that densities times probabilities of magnitudes spend the two budgets, no more.

    Between vectors of no length, of `shares` of the range, beyond it, and 0.3 of it: beyond it a
    magnitude is the last grid point, and at 0.3 never.
    """
    unit, laws, densities = random_unit(mechanism.dim), [], []
    for share in (0.0, 0.3, 3.0, *shares):
        norm = share * mechanism.magnitude.max_norm
        law = law_of_scalar(mechanism.magnitude, norm)
        for log_density in log_densities(mechanism, norm * unit):
            laws.append(law)
            densities.append(log_density)
    assert_log_ratio(laws, mechanism.event.epsilon, densities)


budgets = st.floats(math.log(0.01), math.log(500.0)).map(math.exp)


@PROPERTY
@given(
    dim=dims(largest=10**6),
    epsilons=st.tuples(budgets, budgets),
    bins=st.integers(2, 20),
    relative=st.booleans(),
    rule=st.sampled_from(RULES),
    max_norm=st.floats(-3.0, 3.0).map(lambda power: 10.0**power),
    shares=st.lists(st.floats(0.0, 1.1), max_size=2),
)
def test_joint_ratio(dim, epsilons, bins, relative, rule, max_norm, shares):
    """Over all pairs of vectors, directions and magnitudes: e^(epsilon_1 + epsilon_2), attained."""
    direction = PrivUnit.from_epsilon(dim, epsilons[0], rule=rule if dim > 2 else "tight")
    if relative:
        magnitude = ScalarRelDP.from_epsilon(
            epsilons[1], max_norm, accuracy=max_norm / 4.0, ratio=2.0
        )
    else:
        magnitude = ScalarDP(epsilon=epsilons[1], num_bins=bins, max_norm=max_norm)
    mechanism = SeparatedMechanism(direction=direction, magnitude=magnitude)
    assert mechanism.event.epsilon <= sum(epsilons)
    check_joint_ratio(mechanism, shares)


def fields_of(direction):
    return {name: getattr(direction, name) for name in ("dim", "cap_threshold", "epsilon_flip")}


class BolderFlip(PrivUnit):
    """The mutant that draws from the cap more often than it says."""

    __slots__ = ()

    def _dots(self, count, rng):
        return sample_dots(self._cap, rng.bernoullis(self.epsilon_flip + 0.1, count), rng)


class SwappedSides(PrivUnit):
    """The mutant that takes the rest of the sphere for the cap."""

    __slots__ = ()

    def _dots(self, count, rng):
        return sample_dots(self._cap, ~rng.bernoullis(self.epsilon_flip, count), rng)


@pytest.mark.parametrize("dim", [2, 1000])
def test_joint_ratio_mutants(monkeypatch, dim):
    """A bolder flip, swapped sides, and a magnitude which spends log k more."""
    mechanism = make(dim=dim)
    check_joint_ratio(mechanism)
    for kind in (BolderFlip, SwappedSides):
        mutant = dataclasses.replace(mechanism, direction=kind(**fields_of(mechanism.direction)))
        assert_detects(check_joint_ratio, mutant)
    monkeypatch.setattr("flwr_sdp.magnitude.randomized_response", bolder_response)
    assert_detects(check_joint_ratio, mechanism)


# ------------------------------------------------------------------ from 2 coordinates to a million
# 5 standard errors of the mean, and of the square, are below 2.5 % in each.
SIZES = {2: (8.0, 4000), 1000: (50.0, 1000), 10**6: (300.0, 200)}
each_size = pytest.mark.parametrize("dim", SIZES)
each_share = pytest.mark.parametrize("share", [0.6, 3.0])


def sized(dim):
    budget = SeparatedBudget(epsilon_direction=SIZES[dim][0], epsilon_magnitude=8.0)
    return make(dim, MAX_NORM, budget)


@cache
def products(dim, share, count, swapped=False):
    """Return <Z, u>, <Z, w> and |Z|^2 of float32 outputs, w being at right angles to the input."""
    mechanism, unit, probe = sized(dim), random_unit(dim), random_unit(dim, seed=1)
    probe -= (probe @ unit) * unit
    axes = np.stack([unit, probe / np.linalg.norm(probe)]).astype(np.float32)
    if swapped:
        swap = SwappedSides(**fields_of(mechanism.direction))
        mechanism = dataclasses.replace(mechanism, direction=swap)
    rng, many = seeded_generator(78, dim, str(share)), min(count, 10**6 // dim)
    rows, facts = np.tile(np.float32(share * MAX_NORM * unit), (many, 1)), []
    for _ in range(count // many):
        outputs = mechanism.privatize(rows, rng)
        facts.append(np.column_stack([outputs @ axes.T, np.sum(outputs * outputs, axis=1)]))
    return np.concatenate(facts).astype(np.float64).T


def moments(dim, share):
    """Return m, E[T^2] of a cosine T, and E[M^2] and E[M^4] of a magnitude, from their laws."""
    law, magnitude = DotLaw.of(sized(dim).direction), sized(dim).magnitude
    bins, odds = magnitude.num_bins, math.exp(-magnitude.epsilon)
    position = bins * min(share, 1.0)
    rounded = np.maximum(1.0 - np.abs(np.arange(bins + 1) - position), 0.0)
    probabilities = (rounded * (1.0 - odds) + odds) / (1.0 + bins * odds)
    noise = (bins + 1) * odds / (1.0 + bins * odds)  # how often the index is a uniform one
    values = MAX_NORM * (np.arange(bins + 1) / bins - noise / 2.0) / (1.0 - noise)
    return law.mean, law.variance + law.mean**2, *(probabilities @ values**n for n in (2, 4))


def check_mean(dim, share, dots, probes, _):
    m, cosine_square, second, _ = moments(dim, share)
    norm = min(share, 1.0) * MAX_NORM
    assert_mean_close(dots, norm, variance=second * cosine_square / m**2 - norm**2)
    assert_mean_close(probes, 0.0, variance=second * (1.0 - cosine_square) / (dim - 1) / m**2)


def check_second_moment(dim, share, _dots, _probes, squares):
    m, _, second, fourth = moments(dim, share)
    assert_mean_close(squares, second / m**2, variance=(fourth - second**2) / m**4)


@each_share
@each_size
def test_moments_from_two_coordinates_to_a_million(dim, share):
    """4,000, 1,000 and 200 float32 outputs: their mean along the input and across, and square.

    For a vector in the range, and a longer one, whose mean is as long as the range. All variances
    are exact. False alarms: 2e-6 a case; 7e-4 at a million coordinates, where of the 200 outputs
    few have another magnitude than the rounded one, or lie outside of the cap.
    """
    facts = products(dim, share, SIZES[dim][1])
    check_mean(dim, share, *facts)
    check_second_moment(dim, share, *facts)


@each_share
@each_size
def test_moments_from_two_coordinates_to_a_million_mutants(dim, share):
    """Outputs 5 % too long or too short, and the rest of the sphere taken for the cap."""
    dots, probes, squares = products(dim, share, SIZES[dim][1])
    for factor in (0.95, 1.05):
        scaled = factor * dots, factor * probes, factor * factor * squares
        assert_detects(check_mean, dim, share, *scaled)
        assert_detects(check_second_moment, dim, share, *scaled)
    assert_detects(check_mean, dim, share, *products(dim, share, 10, swapped=True))
