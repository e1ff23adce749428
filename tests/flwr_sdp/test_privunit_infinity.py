"""PrivUnitInfinity: against the oracle, against whole hypercubes, its samples against their law."""

import dataclasses
import itertools
import math
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from flwr_sdp import (
    KeystreamGenerator,
    PrivUnitInfinity,
    _validate,
    privunit_infinity,
    seeded_generator,
)
from flwr_sdp._numerics import MAX_DIM
from flwr_sdp.hypercube import HypercubeCap, fewest_matches, matches_for_log_odds
from flwr_sdp.privunit import RULES
from flwr_sdp.privunit_infinity import _round_to_corner
from tests.statistics_helpers import (
    PROPERTY,
    assert_counts,
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_mean_close,
    dims_and_epsilons,
    load_oracle,
)

CASES = load_oracle("privunit_infinity")["cases"]
close = {"rel": 1e-9, "abs": 0}


def case_id(case):
    return f"d{case['d']}-eps{case['eps']}"


each_case = pytest.mark.parametrize("case", CASES, ids=case_id)


def price(dim, kappa):
    """Return the exact price of a threshold, by way of a mechanism."""
    return PrivUnitInfinity(dim=dim, agreement_threshold=kappa, epsilon_flip=1.0).epsilon_cap


# ------------------------------------------------------------------ against the oracle
def test_oracle_is_complete():
    assert len(CASES) == 68
    assert sum(case["kappa_general"] is None for case in CASES) == 7
    assert sum("enumeration" in case for case in CASES) == 21


@pytest.mark.parametrize("case", [c for c in CASES if c["kappa_general"] is not None], ids=case_id)
def test_mechanism_matches_oracle(case):
    for flip, expected in case["m"].items():
        parameters = {
            "dim": case["d"],
            "agreement_threshold": case["kappa_general"],
            "epsilon_flip": float(flip),
        }
        if expected["norm_inf"] is None:  # half the cube and p = 1/2
            with pytest.raises(ValueError, match="carries nothing of the input"):
                PrivUnitInfinity(**parameters)
            continue
        mechanism = PrivUnitInfinity(**parameters)
        assert mechanism.min_matches == case["d_tau"]
        assert mechanism.cap_probability == pytest.approx(float(expected["p"]), **close)
        assert mechanism.epsilon_cap == pytest.approx(float(case["exact_price"]), **close)
        assert mechanism.epsilon == pytest.approx(float(expected["realised_loss"]), **close)
        assert mechanism.scale == pytest.approx(float(expected["norm_inf"]), **close)
        assert 1.0 / mechanism.scale == pytest.approx(float(expected["m"]), **close)


@pytest.mark.parametrize("case", [c for c in CASES if "enumeration" in c], ids=case_id)
def test_worst_ratio_matches_enumeration_of_the_oracle(case):
    expected = case["enumeration"]
    mechanism = PrivUnitInfinity(
        dim=case["d"],
        agreement_threshold=case["kappa_general"],
        epsilon_flip=float(expected["eps0"]),
    )
    assert mechanism.epsilon == pytest.approx(float(expected["log_worst_ratio"]), **close)
    cap_size = math.exp(mechanism._cap.log_probability) * 2 ** case["d"]
    assert cap_size == pytest.approx(expected["cap_size"], **close)


@each_case
def test_prices_of_the_corollary_match_oracle(case):
    for name in ("kappa1_as_stated", "kappa1_corrected", "kappa3"):
        if case.get(name) is not None:
            exact = price(case["d"], case[name])
            assert exact == pytest.approx(float(case[name + "_exact_price"]), **close)
            assert (exact <= float(case["eps"])) == case[name + "_sound"]


@pytest.mark.parametrize("case", [c for c in CASES if float(c["eps"]) > 0], ids=case_id)
def test_tight_rule_matches_oracle(case):
    epsilon, best = float(case["eps"]), case["best_split_of_eps"]
    mechanism = PrivUnitInfinity.from_epsilon(case["d"], epsilon)
    assert mechanism.min_matches == best["d_tau"]
    assert mechanism.agreement_threshold == best["kappa"]
    assert mechanism.epsilon_flip == pytest.approx(float(best["eps0"]), **close)
    assert mechanism.scale == pytest.approx(float(best["norm_inf"]), **close)
    assert mechanism.epsilon == pytest.approx(epsilon, **close)
    assert mechanism.epsilon <= epsilon


@each_case
def test_paper_rule_matches_oracle(case):
    """With a hundredth on the flip, and with none, where the whole budget goes to kappa."""
    dim, epsilon = case["d"], float(case["eps"])
    kappa = case["kappa_general"]
    if epsilon > 0 and (kappa is None or case["m"]["0"]["norm_inf"] is None):
        with pytest.raises(ValueError, match="no kappa >= 0 is admissible"):
            PrivUnitInfinity.from_epsilon(dim, epsilon, rule="paper", flip_share=0.0)
    elif epsilon > 0:
        mechanism = PrivUnitInfinity.from_epsilon(dim, epsilon, rule="paper", flip_share=0.0)
        assert mechanism.agreement_threshold == kappa
        assert mechanism.epsilon == pytest.approx(float(case["exact_price"]), **close)
    if kappa is None:
        return
    shared = PrivUnitInfinity.from_epsilon(dim, (epsilon + 1e-9) / 0.99, rule="paper")
    assert shared.agreement_threshold == kappa
    assert shared.epsilon_flip == pytest.approx(0.01 * (epsilon + 1e-9) / 0.99)
    assert shared.epsilon <= (epsilon + 1e-9) / 0.99


# ------------------------------------------------------------------ whole hypercubes
@cache
def corners(dim):
    return np.array(list(itertools.product((-1.0, 1.0), repeat=dim)))


@cache
def laws(mechanism):
    """Return P(V = v | u) for all corners: row u, column v. By counting, from p and kappa alone."""
    cube = corners(mechanism.dim)
    inside = cube @ cube.T > mechanism.agreement_threshold
    size = inside[0].sum()
    p = special.expit(mechanism.epsilon_flip)
    return np.where(
        inside, p / size, special.expit(-mechanism.epsilon_flip) / (2**mechanism.dim - size)
    )


