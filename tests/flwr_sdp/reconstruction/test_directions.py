"""Bounds on reconstruction: against the oracle and against what the proposition says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from flwr_sdp.reconstruction import (
    breach_probability,
    log_breach_bound,
    max_epsilon_for,
    tolerance_for,
)
from flwr_sdp.reconstruction.posterior import largest_epsilon
from tests.statistics_helpers import PROPERTY, assert_detects, assert_frequency, dims, load_oracle

CASES = load_oracle("reconstruction")["breach"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"k{case['k']}-a{case['a']}")
close = {"rel": 1e-9, "abs": 1e-15}


def bound(case, rule="paper", epsilon=0.0, prior=0.0):
    return log_breach_bound(
        epsilon=epsilon,
        dim_target=case["k"],
        tolerance=float(case["a"]),
        prior=prior,
        rule=rule,
    )


# ------------------------------------------------------------------ against the oracle
def test_oracle_is_complete():
    assert len(CASES) == 64
    assert sum(case["log_branch1"] is None for case in CASES) > 5
    assert sum(case["log_branch2"] is None for case in CASES) > 5


@each_case
def test_paper_bound_matches_oracle(case):
    branches = [
        float(case[name]) for name in ("log_branch1", "log_branch2") if case[name] is not None
    ]
    assert bound(case) == pytest.approx(float(case["log_bound"]), **close)
    assert bound(case) == pytest.approx(min(branches), **close)


@each_case
def test_exact_prior_matches_oracle(case):
    assert bound(case, "tight") == pytest.approx(float(case["log_exact_prior"]), **close)


@each_case
def test_probability_matches_oracle(case):
    for loss, probability in case["examples"].items():
        for prior in (0.0, 0.25 * float(loss)):
            value = breach_probability(
                epsilon=float(loss) - prior,
                dim_target=case["k"],
                tolerance=float(case["a"]),
                prior=prior,
            )
            assert value == pytest.approx(float(probability), rel=1e-9, abs=0)


@each_case
@pytest.mark.parametrize("rule", ["paper", "tight"])
def test_epsilon_and_prior_add_to_the_log(case, rule):
    total = bound(case, rule) + 7.5
    assert bound(case, rule, epsilon=7.5) == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert bound(case, rule, prior=7.5) == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert bound(case, rule, epsilon=4.0, prior=3.5) == pytest.approx(total, rel=1e-12, abs=1e-12)


# ------------------------------------------------------------------ what it must satisfy
def test_first_branch_is_not_used_beyond_its_range():
    """At k = 4, a = 0.98 it would be 0.0016, below the true probability of 0.0034."""
    k, a = 4, 0.98
    exact = 0.5 * special.betainc((k - 1) / 2, 0.5, 1 - a * a)
    arguments = {"epsilon": 0.0, "dim_target": k, "tolerance": a}
    assert (1 - a * a) ** (k / 2) < exact
    assert breach_probability(**arguments) >= exact
    assert breach_probability(**arguments, rule="tight") == pytest.approx(exact, rel=1e-9)


@PROPERTY
@given(k=dims(smallest=4), a=st.floats(0.0, 1.0))
def test_paper_bound_is_never_below_the_exact_one(k, a):
    case = {"k": k, "a": a}
    paper, tight = bound(case), bound(case, "tight")
    assert not math.isnan(paper)
    assert math.isfinite(tight)
    if a <= 1.0 - 1e-6:
        assert paper >= tight - 1e-9 * abs(tight)


@PROPERTY
@given(k=dims(), low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0))
def test_a_stricter_breach_is_less_likely(k, low, high):
    low, high = sorted((low, high))
    strict, loose = bound({"k": k, "a": high}, "tight"), bound({"k": k, "a": low}, "tight")
    assert strict <= loose * (1 - 1e-9)


@PROPERTY
@given(k=dims(), a=st.floats(0.0, 1.0), epsilon=st.floats(0.0, 2e4))
def test_probability_lies_between_0_and_1(k, a, epsilon):
    value = breach_probability(epsilon=epsilon, dim_target=k, tolerance=a, rule="tight")
    assert 0.0 <= value <= 1.0


@pytest.mark.parametrize("a", [0.0, 0.2, 0.9, 0.9999])
def test_closed_forms(a):
    circle = breach_probability(epsilon=0.0, dim_target=2, tolerance=a, rule="tight")
    sphere = breach_probability(epsilon=0.0, dim_target=3, tolerance=a, rule="tight")
    assert circle == pytest.approx(math.acos(a) / math.pi, rel=1e-9)
    assert sphere == pytest.approx((1 - a) / 2, rel=1e-9)


def test_certain_reconstruction_needs_everything():
    assert bound({"k": 4, "a": 1.0}) == -math.inf
    assert breach_probability(epsilon=100.0, dim_target=4, tolerance=1.0) == 0.0
    assert bound({"k": 4, "a": 1.0}, "tight") <= bound({"k": 4, "a": 0.999}, "tight")


@pytest.mark.parametrize("k", [2, 3])
def test_paper_rule_needs_four_dimensions(k):
    with pytest.raises(ValueError, match="dim_target must be >= 4"):
        bound({"k": k, "a": 0.5})


def test_large_bounds_are_reported_but_not_as_probabilities():
    case = {"k": 100, "a": 0.1}
    assert bound(case, epsilon=1e4) > 9000.0
    assert breach_probability(epsilon=1e4, dim_target=100, tolerance=0.1) == 1.0


def test_exact_bound_counts_random_directions():
    """20,000 uniform directions in 8 dimensions; false alarms: 1.2e-6.

    With no release at all, guessing a fixed direction succeeds with exactly this probability.
    """
    directions = np.random.default_rng(50).standard_normal((20_000, 8))
    cosines = directions[:, 0] / np.linalg.norm(directions, axis=1)
    for a in (0.1, 0.5):
        expected = breach_probability(epsilon=0.0, dim_target=8, tolerance=a, rule="tight")
        hits = np.count_nonzero(cosines >= a)
        assert_frequency(hits, len(cosines), expected)
        assert_detects(assert_frequency, hits, len(cosines), 1.2 * expected)


# ------------------------------------------------------------------ the inverses
@PROPERTY
@given(
    k=dims(smallest=4),
    a=st.floats(0.0, 1.0 - 1e-6),
    log_probability=st.floats(-60.0, 0.0),
    prior=st.floats(0.0, 5.0),
    rule=st.sampled_from(["paper", "tight"]),
)
def test_largest_epsilon_is_the_inverse_of_the_bound(k, a, log_probability, prior, rule):
    arguments = {"dim_target": k, "tolerance": a, "prior": prior, "rule": rule}
    probability = math.exp(log_probability)
    at_zero = log_breach_bound(epsilon=0.0, **arguments)
    if math.log(probability) < at_zero:
        with pytest.raises(ValueError, match="probability must be >= "):
            max_epsilon_for(probability=probability, **arguments)
        return
    epsilon = max_epsilon_for(probability=probability, **arguments)
    assert epsilon >= 0.0
    back = log_breach_bound(epsilon=epsilon, **arguments)
    assert back == pytest.approx(log_probability, rel=1e-9, abs=1e-9 * (1 + epsilon))
    above = log_breach_bound(epsilon=epsilon + 1e-3, **arguments)
    assert above > log_probability


@PROPERTY
@given(
    k=dims(smallest=4),
    epsilon=st.floats(0.0, 2e4),
    log_probability=st.floats(-60.0, 0.0),
    rule=st.sampled_from(["paper", "tight"]),
)
def test_smallest_tolerance_is_the_inverse_of_the_bound(k, epsilon, log_probability, rule):
    arguments = {"epsilon": epsilon, "dim_target": k, "rule": rule}
    probability = math.exp(log_probability)
    limit = math.log(probability)
    if log_breach_bound(tolerance=1.0, **arguments) > limit:
        with pytest.raises(ValueError, match="probability must be larger"):
            tolerance_for(probability=probability, **arguments)
        return
    a = tolerance_for(probability=probability, **arguments)
    assert log_breach_bound(tolerance=a, **arguments) <= limit
    if a > 1e-11:
        assert log_breach_bound(tolerance=a - 2e-12, **arguments) > limit


def test_inverses_say_what_cannot_be():
    with pytest.raises(ValueError, match=r"probability must be >= 0\.5"):
        max_epsilon_for(probability=0.1, dim_target=2, tolerance=0.0, rule="tight")
    for probability, least in ((math.nextafter(0.5, 0.0) - 1e-15, "0.5"), (1.0, "1.65")):
        with pytest.raises(ValueError, match=rf"must be >= {least}, .*; got (0.49999|1: )"):
            largest_epsilon(probability, math.log(float(least)), "")
    assert largest_epsilon(0.1 + 0.2, math.log(0.3), "") >= 0.0
    assert largest_epsilon(0.3, math.log(0.1 + 0.2), "") == 0.0
    with pytest.raises(ValueError, match="probability must be larger"):
        tolerance_for(probability=0.1, epsilon=100.0, dim_target=2, rule="tight")
    assert tolerance_for(probability=1.0, epsilon=0.0, dim_target=100) == 0.0
    assert max_epsilon_for(probability=0.1, dim_target=100, tolerance=1.0) == math.inf


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, math.nan, "0.5", True])
def test_bad_probabilities_are_refused(value):
    with pytest.raises(ValueError, match="probability must be a finite number"):
        max_epsilon_for(probability=value, dim_target=100, tolerance=0.5)
    with pytest.raises(ValueError, match="probability must be a finite number"):
        tolerance_for(probability=value, epsilon=1.0, dim_target=100)
