"""Updates that an onlooker has confined to a few known dimensions, against what he then finds."""

import math

import numpy as np
import pytest
from scipy import integrate, special

from flwr_sdp import PrivUnit, seeded_generator
from flwr_sdp.reconstruction import confined_cosine, max_epsilon_confined
from tests.statistics_helpers import DotLaw, assert_detects, assert_mean_close

LARGE = 10**8
WEIGHTS = 101_770  # of a network 784-128-10


def unit(dim, epsilon, rule="tight"):
    return PrivUnit.from_epsilon(dim, epsilon, rule=rule)


def sampled(mechanism, k, count, seed=0):
    """Draw cosines by the mechanism's dot products and the law of the sphere, at any dimension."""
    t = mechanism._dots(count, seeded_generator(seed))
    rng = np.random.default_rng(seed)
    rest = mechanism.dim - k
    others = rng.beta((k - 1) / 2, rest / 2, count) if rest else np.ones(count)
    return t / np.sqrt(t * t + (1.0 - t * t) * others)


def measured(directions, k, count, weights=None, seed=0):
    """Privatize an update that lies in the first k coordinates, and read those of the sum."""
    found = np.zeros((count, k))
    for number, direction in enumerate(directions):
        update = np.zeros((count, direction.dim))
        update[:, :k] = k**-0.5
        rng = seeded_generator(seed, "report", number)
        weight = 1.0 if weights is None else weights[number]
        found += weight * direction.privatize(update, rng)[:, :k]
    return found.sum(axis=1) * k**-0.5 / np.linalg.norm(found, axis=1)


# ------------------------------------------------------------------ one report
@pytest.mark.parametrize("rule", ["tight", "paper"])
@pytest.mark.parametrize(
    ("dim", "k", "epsilon"),
    [(3, 2, 1.0), (30, 2, 5.0), (30, 30, 8.0), (200, 10, 30.0), (1000, 199, 100.0)],
)
def test_one_report_gives_what_is_said(dim, k, epsilon, rule):
    """2,000 releases; of half the epsilon or twice the dimensions is another cosine."""
    direction = unit(dim, epsilon, rule)
    cosines = measured([direction], k, 2000)
    assert_mean_close(cosines, confined_cosine(direction, dim_target=k))
    if rule == "tight":
        half = unit(dim, epsilon / 2)
        assert_detects(assert_mean_close, cosines, confined_cosine(half, dim_target=k))
        if 2 * k <= dim:
            double = confined_cosine(direction, dim_target=2 * k)
            assert_detects(assert_mean_close, cosines, double)


@pytest.mark.parametrize("epsilon", [3.0, 50.0, 500.0, 10_000.0])
@pytest.mark.parametrize("k", [2, 3, 784, 10**5, 10**6])
@pytest.mark.parametrize("dim", [10**6, LARGE])
def test_one_report_gives_what_is_said_in_large_dimensions(dim, k, epsilon):
    """100,000 draws, by which a tenth of the epsilon is seen at k = 784."""
    direction = unit(dim, epsilon)
    cosines = sampled(direction, k, 100_000)
    assert_mean_close(cosines, confined_cosine(direction, dim_target=k))
    if k == 784:
        other = unit(dim, 0.9 * epsilon)
        assert_detects(assert_mean_close, cosines, confined_cosine(other, dim_target=k))


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4.0, 20.0])
@pytest.mark.parametrize(("dim", "k"), [(3, 2), (50, 2), (50, 48), (50, 49), (1000, 2), (1000, 30)])
def test_one_report_is_the_integral_over_the_length_in_the_known_dimensions(dim, k, epsilon):
    """By another way: E Y_1 on the cap of the smaller sphere, over all lengths R."""
    direction = unit(dim, epsilon)
    gamma, law = direction.cap_threshold, DotLaw.of(direction)
    log_constant = special.gammaln(k / 2) - special.gammaln((k + 1) / 2)
    log_constant -= special.betaln(k / 2, (dim - k) / 2)

    def moment(angle):  # R = sin(angle), whose square is Beta(k/2, (d-k)/2)
        length = math.sin(angle)
        inside = max(1.0 - (gamma / length) ** 2, 0.0) ** ((k - 1) / 2)
        return inside * length ** (k - 1) * math.cos(angle) ** (dim - k - 1)

    integral, _ = integrate.quad(
        moment, math.asin(gamma), math.pi / 2, epsabs=0.0, epsrel=1e-8, limit=200
    )
    moment_of_cap = math.exp(log_constant) / math.sqrt(math.pi) * integral
    expected = moment_of_cap * (law.p / law.cap - (1.0 - law.p) / (1.0 - law.cap))
    assert confined_cosine(direction, dim_target=k) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, 10_000.0])
@pytest.mark.parametrize("dim", [2, 3, 100, LARGE])
def test_in_all_dimensions_it_is_the_mean_of_the_mechanism(dim, epsilon):
    direction = unit(dim, epsilon)
    assert confined_cosine(direction, dim_target=dim) == 1.0 / direction.scale
    if dim > 2:
        below = confined_cosine(direction, dim_target=dim - 1)
        assert 1.0 / direction.scale < below <= 1.0