def rounding_law(x):
    """Return the probability of every corner that x may be rounded to."""
    return np.prod((1.0 + x * corners(len(x))) / 2.0, axis=1)


def input_of(dim):
    """Return a fixed vector with no special direction, both signs and both ends of the range."""
    x = np.random.default_rng([7, dim]).uniform(-1.0, 1.0, dim)
    x[: max(0, min(2, dim - 1))] = (1.0, -1.0)[: max(0, min(2, dim - 1))]
    return x


def corner_of(dim):
    return np.sign(np.random.default_rng([8, dim]).uniform(-1.0, 1.0, dim))


SMALL = [
    (dim, kappa, flip)
    for dim in range(1, 10)
    for kappa in range(dim)
    for flip in (-0.3, 0.0, 0.5, 3.0)
    if price(dim, kappa) + flip > 1e-3
]


def small_mechanism(dim, kappa, flip):
    return PrivUnitInfinity(dim=dim, agreement_threshold=kappa, epsilon_flip=flip)


@pytest.mark.parametrize("dim", range(1, 10))
def test_whole_hypercube(dim):
    """For every kappa: m, the worst ratio over all pairs, the mean from every corner, the error.

    The mean and the squared error also at a vector inside the cube, rounding included.
    """
    cube, x = corners(dim), input_of(dim)
    for parameters in SMALL:
        if parameters[0] != dim:
            continue
        mechanism = small_mechanism(*parameters)
        law = laws(mechanism)
        np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=1e-12)
        worst = math.log(np.max(law.max(axis=0) / law.min(axis=0)))
        assert mechanism.epsilon == pytest.approx(worst, rel=1e-9)
        np.testing.assert_allclose(mechanism.scale * law @ cube, cube, atol=1e-11)
        at_x = rounding_law(x) @ law
        np.testing.assert_allclose(mechanism.scale * at_x @ cube, x, atol=1e-11)
        errors = np.sum((mechanism.scale * cube - x) ** 2, axis=1)
        assert mechanism.expected_squared_error(x) == pytest.approx(at_x @ errors, rel=1e-9)
        errors = np.sum((mechanism.scale * cube - cube[0]) ** 2, axis=1)
        assert mechanism.expected_squared_error(cube[0]) == pytest.approx(law[0] @ errors, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("dim", range(1, 10))
def test_tight_rule_is_best_of_all_thresholds(dim, epsilon):
    """Over every threshold, with the flip that spends what the threshold leaves (or lacks)."""
    best = PrivUnitInfinity.from_epsilon(dim, epsilon)
    scales = [
        PrivUnitInfinity(
            dim=dim, agreement_threshold=kappa, epsilon_flip=epsilon - price(dim, kappa)
        ).scale
        for kappa in range(dim)
    ]
    assert best.scale == pytest.approx(min(scales), rel=1e-12)
    assert best.epsilon == pytest.approx(epsilon, rel=1e-12)
    if epsilon >= 3.0:
        assert max(scales) > 1.01 * min(scales) or dim <= 2


# ------------------------------------------------------------------ privacy
def region_log_densities(mechanism):
    """Return log of p / P(cap) and of (1 - p) / P(rest): the mass of a corner, times 2^d."""
    log_cap = mechanism._cap.log_probability
    log_rest = math.log(-math.expm1(log_cap))
    log_p = -float(np.logaddexp(0.0, -mechanism.epsilon_flip))
    log_not_p = -float(np.logaddexp(0.0, mechanism.epsilon_flip))
    return log_p - log_cap, log_not_p - log_rest


def check_privacy(mechanism, epsilon):
    """Check that the log ratio of the two kinds of corner is what is stated."""
    inside, outside = region_log_densities(mechanism)
    # The logs of a cap are known to 1e-15 of their size, which is all that their difference has.
    slack = 1e-14 * abs(inside)
    assert inside - outside == pytest.approx(mechanism.epsilon, rel=1e-9, abs=1e-12 + slack)
    assert mechanism.epsilon <= epsilon
    assert mechanism.epsilon > 0.0


def by_rule(dim, epsilon, rule):
    """Return the mechanism, or None where the paper's rule has none and says so."""
    widest = HypercubeCap(dim, fewest_matches(dim)).log_odds
    if rule == "paper" and epsilon - 0.01 * epsilon < widest:
        with pytest.raises(ValueError, match="no kappa >= 0 is admissible"):
            PrivUnitInfinity.from_epsilon(dim, epsilon, rule=rule)
        return None
    return PrivUnitInfinity.from_epsilon(dim, epsilon, rule=rule)


def test_rounding_does_not_overspend():
    """Budgets where what the cap leaves for the flip, added to its price, is an ulp too much."""
    overspent = 0
    for epsilon in (k / 1000 for k in range(50, 500)):  # 0.09, 0.3, 0.459
        mechanism = PrivUnitInfinity.from_epsilon(2, epsilon)
        assert epsilon * (1.0 - 1e-14) <= mechanism.epsilon <= epsilon
        left = epsilon - mechanism.epsilon_cap
        overspent += left + mechanism.epsilon_cap > epsilon
    assert overspent >= 1


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 1.0, 3.0, 10.0, 100.0, 2000.0])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 10, 101, 1000, 10**5, 10**8])
def test_density_ratio(dim, epsilon):
    for rule in RULES:
        mechanism = by_rule(dim, epsilon, rule)
        if mechanism is not None:
            check_privacy(mechanism, epsilon)


