"""Lower bounds of epsilon: below the claim of the real mechanism, above that of mutants.

A bound at confidence 1 - 1e-6 exceeds the true epsilon once in a million; seeds are fixed.
"""

import math

import numpy as np
import pytest
from scipy import stats

from flwr_sdp import PrivUnit, ScalarDP, SeparatedBudget, SeparatedMechanism, seeded_generator
from simulations.audit import distinguish
from simulations.audit.intervals import at_least, at_most, interval
from tests.simulations.audit import mutants

CONFIDENCE = 1 - 1e-6
OUTPUTS = 200_000
FEWER = 40_000  # enough for mutants
SMALL = [0.5, 1.0, 2.0, 4.0]


def of_direction(mechanism, outputs=OUTPUTS):
    rng = seeded_generator(0)
    return distinguish.of_direction(mechanism, outputs, rng, confidence=CONFIDENCE).lower


def of_magnitude(mechanism, outputs=OUTPUTS):
    rng = seeded_generator(0)
    return distinguish.of_magnitude(mechanism, outputs, rng, confidence=CONFIDENCE).lower


def of_product(mechanism, outputs=OUTPUTS):
    rng = seeded_generator(0)
    return distinguish.of_product(mechanism, outputs, rng, confidence=CONFIDENCE).lower


def assert_found(bound, epsilon, claim, share=0.8):
    """Check that a bound is below the claim, and near it where so many outputs can tell."""
    assert (share * epsilon if epsilon <= 4 else 5.0) < bound <= claim <= epsilon


def report(epsilon, dim=20):
    budget = SeparatedBudget(epsilon_direction=epsilon / 2, epsilon_magnitude=epsilon / 2)
    return SeparatedMechanism.from_budget(dim, budget, 2.0)


# ------------------------------------------------------------------ the real mechanism
@pytest.mark.parametrize("epsilon", [*SMALL, 8.0, 50.0])
@pytest.mark.parametrize("dim", [10, 50])
def test_direction_never_exceeds_its_claim(dim, epsilon):
    """From 0.5 to 4, more than four fifths of the claim are found."""
    mechanism = PrivUnit.from_epsilon(dim, epsilon)
    assert_found(of_direction(mechanism), epsilon, mechanism.epsilon)


@pytest.mark.parametrize("epsilon", [*SMALL, 8.0, 50.0])
def test_magnitude_never_exceeds_its_claim(epsilon):
    mechanism = ScalarDP.from_epsilon(epsilon, 3.0)
    assert_found(of_magnitude(mechanism), epsilon, mechanism.epsilon)


@pytest.mark.parametrize("epsilon", [*SMALL, 8.0])
def test_product_never_exceeds_its_claim(epsilon):
    """Of the smallest claim, 0.66 to 0.84 are found over seeds; three fifths have to be."""
    mechanism = report(epsilon)
    share = 0.6 if epsilon == 0.5 else 0.8
    assert_found(of_product(mechanism), epsilon, mechanism.event.epsilon, share)


# ------------------------------------------------------------------ mutants
@pytest.mark.parametrize("epsilon", SMALL)
@pytest.mark.parametrize(
    "kind", [mutants.WithoutFlip, mutants.HeightForThreshold, mutants.FlipTwiceAsRare]
)
def test_broken_directions_are_found(kind, epsilon):
    mechanism = PrivUnit.from_epsilon(20, epsilon)
    assert of_direction(mutants.direction(kind, mechanism), FEWER) > epsilon
    assert of_direction(mutants.direction(PrivUnit, mechanism), FEWER) <= epsilon


@pytest.mark.parametrize("epsilon", SMALL)
@pytest.mark.parametrize("kind", [mutants.QuietScalar, mutants.RoundedScalar])
def test_broken_magnitudes_are_found(kind, epsilon):
    mechanism = ScalarDP.from_epsilon(epsilon, 3.0)
    assert of_magnitude(mutants.magnitude(kind, mechanism), FEWER) > epsilon


@pytest.mark.parametrize("epsilon", SMALL)
@pytest.mark.parametrize(
    "part",
    [
        {"of_direction": mutants.WithoutFlip},
        {"of_direction": mutants.HeightForThreshold},
        {"of_magnitude": mutants.QuietScalar},
        {"of_magnitude": mutants.RoundedScalar},
    ],
    ids=lambda part: next(iter(part.values())).__name__,
)
def test_a_report_with_one_broken_part_is_found(part, epsilon):
    assert of_product(mutants.report(report(epsilon), **part), FEWER) > epsilon


# ------------------------------------------------------------------ counting
@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (777, 20_000)])
def test_intervals_are_those_of_clopper_and_pearson(successes, trials):
    expected = stats.binomtest(successes, trials).proportion_ci(0.999, method="exact")
    assert interval(successes, trials, 0.999) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("probability", [0.001, 0.3])
def test_limits_err_as_seldom_as_they_say(probability):
    trials = 500
    counts = np.arange(trials + 1)
    weights = stats.binom.pmf(counts, trials, probability)
    low = np.array([at_least(int(count), trials, 0.01) for count in counts])
    high = np.array([at_most(int(count), trials, 0.01) for count in counts])
    assert weights[low > probability].sum() <= 0.01
    assert weights[high < probability].sum() <= 0.01


def test_randomized_response_on_one_bit():
    """Truth with probability 3/4: epsilon is log 3, whichever input comes first."""
    rng = np.random.default_rng(0)
    first, second = (rng.random((100_000, 1)) < p for p in (0.75, 0.25))
    for pair in ((first, second), (second, first), (~first, ~second)):
        found = distinguish.lower_bound(*pair, confidence=0.999)
        assert 0.95 * math.log(3) < found.lower <= math.log(3)
        assert found.estimate == pytest.approx(math.log(3), rel=0.05)


def test_equal_inputs_show_nothing():
    rng = np.random.default_rng(0)
    first, second = (rng.random((10_000, 30)) < 0.5 for _ in range(2))
    assert distinguish.lower_bound(first, second, confidence=0.999).lower == 0.0


def test_the_event_is_chosen_on_one_half_and_counted_on_the_other():
    """An event that differs in the first half alone is chosen, and then shows nothing."""
    first, second = np.zeros((1000, 1), dtype=bool), np.zeros((1000, 1), dtype=bool)
    first[:500] = True
    found = distinguish.lower_bound(first, second, confidence=0.999)
    assert found.lower == 0.0


def test_other_magnitudes_are_refused():
    from flwr_sdp import ScalarRelDP

    mechanism = SeparatedMechanism(
        direction=PrivUnit.from_epsilon(5, 1.0),
        magnitude=ScalarRelDP.from_epsilon(1.0, 1.0),
    )
    with pytest.raises(ValueError, match="magnitude must be a ScalarDP"):
        of_product(mechanism)