# ------------------------------------------------------------------ several reports
@pytest.mark.parametrize(
    ("k", "epsilon", "reports", "within"),
    [
        (2, 4.0, 10, 0.01),
        (10, 1.0, 10, 0.03),
        (10, 5.0, 3, 0.03),
        (100, 20.0, 2, 0.005),
        (100, 20.0, 10, 0.005),
        (100, 100.0, 5, 0.005),
    ],
)
def test_several_reports_give_what_is_said(k, epsilon, reports, within):
    """1,000 onlookers; who saw half as many reports, or twice the dimensions, finds less."""
    directions = [unit(300, epsilon)] * reports
    cosines = measured(directions, k, 1000)
    said = confined_cosine(directions, dim_target=k)
    error = cosines.std() / math.sqrt(len(cosines))
    tolerance = 5.0 * error + within * said
    assert abs(cosines.mean() - said) <= tolerance
    for mutant in (
        confined_cosine(directions[: reports // 2], dim_target=k),
        confined_cosine(directions, dim_target=2 * k),
    ):
        assert abs(cosines.mean() - mutant) > tolerance


def test_unequal_reports_count_by_what_they_tell():
    """With the weights that serve best; equal ones, or the strong report alone, give less."""
    directions = [unit(300, 60.0), unit(200, 20.0), unit(300, 20.0)]
    said = confined_cosine(directions, dim_target=50)
    # Of outputs of this scale, with the mean 1 and a variance of scale^2 - 1 over dim coordinates.
    best = [direction.dim / (direction.scale**2 - 1.0) for direction in directions]
    cosines = measured(directions, 50, 2000, best)
    error = cosines.std() / math.sqrt(len(cosines))
    assert abs(cosines.mean() - said) <= 5.0 * error + 0.005 * said
    assert said > measured(directions[:1], 50, 2000).mean() + 0.02


# ------------------------------------------------------------------ the figures of the threat model
def test_figures_that_are_told():
    """784 pixels of a network of 101,770 weights, at epsilon_1 = 500: docs/threat-model.md."""
    direction = unit(WEIGHTS, 500.0)
    assert confined_cosine(direction, dim_target=784) == pytest.approx(0.7457, abs=5e-5)
    assert confined_cosine([direction] * 10, dim_target=784) == pytest.approx(0.9624, abs=5e-5)
    assert confined_cosine(unit(LARGE, 500.0), dim_target=784) == pytest.approx(0.7449, abs=5e-5)
    assert_mean_close(sampled(direction, 784, 20_000), confined_cosine(direction, dim_target=784))
    for reports, epsilon in ((1, 139.75), (10, 18.98)):
        most = max_epsilon_confined(cosine=0.5, dim=WEIGHTS, dim_target=784, reports=reports)
        assert most == pytest.approx(epsilon, abs=5e-3)


# ------------------------------------------------------------------ the inverse
@pytest.mark.parametrize("cosine", [1e-6, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("reports", [1, 7])
@pytest.mark.parametrize(
    ("dim", "k"), [(2, 2), (50, 2), (784, 784), (WEIGHTS, 784), (LARGE, 10**6)]
)
def test_largest_epsilon_is_the_largest(dim, k, reports, cosine):
    most = max_epsilon_confined(cosine=cosine, dim=dim, dim_target=k, reports=reports)
    assert confined_cosine([unit(dim, most)] * reports, dim_target=k) <= cosine
    above = [unit(dim, most * (1.0 + 1e-8))] * reports
    assert confined_cosine(above, dim_target=k) > cosine


def test_no_report_gives_a_cosine_beyond_the_narrowest_cap():
    assert max_epsilon_confined(cosine=1.0 - 1e-9, dim=10, dim_target=10) == math.inf


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("reports", "k", "message"),
    [
        ([], 2, "reports must be a PrivUnit, or a list of one or more"),
        ([0.5], 2, "reports must be a PrivUnit"),
        *((other, 2, "reports must be a PrivUnit") for other in (None, 5, PrivUnit)),
        (unit(10, 1.0), 1, "dim_target must be an integer >= 2 and <= 10; got 1"),
        ([unit(10, 1.0), unit(5, 1.0)], 6, "dim_target must be .* <= 5; got 6"),
        (unit(10, 1.0), 2.0, "dim_target must be an integer"),
    ],
)
def test_what_makes_no_sense_is_refused(reports, k, message):
    with pytest.raises(ValueError, match=message):
        confined_cosine(reports, dim_target=k)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cosine": 1.0}, "cosine must be .*< 1; got 1.0"),
        ({"cosine": math.nan}, "cosine must be "),
        ({"dim": 1}, "dim must be an integer >= 2"),
        ({"dim_target": 11}, "dim_target must be .* <= 10; got 11"),
        ({"reports": 0}, "reports must be an integer >= 1; got 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        max_epsilon_confined(**{"cosine": 0.5, "dim": 10, "dim_target": 2} | change)