@PROPERTY
@given(dims_and_epsilons(smallest=1))
def test_rules_over_the_range(case):
    """The stated loss, limits, and that the tight rule is never worse than the paper's."""
    dim, epsilon = case
    tight = PrivUnitInfinity.from_epsilon(dim, epsilon)
    check_privacy(tight, epsilon)
    assert tight.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert 1.0 - 1e-12 <= tight.scale < math.inf
    assert PrivUnitInfinity.from_epsilon(dim, 1.01 * epsilon).scale <= tight.scale * (1 + 1e-12)
    # m no longer rises at the best threshold, and still did at the one before.
    mean = 1.0 / tight.scale
    assert mean <= (2 * tight.min_matches - dim) / dim * (1 + 1e-9)
    if tight.min_matches > fewest_matches(dim):
        before = HypercubeCap(dim, tight.min_matches - 1)
        wider = PrivUnitInfinity(
            dim=dim,
            agreement_threshold=tight.agreement_threshold - 2,
            epsilon_flip=epsilon - before.log_odds,
        )
        assert wider.scale >= tight.scale * (1 - 1e-12)
    paper = by_rule(dim, epsilon, "paper")
    if paper is not None:
        check_privacy(paper, epsilon)
        assert paper.epsilon_flip == pytest.approx(0.01 * epsilon)
        assert tight.scale <= paper.scale * (1 + 1e-12)
        # The largest threshold: the next one costs more than its share.
        if paper.min_matches < dim:
            assert HypercubeCap(dim, paper.min_matches + 1).log_odds > 0.99 * epsilon * (1 - 1e-12)


@PROPERTY
@given(
    case=dims_and_epsilons(smallest=1),
    share=st.floats(0.0, 1.0),
    flip=st.floats(-3.0, 60.0),
)
def test_any_mechanism_states_its_loss(case, share, flip):
    dim = case[0]
    kappa = int(share**4 * (dim - 1))
    if price(dim, kappa) + flip > 1e-6:
        check_privacy(
            PrivUnitInfinity(dim=dim, agreement_threshold=kappa, epsilon_flip=flip), math.inf
        )


def test_density_ratio_mutants():
    """A wider or a narrower cap than stated, or a bolder flip, shows in the ratio."""
    mechanism = PrivUnitInfinity.from_epsilon(1000, 5.0)

    def check(other):
        inside, outside = region_log_densities(other)
        assert inside - outside == pytest.approx(5.0, rel=1e-9)

    check(mechanism)
    kappa, flip = mechanism.agreement_threshold, mechanism.epsilon_flip
    for changes in (
        {"agreement_threshold": kappa + 2},
        {"agreement_threshold": kappa - 2},
        {"epsilon_flip": flip + 0.01},
    ):
        assert_detects(check, dataclasses.replace(mechanism, **changes))


# ------------------------------------------------------------------ where the paper misprints
def first_bound(dim, kappa, shift=0):
    """Eq. sufficient-kappa1 of the corollary; shift = 1 puts kappa + 1 in the place of kappa."""
    level = (kappa + shift) * math.sqrt(2.0 / (3 * dim + 2))
    return 2.0 * math.atanh(level) if level < 1.0 else math.inf


def second_bound(dim, kappa):
    """Eq. sufficient-kappa3 of the corollary."""
    lean = (kappa + 2) / dim
    if lean >= 1.0:
        return -math.inf  # log(d - kappa_2^2 / d) is log 0
    entropy = (1 + lean) * math.log1p(lean) + (1 - lean) * math.log1p(-lean)
    return 0.5 * math.log(2.0) + 0.5 * math.log(dim - lean * lean * dim) + dim / 2 * entropy


@pytest.mark.parametrize(
    ("dim", "widest", "last"),
    [(2, 1.0986, 0), (64, 0.199, 6), (100, None, 6), (1000, 0.0505, 14), (10**4, 0.0160, 26)],
)
def test_first_bound_of_the_corollary_is_not_sufficient(dim, widest, last):
    """As printed kappa = 0 is free; its true price is not, and so it goes on up to `last`."""
    assert first_bound(dim, 0) == 0.0
    if widest is not None:
        assert price(dim, 0) == pytest.approx(widest, rel=5e-3)
    violated = [
        kappa
        for kappa in range(0, min(dim - 1, 60), 2)
        if kappa < math.sqrt(1.5 * dim + 1) and price(dim, kappa) > first_bound(dim, kappa)
    ]
    assert violated == list(range(0, last + 1, 2))
    repaired = [k for k in range(min(dim, 200)) if price(dim, k) > first_bound(dim, k, shift=1)]
    assert repaired == []


def test_first_bound_counterexample():
    assert first_bound(100, 6) == pytest.approx(1.068, abs=5e-4)
    assert price(100, 6) == pytest.approx(1.141, abs=5e-4)


@pytest.mark.parametrize("dim", [4, 9, 10, 51, 100, 1000])
def test_second_bound_of_the_corollary_admits_one_corner(dim):
    """At kappa = d - 2 it holds for every epsilon; the cap has one corner, of price log(2^d - 1).

    Below that it is sufficient.
    """
    if dim % 2 == 0:
        assert second_bound(dim, dim - 2) == -math.inf
        one_corner = PrivUnitInfinity(dim=dim, agreement_threshold=dim - 2, epsilon_flip=0.0)
        assert one_corner.min_matches == dim
        assert one_corner.epsilon == pytest.approx(dim * math.log(2) + math.log1p(-(0.5**dim)))
    top = dim - 4 if dim % 2 == 0 else dim - 3
    sound = [price(dim, kappa) <= second_bound(dim, kappa) for kappa in range(top + 1)]
    assert all(sound)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 5.0, 30.0])
def test_paper_rule_does_not_use_the_corollary(epsilon):
    """Its kappa is private, and larger than what the second bound (without its pole) admits."""
    mechanism = PrivUnitInfinity.from_epsilon(100, epsilon, rule="paper")
    assert mechanism.agreement_threshold < 98
    assert mechanism.epsilon <= epsilon
    admitted = [k for k in range(0, 97, 2) if second_bound(100, k) <= 0.99 * epsilon]
    assert mechanism.agreement_threshold >= max(admitted, default=0)


def test_matches_of_the_algorithm_and_not_of_the_proof():
    """The proof's ceil((d + kappa) / 2) is one less where d + kappa is even, and under-reports."""
    mechanism = PrivUnitInfinity(dim=64, agreement_threshold=8, epsilon_flip=0.0)
    assert mechanism.min_matches == 37
    assert mechanism.epsilon == pytest.approx(1.899, abs=5e-4)
    assert HypercubeCap(64, 36).log_odds == pytest.approx(1.444, abs=5e-4)
    for dim in range(1, 12):
        for kappa in range(dim):
            if dim == 1 or price(dim, kappa) > 0:
                matches = small_mechanism(dim, kappa, 1.0).min_matches
                assert matches == math.ceil((dim + kappa + 1) / 2)
                # <v, u> = 2 matches - d exceeds kappa at this number of matches, and not before.
                assert 2 * matches - dim > kappa >= 2 * (matches - 1) - dim


