"""Sets of words under the Zipf prior: the oracle, the exact law, and the printed bounds' failures.

For the first n words, the exact law of the number of hits is that of a sum of independent
Bernoullis, computed here by convolution. No set of n words does better: exchanging a word for a
likelier one can only help.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_sdp.reconstruction import (
    histogram_breach_probability,
    histogram_max_epsilon,
    log_histogram_bound,
    log_precision_bound,
    log_recall_bound,
    precision_bound,
    recall_bound,
    recommended_batch_size,
)
from tests.statistics_helpers import load_oracle

ORACLE = load_oracle("reconstruction")


# ------------------------------------------------------------------ the exact law; what is printed
def hits(first, last, m):
    """Return the law of the number of words used among words first..last, by convolution."""
    law = np.ones(1)
    for j in range(first, last + 1):
        chance = min(m / j, 1.0)
        law = np.concatenate([law * (1.0 - chance), [0.0]]) + np.concatenate([[0.0], law * chance])
    return law


def exact_log_precision(p, m, n):
    """Return log P(precision >= p) of the first n words."""
    law = hits(1, n, m)
    return math.log(max(law[math.ceil(p * n - 1e-9) :].sum(), 1e-300))


def exact_log_recall(r, d, m, n):
    """Return log P(recall >= r) of the first n words."""
    inside, outside = hits(1, n, m), hits(n + 1, d, m)
    below = np.cumsum(outside)
    # hits h in v, misses o outside: h >= r (h + o)
    total = 0.0
    for h, chance in enumerate(inside):
        most = math.floor(h * (1.0 - r) / r + 1e-9)
        total += chance * below[min(most, below.size - 1)]
    return math.log(max(total, 1e-300))


def printed_log_precision(p, m, gamma):
    gain = max(p * gamma - 1 - math.log(gamma), 0.0)
    return -min(gain**2 * m / (2 * math.log(gamma)), 0.75 * gain * m)


def printed_log_recall(r, d, m, gamma):
    tau = max(r * (1 + math.log(d / (m + 1))) - 1 - math.log(gamma), 0.0)
    return -min(tau**2 * m / (4 * (1 - r * r) * math.log(d / m)), 0.75 * tau * m)


# ------------------------------------------------------------------ against the oracle
@pytest.mark.parametrize(
    "case", ORACLE["precision"], ids=lambda c: f"{c['m']}-{c['gamma']}-{c['p']}"
)
def test_precision_bound_matches_the_oracle(case):
    value = log_precision_bound(
        precision=float(case["p"]), batch_size=case["m"], ratio=float(case["gamma"])
    )
    assert value == pytest.approx(float(case["log_bound_proved"]), rel=1e-9, abs=1e-15)
    assert value >= float(case["log_exact_first_words"]) - 1e-12


@pytest.mark.parametrize(
    "case", ORACLE["recall"], ids=lambda c: f"{c['d']}-{c['m']}-{c['gamma']}-{c['r']}"
)
def test_recall_bound_matches_the_oracle(case):
    value = log_recall_bound(
        recall=float(case["r"]),
        dictionary_size=case["d"],
        batch_size=case["m"],
        ratio=float(case["gamma"]),
    )
    assert value == pytest.approx(float(case["log_bound_proved"]), rel=1e-9, abs=1e-15)
    if case["log_exact_first_words"] is not None:
        assert value >= float(case["log_exact_first_words"]) - 1e-12


def test_oracle_is_complete():
    assert len(ORACLE["precision"]) == 32
    assert sum(case["log_exact_first_words"] is not None for case in ORACLE["recall"]) == 16


# ------------------------------------------------------------------ where the printed are false
def test_printed_precision_bound_is_false_and_ours_is_not():
    m, gamma, p = 40, 100.0, 0.1251
    exact = exact_log_precision(p, m, 4000)
    assert exact == pytest.approx(-195.4, abs=0.1)
    assert printed_log_precision(p, m, gamma) < exact - 10.0
    ours = log_precision_bound(precision=p, batch_size=m, ratio=gamma)
    assert ours == pytest.approx(-103.5, abs=0.1)
    assert ours > exact


def test_printed_recall_bound_is_false_and_ours_is_not():
    r, d, m, n = 0.99, 8034, 400, 6365
    gamma = n / m
    exact = exact_log_recall(r, d, m, n)
    assert exact == pytest.approx(-54.96, abs=0.01)
    assert printed_log_recall(r, d, m, gamma) == pytest.approx(-57.12, abs=0.01)
    ours = log_recall_bound(recall=r, dictionary_size=d, batch_size=m, ratio=gamma)
    assert ours == pytest.approx(-1.23, abs=0.01)
    assert ours > exact


def test_all_words_have_recall_one():
    """So the recall bound is one for sets that are small, where the lemma prints the contrary."""
    assert exact_log_recall(1.0, 400, 10, 400) == pytest.approx(0.0, abs=1e-12)
    assert printed_log_recall(0.9, 400, 10, 2.0) < -1.0  # and it would be claimed of all words
    assert log_recall_bound(recall=0.9, dictionary_size=400, batch_size=10, ratio=40.0) == 0.0


def test_printed_choice_of_gamma_claims_what_is_false():
    """p = 1/2: the first 2772 words have precision p and recall r, surely."""
    p, m, d, n = 0.5, 1000, 250_000, 2772
    r = 2 * math.log(1 / p) / math.log(d / m)
    assert r == pytest.approx(0.251, abs=1e-3)
    rng = np.random.default_rng(3)
    chance = np.minimum(m / np.arange(1, d + 1), 1.0)
    for _ in range(50):  # nine digits of certainty: no failure in fifty
        x = rng.random(d) < chance
        assert x[:n].mean() >= p
        assert x[:n].sum() >= r * x.sum()
    bound = log_histogram_bound(precision=p, recall=r, dictionary_size=d, batch_size=m)
    assert bound == 0.0


# ------------------------------------------------------------------ they bound the truth
@given(
    m=st.integers(2, 12),
    gamma=st.floats(2.0, 12.0),
    p=st.floats(0.05, 1.0),
)
@settings(max_examples=60)
def test_precision_bound_holds_for_every_size_of_set(m, gamma, p):
    bound = log_precision_bound(precision=p, batch_size=m, ratio=gamma)
    smallest = math.ceil(gamma * m)
    for n in (smallest, smallest + 1, 2 * smallest):
        assert exact_log_precision(p, m, n) <= bound + 1e-9


@given(
    m=st.integers(2, 10),
    d=st.integers(30, 300),
    gamma=st.floats(2.0, 12.0),
    r=st.floats(0.05, 1.0),
)
@settings(max_examples=60)
def test_recall_bound_holds_for_every_size_of_set(m, d, gamma, r):
    bound = log_recall_bound(recall=r, dictionary_size=d, batch_size=m, ratio=gamma)
    largest = min(math.floor(gamma * m), d)
    for n in {largest, largest // 2, 1}:
        assert exact_log_recall(r, d, m, n) <= bound + 1e-9


@given(
    m=st.integers(2, 2000),
    growth=st.floats(1.5, 1000.0),
    p=st.floats(0.01, 1.0),
    r=st.floats(0.01, 1.0),
)
def test_joint_bound_is_the_best_over_gamma(m, growth, p, r):
    d = max(int(m * growth), m + 1)
    joint = log_histogram_bound(precision=p, recall=r, dictionary_size=d, batch_size=m)
    top = math.log(max(d / m, 2.0))
    for log_gamma in np.linspace(math.log(2.0), top, 40):
        gamma = max(math.exp(log_gamma), 2.0)
        here = max(
            log_precision_bound(precision=p, batch_size=m, ratio=gamma),
            log_recall_bound(recall=r, dictionary_size=d, batch_size=m, ratio=gamma),
        )
        assert joint <= here + 1e-6 * (1.0 + abs(here))
    assert joint <= 0.0


# ------------------------------------------------------------------ after a release
def test_release_raises_the_bound_by_epsilon_and_the_inverse_undoes_it():
    words = {"precision": 0.5, "recall": 0.5, "dictionary_size": 250_000, "batch_size": 1000}
    log_bound = log_histogram_bound(**words)
    assert log_bound < -20.0
    assert histogram_breach_probability(epsilon=10.0, **words) == pytest.approx(
        math.exp(10.0 + log_bound), rel=1e-12
    )
    assert histogram_breach_probability(epsilon=1e4, **words) == 1.0
    epsilon = histogram_max_epsilon(probability=0.01, **words)
    assert histogram_breach_probability(epsilon=epsilon, **words) == pytest.approx(0.01, rel=1e-9)


def test_words_that_are_too_few_protect_nothing():
    few = {"precision": 0.5, "recall": 0.25, "dictionary_size": 1000, "batch_size": 10}
    assert histogram_breach_probability(epsilon=0.0, **few) == 1.0
    with pytest.raises(ValueError, match="let devices collect more words"):
        histogram_max_epsilon(probability=0.5, **few)


def test_bounds_are_the_exponentials_of_their_logs():
    words = {"batch_size": 10, "ratio": 8.0}
    assert precision_bound(precision=0.7, **words) == math.exp(
        log_precision_bound(precision=0.7, **words)
    )
    words["dictionary_size"] = 10_000
    assert recall_bound(recall=0.9, **words) == math.exp(log_recall_bound(recall=0.9, **words))


@pytest.mark.parametrize(
    ("size", "power", "expected"), [(10_000, 0.5, 100), (25_003, 0.5, 159), (1000, 1 / 3, 10)]
)
def test_batch_is_a_power_of_the_dictionary(size, power, expected):
    assert recommended_batch_size(size, power) == expected


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: precision_bound(precision=0.0, batch_size=10, ratio=2.0), "precision"),
        (lambda: precision_bound(precision=0.5, batch_size=0, ratio=2.0), "batch_size"),
        (lambda: precision_bound(precision=0.5, batch_size=10, ratio=1.9), "ratio"),
        (
            lambda: recall_bound(recall=1.1, dictionary_size=9, batch_size=2, ratio=2.0),
            "recall",
        ),
        (
            lambda: recall_bound(recall=0.5, dictionary_size=10, batch_size=10, ratio=2.0),
            "dictionary_size",
        ),
        (lambda: recommended_batch_size(1, 0.5), "dictionary_size"),
        (lambda: recommended_batch_size(100, 1.0), "power"),
        (
            lambda: histogram_breach_probability(
                epsilon=-1.0, precision=0.5, recall=0.5, dictionary_size=100, batch_size=10
            ),
            "epsilon",
        ),
    ],
)
def test_bad_input_is_refused(call, field):
    with pytest.raises(ValueError, match=f"^{field} must be"):
        call()