def test_neighbouring_thresholds_give_one_mechanism():
    for dim in (8, 9):
        for kappa in range(dim % 2, dim - 1, 2):
            low, high = small_mechanism(dim, kappa, 1.0), small_mechanism(dim, kappa + 1, 1.0)
            if low.min_matches == high.min_matches:
                assert low.scale == high.scale
    assert small_mechanism(8, 2, 1.0).min_matches == small_mechanism(8, 3, 1.0).min_matches == 6
    assert small_mechanism(9, 1, 1.0).min_matches == small_mechanism(9, 2, 1.0).min_matches == 6


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("dim", [2, 3, 8, 9, 1000, 10**4, 10**8])
def test_budgets_too_small_for_the_papers_rule(dim, share):
    """The message names the smallest budget that works: it does, and less does not."""
    least = HypercubeCap(dim, fewest_matches(dim) + (dim % 2 if share == 0.0 else 0)).log_odds
    if least == 0.0:  # an odd dimension with a flip: half the cube costs nothing
        assert PrivUnitInfinity.from_epsilon(dim, 1e-6, rule="paper", flip_share=share).epsilon > 0
        return
    with pytest.raises(ValueError, match="no kappa >= 0 is admissible") as caught:
        PrivUnitInfinity.from_epsilon(dim, 1e-6, rule="paper", flip_share=share)
    text = str(caught.value)
    assert text.startswith("epsilon must be >= ")
    assert f"at dim {dim}" in text
    assert "got 1e-06" in text
    named = float(re.search(r">= (\S+) for", text).group(1))
    assert named == pytest.approx(least / (1 - share), rel=2e-5)
    assert PrivUnitInfinity.from_epsilon(dim, named, rule="paper", flip_share=share).epsilon > 0
    with pytest.raises(ValueError, match="no kappa >= 0 is admissible"):
        PrivUnitInfinity.from_epsilon(dim, 0.9999 * named, rule="paper", flip_share=share)
    assert PrivUnitInfinity.from_epsilon(dim, 1e-6).epsilon == pytest.approx(1e-6, rel=1e-9)


def test_paper_rule_at_one_dimension():
    """One coordinate is plain randomized response: there is no price, so no flip, no release."""
    with pytest.raises(ValueError, match="epsilon must be spent on the flip in part"):
        PrivUnitInfinity.from_epsilon(1, 5.0, rule="paper", flip_share=0.0)
    mechanism = PrivUnitInfinity.from_epsilon(1, 5.0)
    assert mechanism.epsilon_flip == 5.0
    assert mechanism.scale == pytest.approx(1.0 / math.tanh(2.5))


def test_less_than_half_in_the_cap_is_sometimes_best():
    """At even dimensions and small budgets; the cap's corners are still the likelier ones."""
    mechanism = PrivUnitInfinity.from_epsilon(2, 0.5)
    assert mechanism.epsilon_flip < 0.0
    assert mechanism.cap_probability < 0.5
    assert mechanism.epsilon == pytest.approx(0.5, rel=1e-12)
    inside, outside = region_log_densities(mechanism)
    assert inside - outside == pytest.approx(0.5)


def test_samples_of_less_than_half_in_the_cap():
    """2,000 outputs at p = 0.35: chi-square over all corners, and the mean; false alarms: 2e-6.

    The mutant takes p for 1 - p.
    """
    mechanism = PrivUnitInfinity.from_epsilon(2, 0.5)
    flipped = dataclasses.replace(mechanism, epsilon_flip=-mechanism.epsilon_flip)
    corner = np.array([1.0, -1.0])

    def check(source):
        batch = np.broadcast_to(corner, (2000, 2))
        signs = np.sign(source.privatize(batch, seeded_generator(59)))
        counts = np.bincount(((signs > 0) @ np.array([2, 1])), minlength=4)
        assert_counts(counts, rounding_law(corner) @ laws(mechanism))
        assert_mean_close(mechanism.scale * signs, corner)

    check(mechanism)
    assert_detects(check, flipped)


def test_largest_coordinate_of_half_the_cube():
    """sqrt(pi d / 2) (e^eps + 1) / (e^eps - 1), not sqrt(d) p / (1 - p)."""
    mechanism = PrivUnitInfinity(dim=501, agreement_threshold=0, epsilon_flip=0.5)
    assert mechanism.epsilon == 0.5
    assert mechanism.scale == pytest.approx(114.48, abs=5e-3)
    about = math.sqrt(math.pi * 501 / 2) / math.tanh(0.25)
    assert mechanism.scale == pytest.approx(about, rel=2e-3)


# ------------------------------------------------------------------ samples
class NegatedBernoulli(KeystreamGenerator):
    """The mutant that takes the rest of the cube for the cap."""

    def bernoullis(self, log_odds, count):
        return ~super().bernoullis(log_odds, count)


# dim, rule, epsilon, share of the paper's flip: p is above 0.9 in each, so that 5 % off shows.
SETTINGS = [
    (2, "tight", 4.5, 0.01),
    (3, "tight", 5.0, 0.01),
    (3, "paper", 4.0, 0.8),  # half the cube
    (10, "tight", 8.0, 0.01),
    (1000, "tight", 50.0, 0.01),
    (1000, "paper", 50.0, 0.08),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)
MUTANTS = ["wrong m", "swapped cap", "wrong p", "wrong threshold"]


def mechanism_of(setting):
    dim, rule, epsilon, share = setting
    return PrivUnitInfinity.from_epsilon(dim, epsilon, rule=rule, flip_share=share)


def mutate(mechanism, mutant):
    """Return a mechanism and the factor that brings it to the scale of the true one."""
    wrong = mechanism
    if mutant == "wrong threshold":
        kappa = mechanism.agreement_threshold
        kappa += 2 if mechanism.min_matches < mechanism.dim else -2
        wrong = dataclasses.replace(mechanism, agreement_threshold=kappa)
    if mutant == "wrong p":
        p = 0.95 * mechanism.cap_probability
        wrong = dataclasses.replace(mechanism, epsilon_flip=math.log(p / (1.0 - p)))
    return wrong, mechanism.scale / wrong.scale


def generator(mutant, *key):
    if mutant == "swapped cap":
        return NegatedBernoulli(seeded_generator(60, *key).bits(4).tobytes(), secure=False)
    return seeded_generator(60, *key)


@cache
def outputs(setting, mutant=None, inside=False):
    """Return 2,000 outputs for a corner or for a vector inside; 1,000 of large or mutant ones."""
    if mutant == "wrong m":
        return 1.05 * outputs(setting, None, inside)
    mechanism, factor = mutate(mechanism_of(setting), mutant)
    x = input_of(mechanism.dim) if inside else corner_of(mechanism.dim)
    count = 2000 if mechanism.dim <= (3 if mutant else 100) else 1000
    batch = np.broadcast_to(x, (count, mechanism.dim))
    return factor * mechanism.privatize(batch, generator(mutant, str(setting)))


def true_mean(mechanism):
    """Return m as Algorithm 2 has it, from scipy's binomials."""
    dim, matches = mechanism.dim, (mechanism.dim + mechanism.agreement_threshold) // 2 + 1
    p = special.expit(mechanism.epsilon_flip)
    tail = stats.binom.logsf(matches - 1, dim, 0.5)
    weight = stats.binom.logpmf(matches - 1, dim - 1, 0.5) - math.log(2)
    rest = math.log(-math.expm1(tail))
    return p * math.exp(weight - tail) - (1 - p) * math.exp(weight - rest)


class MatchesLaw:
    """The exact law of the number of coordinates in which an output agrees with a corner."""

    def __init__(self, mechanism):
        dim, matches = mechanism.dim, (mechanism.dim + mechanism.agreement_threshold) // 2 + 1
        self.p = special.expit(mechanism.epsilon_flip)
        self.dim, self.threshold = dim, matches
        self.counts = np.arange(dim + 1)
        log_pmf = stats.binom.logpmf(self.counts, dim, 0.5)
        inside = self.counts >= matches
        share = np.where(
            inside,
            math.log(self.p) - stats.binom.logsf(matches - 1, dim, 0.5),
            math.log1p(-self.p) - stats.binom.logcdf(matches - 1, dim, 0.5),
        )
        self.pmf = np.exp(log_pmf + share)

    @property
    def mean(self):
        return self.pmf @ self.counts

    @property
    def variance(self):
        return self.pmf @ (self.counts - self.mean) ** 2


def matches_in(setting, samples):
    dim = setting[0]
    agreement = samples @ corner_of(dim) * true_mean(mechanism_of(setting))
    return np.rint((agreement + dim) / 2).astype(int)


def check_values(setting, samples):
    """Check that every coordinate is plus or minus 1/m."""
    np.testing.assert_allclose(np.abs(samples), 1.0 / true_mean(mechanism_of(setting)), rtol=1e-9)


def variance_along(setting):
    """Return the exact variance of <Z, u>."""
    mechanism = mechanism_of(setting)
    return 4.0 * MatchesLaw(mechanism).variance / true_mean(mechanism) ** 2


def check_unbiased(setting, samples):
    corner = corner_of(setting[0])
    assert_mean_close(samples, corner)
    assert_mean_close(samples @ corner, setting[0], variance=variance_along(setting))


def check_squared_error(setting, samples):
    corner, dim = corner_of(setting[0]), setting[0]
    errors = np.sum((samples - corner) ** 2, axis=1)
    mechanism, variance = mechanism_of(setting), 4.0 * variance_along(setting)
    assert_mean_close(errors, dim / true_mean(mechanism) ** 2 - dim, variance=variance)
    assert_mean_close(errors, mechanism.expected_squared_error(corner), variance=variance)


def check_matches(setting, samples):
    counts = matches_in(setting, samples)
    law = MatchesLaw(mechanism_of(setting))
    assert law.pmf.sum() == pytest.approx(1.0, rel=1e-9)
    assert_counts(np.bincount(counts, minlength=law.dim + 1), law.pmf)


SAMPLE_CHECKS = [check_values, check_unbiased, check_squared_error, check_matches]


@each_setting
@pytest.mark.parametrize("check", SAMPLE_CHECKS)
def test_samples(check, setting):
    """2,000 outputs (1,000 at dim 1000) for a corner: values, mean, squared error, matches.

    False alarms: 6e-7 for each comparison, of which the mean has one for every coordinate (hence
    6e-4 at dim 1000) and the others one or two.
    """
    check(setting, outputs(setting))


@pytest.mark.parametrize(
    ("setting", "mutant"),
    [(s, mutant) for s in SETTINGS for mutant in MUTANTS if (s[0], mutant) != (2, MUTANTS[-1])],
    ids=str,
)
def test_sample_mutants(setting, mutant):
    """1,000 outputs of a mutant (2,000 at dim 2 and 3) fail the checks that can see it.

    A wrong m leaves the signs, and so the matches, as they are; it moves the mean by 5 %, too
    little for so few outputs of half the cube (kappa = 0), which are long. A threshold that is
    off by one moves the mean little at dim 1000, and has no room at dim 2.
    """
    samples = outputs(setting, mutant)
    if mutant == "wrong m":
        assert_detects(check_values, setting, samples)
        if mechanism_of(setting).agreement_threshold > 0:
            assert_detects(check_unbiased, setting, samples)
        return
    assert_detects(check_matches, setting, samples)
    if mutant != "wrong threshold":
        assert_detects(check_unbiased, setting, samples)
        assert_detects(check_squared_error, setting, samples)


@each_setting
def test_samples_inside_the_cube(setting):
    """2,000 outputs (1,000 at dim 1000) for a vector that is no corner; false alarms: 6e-4.

    The mutant rounds every coordinate to the nearer end; a wrong m and a stated error that
    leaves out the rounding are noticed too.
    """
    mechanism, x = mechanism_of(setting), input_of(setting[0])
    samples = outputs(setting, None, True)

    def check(samples):
        assert_mean_close(samples, x)
        assert_mean_close(samples @ x, x @ x)
        assert_mean_close(np.sum((samples - x) ** 2, axis=1), mechanism.expected_squared_error(x))

    check(samples)
    nearest = np.broadcast_to(np.where(x < 0, -1.0, 1.0), (1000, len(x)))
    assert_detects(check, mechanism.privatize(nearest, seeded_generator(61)))
    if setting[0] < 1000:
        assert_detects(check, 1.05 * samples)
    errors = np.sum((samples - x) ** 2, axis=1)
    without_rounding = setting[0] * (mechanism.scale**2 - 1.0)
    assert_detects(assert_mean_close, errors, without_rounding)


@pytest.mark.parametrize("setting", [SETTINGS[1], SETTINGS[2]], ids=str)
def test_whole_law_of_the_output(setting):
    """Chi-square over all 8 corners, for a corner and for a vector inside; false alarms: 1e-6.

    This is the probability of every output, by enumeration: side, number, place and rounding.
    """
    mechanism = mechanism_of(setting)
    for inside, x in ((False, corner_of(3)), (True, input_of(3))):
        samples = outputs(setting, None, inside)
        ids = (samples > 0) @ np.array([4, 2, 1])
        law = rounding_law(x) @ laws(mechanism)

        def check(ids, law=law):
            assert_counts(np.bincount(ids, minlength=8), law)

        check(ids)
        assert_detects(check, 7 - ids)
        assert_detects(check, (np.roll(samples, 1, axis=1) > 0) @ np.array([4, 2, 1]))


# ------------------------------------------------------------------ which coordinates agree
def check_exchangeable(agrees, law):
    """Check that each coordinate, and each pair of them, agrees as often as any other."""
    dim = agrees.shape[1]
    share = law.mean / dim
    assert_mean_close(agrees, share, variance=share * (1 - share))
    both = law.pmf @ (law.counts * (law.counts - 1.0)) / (dim * (dim - 1))
    for i, j in itertools.combinations(range(dim), 2):
        product = agrees[:, i] * agrees[:, j]
        assert_mean_close(product, both, variance=both * (1 - both))


@pytest.mark.parametrize("block", [3, 10, 65_536])
def test_coordinates_are_exchangeable(monkeypatch, block):
    """3,000 outputs of ten coordinates, in blocks of 3 (the last of 1), in one, or all together.

    Compares 10 shares and 45 pairs; false alarms: 3e-5 a case. The mutants keep the number of
    matches, but prefer the first coordinates in one draw of five, or tie neighbours to each other.
    """
    monkeypatch.setattr(privunit_infinity, "_BLOCK", block)
    if block <= 10:
        monkeypatch.setattr(privunit_infinity, "_SHORT", 0)
    mechanism = PrivUnitInfinity(dim=10, agreement_threshold=3, epsilon_flip=1.0)
    corner = corner_of(10)
    samples = mechanism.privatize(np.broadcast_to(corner, (3000, 10)), seeded_generator(62, block))
    agrees = (samples * corner > 0).astype(float)
    law = MatchesLaw(mechanism)
    assert_counts(np.bincount(agrees.sum(axis=1).astype(int), minlength=11), law.pmf)
    check_exchangeable(agrees, law)
    favoured = agrees.copy()
    favoured[::5] = np.sort(favoured[::5], axis=1)[:, ::-1]
    assert_detects(check_exchangeable, favoured, law)
    tied = agrees.copy()
    tied[::3] = np.sort(tied[::3].reshape(-1, 5, 2), axis=2).reshape(-1, 10)
    assert_detects(check_exchangeable, tied, law)


# ------------------------------------------------------------------ many coordinates
LARGE = PrivUnitInfinity.from_epsilon(10**5, 100.0, rule="paper", flip_share=0.05)


@cache
def large_matches(mutant=None):
    mechanism, _ = mutate(LARGE, mutant)
    rng, corner = generator(mutant, 10**5), corner_of(10**5).astype(np.float32)
    counts = []
    for _ in range(40):
        output = mechanism.privatize(corner, rng)
        assert np.all(np.abs(output) == np.float32(mechanism.scale))
        counts.append(np.count_nonzero(output * corner > 0))
    return np.array(counts)


def check_large(counts, factor=1.0):
    law = MatchesLaw(LARGE)
    dots = factor * LARGE.scale * (2.0 * counts - 10**5)  # <Z, u>
    assert_mean_close(dots, 10**5, variance=4.0 * LARGE.scale**2 * law.variance)
    assert_frequency(np.count_nonzero(counts >= law.threshold), len(counts), law.p)
    inside = counts[counts >= law.threshold]
    levels = np.cumsum(law.pmf[law.threshold :]) / law.p
    fill = np.random.default_rng(0).random(len(inside))
    offset = inside - law.threshold
    assert_follows(levels[offset] - fill * law.pmf[inside] / law.p, lambda level: level)


def test_a_hundred_thousand_coordinates():
    """40 float32 outputs in two blocks: mean, share inside the cap, law of the matches there.

    The squared error follows from the mean. False alarms: 6e-7 for the last two; 1e-3 for the
    mean, in which draws from the rest are rare.
    """
    check_large(large_matches())


def test_a_hundred_thousand_coordinates_mutants():
    assert_detects(check_large, large_matches(), 1.1)
    assert_detects(check_large, large_matches("swapped cap"))


MILLION = PrivUnitInfinity.from_epsilon(10**6, 300.0)
each_input = pytest.mark.parametrize("name", ["corner", "inside"])


@cache
def million_input(name):
    """Return x, a corner or not, and another corner w."""
    make = corner_of if name == "corner" else input_of
    return make(MILLION.dim), corner_of(MILLION.dim)[::-1]


@cache
def million(name, count, mutant=None):
    """Return <Z, x>, <Z, w> and |Z - x|^2 of outputs: of each an array."""
    x, w = (np.float32(vector) for vector in million_input(name))
    rng, facts = generator(mutant, 10**6, name), []
    for _ in range(count):
        output = MILLION.privatize(x, rng)
        error = output - x
        facts.append(
            (np.dot(output, x), np.dot(output, w), np.sum(error * error, dtype=np.float64))
        )
    return np.array(facts, dtype=np.float64).T


@cache
def million_mean_pair():
    """Return m, and the mean of the product of two agreements a_i, where V_i = a_i u_i."""
    law, dim = MatchesLaw(MILLION), MILLION.dim
    assert law.pmf.sum() == pytest.approx(1.0, rel=1e-6)
    pair = (law.pmf @ (2.0 * law.counts - dim) ** 2 - dim) / (dim * (dim - 1.0))
    return true_mean(MILLION), pair


def variance_of_product(x, w):
    """Return the exact variance of <Z, w>, rounding of x included."""
    mean, pair = million_mean_pair()
    square = w @ w + pair * ((x @ w) ** 2 - (x * x) @ (w * w))
    return square / mean**2 - (x @ w) ** 2


def check_million_mean(name, dots, probes, errors):
    x, w = million_input(name)
    assert_mean_close(dots, x @ x, variance=variance_of_product(x, x))
    assert_mean_close(probes, x @ w, variance=variance_of_product(x, w))


def check_million_squared_error(name, dots, probes, errors):
    x, _ = million_input(name)
    expected = MILLION.dim / million_mean_pair()[0] ** 2 - x @ x
    assert_mean_close(errors, expected, variance=4.0 * variance_of_product(x, x))
    assert MILLION.expected_squared_error(x) == pytest.approx(expected, rel=1e-6)


MILLION_CHECKS = [check_million_mean, check_million_squared_error]


@each_input
def test_a_million_coordinates(name):
    """200 float32 outputs: their mean along the input and a corner, and their squared error.

    All variances are exact: 5 standard errors along the input are 1.5 % of it for a corner, and
    2.6 % for a vector inside. False alarms: 5e-4 for a corner, where draws from the rest are rare
    (P(N >= 4), N binomial with 200 and 0.0017), and 2e-6 for a vector inside.
    """
    for check in MILLION_CHECKS:
        check(name, *million(name, 200))


@each_input
@pytest.mark.parametrize("check", MILLION_CHECKS)
def test_a_million_coordinates_mutants(check, name):
    """5 % off in m and in p, and the rest of the cube taken for the cap."""
    facts, rest = million(name, 200), million(name, 10, "swapped cap")
    x, _ = million_input(name)
    dots, probes, errors = facts
    squares = errors + 2.0 * dots - x @ x  # |Z|^2
    for f in (0.95, 1.05):
        scaled = f * f * squares - 2.0 * f * dots + x @ x
        assert_detects(check, name, f * dots, f * probes, scaled)
    less_inside = facts.copy()
    less_inside[:, ::20] = rest
    assert_detects(check, name, *less_inside)
    assert_detects(check, name, *rest)


def test_where_a_large_output_agrees():
    """Matches in eight stretches of one output of 300,000 coordinates; false alarms: 5e-6.

    The mutant has them all in front.
    """
    dim = 300_000
    mechanism = PrivUnitInfinity(dim=dim, agreement_threshold=30_000, epsilon_flip=60.0)
    corner = corner_of(dim).astype(np.float32)
    agrees = mechanism.privatize(corner, seeded_generator(63)) * corner > 0
    total = int(np.count_nonzero(agrees))
    assert total >= mechanism.min_matches

    def check(agrees):
        stretch = dim // 8
        law = stats.hypergeom(dim, total, stretch)
        for part in agrees.reshape(8, stretch):
            assert_mean_close([np.count_nonzero(part)], law.mean(), variance=law.var())

    check(agrees)
    assert_detects(check, np.sort(agrees)[::-1])


# ------------------------------------------------------------------ rounding
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("x", [-1.0, -0.999, -0.3, -1 / 256, 0.0, 0.0021, 1 / 256, 0.7, 1.0])
def test_rounding_is_unbiased(x, dtype):
    """3,000,000 roundings of one number; false alarms: 6e-7 a case.

    A mutant that decides by the byte alone is off by up to 1/256, and noticed.
    """
    rng, block = seeded_generator(64, str(x)), np.full(60_000, x, dtype=dtype)
    count = sum(
        int(np.count_nonzero(_round_to_corner(block, np.empty_like(block), rng))) for _ in range(50)
    )
    probability = (1.0 + float(dtype(x))) / 2.0
    assert_frequency(count, 3_000_000, probability)
    if abs(x) == 1.0:
        assert count == 3_000_000 * (x > 0)
    if abs(x) == 1 / 256:
        assert_detects(assert_frequency, count, 3_000_000, 0.5)
        assert_detects(assert_frequency, count, 3_000_000, 0.5 + math.copysign(1 / 256, x))


class GivenWords(KeystreamGenerator):
    """A generator of one word, to look at the ends of the rounding."""

    def __init__(self, word):
        self._given = word

    def bits(self, count):
        return np.full(count, self._given, dtype=np.uint64)


@pytest.mark.parametrize("word", [0, 2**64 - 1, int("80" * 8, 16), int("7f" * 8, 16)])
def test_corners_are_never_moved(word):
    for dtype in (np.float32, np.float64):
        block = np.array([1.0, -1.0] * 10, dtype=dtype)
        np.testing.assert_array_equal(
            _round_to_corner(block, np.empty_like(block), GivenWords(word)), block > 0
        )


# ------------------------------------------------------------------ what goes in and out
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(10,), (1, 10), (7, 10), (0, 10)])
def test_shape_and_dtype_are_kept(shape, dtype):
    mechanism = PrivUnitInfinity.from_epsilon(10, 5.0)
    x = np.broadcast_to(input_of(10).astype(dtype), shape).copy()
    before = x.copy()
    output = mechanism.privatize(x, seeded_generator(65))
    assert output.shape == shape
    assert output.dtype == dtype
    assert not np.shares_memory(output, x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(np.abs(output), dtype(mechanism.scale))


def test_rows_are_independent_releases():
    """2,000 rows: no correlation of their noise; false alarms: 6e-7. The mutant repeats a row."""
    mechanism = PrivUnitInfinity.from_epsilon(10, 5.0)
    x = input_of(10)
    noise = mechanism.privatize(np.broadcast_to(x, (2000, 10)), seeded_generator(66)) - x

    def check(first, second):
        assert_mean_close(np.sum(first * second, axis=1), 0.0)

    check(noise[1:], noise[:-1])
    assert_detects(check, noise, noise)


def test_layout_of_the_input_does_not_matter():
    mechanism, x = PrivUnitInfinity.from_epsilon(10, 5.0), input_of(10)
    strided = np.zeros((10, 2))
    strided[:, 0] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    fortran = np.asfortranarray(np.stack([x, x]))
    expected = mechanism.privatize(x, seeded_generator(68))
    for same in (strided[:, 0], frozen, fortran[0]):
        np.testing.assert_array_equal(mechanism.privatize(same, seeded_generator(68)), expected)
    assert mechanism.expected_squared_error(strided[:, 0]) == mechanism.expected_squared_error(x)


def test_generators_of_numpy_and_none_are_accepted():
    mechanism, x = PrivUnitInfinity.from_epsilon(100, 5.0), input_of(100)
    first = mechanism.privatize(x, np.random.default_rng(1))
    np.testing.assert_array_equal(first, mechanism.privatize(x, np.random.default_rng(1)))
    assert not np.array_equal(mechanism.privatize(x), mechanism.privatize(x))
    with pytest.raises(TypeError, match="rng must be"):
        mechanism.privatize(x, 1)


def test_mechanism_is_a_value():
    mechanism = PrivUnitInfinity.from_epsilon(10, 5.0)
    assert mechanism == PrivUnitInfinity.from_epsilon(10, 5.0)
    assert hash(mechanism) == hash(PrivUnitInfinity.from_epsilon(10, 5.0))
    assert mechanism != dataclasses.replace(mechanism, epsilon_flip=7.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.epsilon_flip = 1.0


# ------------------------------------------------------------------ bad input
NOT_NUMBERS = (math.nan, math.inf, -math.inf, "5", True, None, 1j, [1.0])
GOOD = {"dim": 10, "agreement_threshold": 2, "epsilon_flip": 1.0}
BAD_FIELDS = {
    "dim": (0, -1, 2.0, MAX_DIM + 1, *NOT_NUMBERS),
    "agreement_threshold": (-1, 10, 11, 2.0, *NOT_NUMBERS),
    "epsilon_flip": NOT_NUMBERS,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BAD_FIELDS.items() for value in values],
    ids=repr,
)
def test_bad_parameters(field, value):
    text = re.escape(_validate.shown(value))
    with pytest.raises(ValueError, match=f"^{field} must be .*got {text}"):
        PrivUnitInfinity(**(GOOD | {field: value}))


BAD_BUDGETS = {
    "dim": (0, -1, 2.0, MAX_DIM + 1, *NOT_NUMBERS),
    "epsilon": (0, -1, 0.0, *NOT_NUMBERS),
    "flip_share": (-0.1, 1.0, 2, *NOT_NUMBERS),
    "rule": ("loose", "", None, 1),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BAD_BUDGETS.items() for value in values],
    ids=repr,
)
def test_bad_budgets(field, value):
    parameters = {"dim": 10, "epsilon": 1.0} | {field: value}
    text = re.escape(_validate.shown(value))
    with pytest.raises(ValueError, match=f"^{field} must be .*got {text}"):
        PrivUnitInfinity.from_epsilon(**parameters)


@pytest.mark.parametrize(
    ("dim", "kappa", "flip"),
    [
        (9, 0, 0.0),  # half the cube and p = 1/2
        (1, 0, 0.0),
        (9, 0, -0.1),
        (2, 1, -1.2),  # p / (1 - p) below P(cap) / P(rest)
        (10**6, 10**6 - 1, -690_000.0),  # a scale beyond every float
        (9, 0, -710.0),  # e^710 is one as well
        (9, 0, -1e300),
    ],
)
def test_mechanisms_that_release_nothing(dim, kappa, flip):
    with pytest.raises(ValueError, match=r"^epsilon_flip must be a finite number > .*nothing of"):
        PrivUnitInfinity(dim=dim, agreement_threshold=kappa, epsilon_flip=flip)


@pytest.mark.parametrize(
    "x",
    [
        [0.5] * 10,
        0.5,
        None,
        np.zeros(10, dtype=np.float16),
        np.zeros(10, dtype=np.int64),
        np.zeros(10, dtype=bool),
        np.zeros(10, dtype=complex),
    ],
    ids=lambda x: str(getattr(x, "dtype", type(x))),
)
def test_bad_types(x):
    mechanism = PrivUnitInfinity.from_epsilon(10, 5.0)
    for call in (mechanism.privatize, mechanism.expected_squared_error):
        with pytest.raises(
            ValueError, match="x must be a NumPy array or torch tensor of float32 or float64; got"
        ):
            call(x)


@pytest.mark.parametrize("shape", [(), (9,), (11,), (10, 9), (10, 1), (2, 2, 10), (0,)])
def test_bad_shapes(shape):
    mechanism = PrivUnitInfinity.from_epsilon(10, 5.0)
    for call in (mechanism.privatize, mechanism.expected_squared_error):
        with pytest.raises(ValueError, match=r"x must have shape \(10,\)"):
            call(np.zeros(shape))
    with pytest.raises(ValueError, match=r"x must have shape \(10,\)"):
        mechanism.expected_squared_error(np.zeros((2, 10)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0001, -1.0001, 1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 9])
def test_bad_coordinates(place, value, dtype):
    mechanism, x = PrivUnitInfinity.from_epsilon(10, 5.0), np.zeros(10, dtype=dtype)
    x[place] = value
    for call in (mechanism.privatize, mechanism.expected_squared_error):
        with pytest.raises(ValueError, match=r"^x must lie in \[-1, 1\] in every coordinate: clip"):
            call(x)


def test_outputs_beyond_float32_are_refused():
    mechanism, x = PrivUnitInfinity.from_epsilon(3, 1e-60), input_of(3)
    assert np.all(np.isfinite(mechanism.privatize(x)))
    with pytest.raises(ValueError, match="x must be float64 at this budget"):
        mechanism.privatize(x.astype(np.float32))


def test_largest_threshold_of_a_budget_is_admissible():
    for dim in (2, 9, 1000, 10**8):
        matches = matches_for_log_odds(dim, 5.0)
        kappa = 2 * matches - 1 - dim
        assert price(dim, kappa) <= 5.0
        if matches < dim:
            assert price(dim, kappa + 2) > 5.0
