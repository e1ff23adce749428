"""Checks of samples against exact laws, each with a stated rate of false alarms.

A check raises ``AssertionError`` when the samples are `N_SIGMA` standard errors off, or have a
p-value below that of `N_SIGMA` standard errors: 5.7e-7. Seeds are fixed, so a check that passes
once passes always; the rate says how likely a harmless change of the stream is to trip it.
"""

import json
import math
from bisect import bisect_left
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from scipy import special, stats

from flwr_sdp import KeystreamGenerator

N_SIGMA = 5.0
FALSE_ALARM = math.erfc(N_SIGMA / math.sqrt(2.0))

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=100)
"""Settings of every property test: the same examples in every run."""


class GivenUniform(KeystreamGenerator):
    """A generator whose uniform number is given, and whose coins fall on the likely side."""

    def __init__(self, value: float) -> None:
        super().__init__(bytes(32), secure=False)
        self._value = value

    def uniforms(self, count: int) -> Any:
        """Return the number."""
        return np.full(count, self._value)

    def bernoullis(self, log_odds: float, count: int) -> Any:
        """Return the likely side."""
        return np.full(count, log_odds > 0)


class GivenResponse(GivenUniform):
    """A generator of given answers, which keeps the log-odds and ranges that it is asked for."""

    def __init__(self, value: float, side: bool, integers: Any) -> None:
        super().__init__(value)
        self._side, self._integers = side, list(integers)
        self.log_odds: set[float] = set()
        self.ranges: set[int] = set()
        self.coins = 0

    def bernoullis(self, log_odds: float, count: int) -> Any:
        """Return the given side, whatever the odds."""
        self.log_odds.add(log_odds)
        self.coins += count
        return np.full(count, self._side)

    def integers(self, high: int, count: int) -> Any:
        """Return the next of the given integers."""
        self.ranges.add(high)
        answers, self._integers = self._integers[:count], self._integers[count:]
        return np.array(answers, dtype=np.uint64)


def law_of_scalar(mechanism, r):
    """Return every output of a scalar mechanism at `r` with its probability, as the code has them.

    The law follows from the log-odds and the range of integers that the mechanism asks for, from
    where its uniform number makes a difference, and from what it makes of every answer.
    """

    def respond(uniform, side, integers=(0,)):
        rng = GivenResponse(uniform, side, integers)
        outputs = mechanism.privatize(np.full(len(integers), r), rng)
        (log_odds,), (high,) = rng.log_odds, rng.ranges
        assert rng.coins == len(integers)
        return outputs.tolist(), log_odds, high

    low, high = 2.0**-53, 1.0 - 2.0**-53
    first, log_odds, count = respond(low, True)
    place = 2**52  # of 2^52: the uniform numbers that round like the first
    if respond(high, True)[0] != first:
        place = bisect_left(
            range(2**52), True, key=lambda i: respond((i + 0.5) * 2.0**-52, True)[0] != first
        )
    law = defaultdict(float)
    for uniform, weight in ((low, place * 2.0**-52), (high, 1.0 - place * 2.0**-52)):
        for side in (True, False):
            outputs, *asked = respond(uniform, side, range(count))
            assert asked == [log_odds, count]
            share = special.expit(log_odds if side else -log_odds) / count
            for output in outputs:
                law[output] += weight * share
    return law


def worst_log_ratio(laws, log_weights=0.0):
    """Return the largest log ratio of the probabilities of one output under two of the laws.

    Or of their products with weights, one for each law.
    """
    outputs = sorted(set().union(*laws))
    with np.errstate(divide="ignore"):
        logs = np.log([[law.get(output, 0.0) for law in laws] for output in outputs]) + log_weights
    return np.max(logs.max(axis=1) - logs.min(axis=1))


def assert_log_ratio(laws, epsilon, log_weights=0.0, *, attained=True):
    """Check that the laws keep within a budget, and spend it."""
    worst = worst_log_ratio(laws, log_weights)
    assert worst <= epsilon + 1e-12 * max(epsilon, 1.0)
    assert not attained or worst == pytest.approx(epsilon, rel=1e-12, abs=1e-12)


def bolder_response(index, bins, epsilon, rng):
    """The mutant of `randomized_response` with odds of e^epsilon to 1: it spends log k more."""
    stays = rng.bernoullis(epsilon, index.size)
    other = (index + 1.0 + rng.integers(bins, index.size)) % (bins + 1.0)
    return np.where(stays, index, other)


def careless_response(index, bins, epsilon, rng):
    """The mutant that draws the other index from all, the true one included."""
    stays = rng.bernoullis(epsilon - math.log(bins), index.size)
    return np.where(stays, index, rng.integers(bins + 1, index.size) + 0.0)


def scores_of_cosines(x, y, bits):
    """Score whether small cosines of pairs (x, y) are multiples of ``2**-bits``.

    They are for bare noise, and all scores 1; those of other numbers are cosines of any phases.
    """
    cosine = x / np.hypot(x, y)
    places = (cosine * 2**bits)[np.abs(cosine) < 0.01]
    return np.cos(2 * np.pi * (places - np.floor(places)).astype(np.float64))


def load_oracle(name: str) -> dict[str, Any]:
    """Return a file of high-precision reference values."""
    path = Path(__file__).parent / "oracle" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def assert_mean_close(samples, expected, *, variance=None, n_sigma=N_SIGMA):
    """Check that every column of `samples` has mean `expected`, within `n_sigma` standard errors.

    The standard error comes from the exact `variance` of one sample where it is given, otherwise
    from the samples.
    """
    samples = np.asarray(samples, dtype=np.float64)
    count = len(samples)
    spread = samples.var(axis=0, ddof=1) if variance is None else np.asarray(variance)
    error = np.sqrt(spread / count)
    distance = np.abs(samples.mean(axis=0) - expected)
    worst = np.max(distance / np.maximum(error, 1e-300))
    assert np.all(distance <= n_sigma * error), (
        f"mean of {count} samples is {worst:.2f} standard errors off"
    )


def assert_follows(samples, cdf):
    """Check samples of a continuous law with the Kolmogorov-Smirnov test."""
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    count = len(ordered)
    levels = np.asarray(cdf(ordered))
    steps = np.arange(count + 1) / count
    distance = max(np.max(steps[1:] - levels), np.max(levels - steps[:-1]))
    limit = math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * count))  # P <= 2 exp(-2 n D^2)
    assert distance <= limit, f"KS distance {distance:.4f} of {count} samples exceeds {limit:.4f}"


def assert_frequency(successes, trials, probability):
    """Check a count of successes against its exact binomial law."""
    p_value = stats.binomtest(int(successes), int(trials), float(probability)).pvalue
    assert p_value >= FALSE_ALARM, (
        f"{successes} of {trials} at probability {probability:.4g} has p-value {p_value:.2g}"
    )


def assert_counts(counts, probabilities):
    """Check counts of outcomes with the chi-square test; rare outcomes are pooled."""
    counts = np.asarray(counts, dtype=np.float64)
    expected = np.asarray(probabilities) * counts.sum()
    rare = expected < 10.0
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    statistic = np.sum((counts - expected) ** 2 / np.maximum(expected, 1e-300))
    p_value = stats.chi2.sf(statistic, len(counts) - 1)
    assert p_value >= FALSE_ALARM, f"chi-square p-value {p_value:.2g}"


def assert_detects(check, *mutant):
    """Check that `check` has the power to notice a mutant."""
    with pytest.raises(AssertionError):
        check(*mutant)


def random_unit(dim, seed=0, dtype=np.float64):
    """Return a fixed unit vector with no special direction."""
    vector = np.random.default_rng([seed, dim]).standard_normal(dim)
    return (vector / np.linalg.norm(vector)).astype(dtype)


@st.composite
def dims(draw, smallest=2, largest=10**8):
    """Dimensions, as likely small as large."""
    dim = round(10 ** draw(st.floats(math.log10(smallest), math.log10(largest))))
    return min(max(dim, smallest), largest)


@st.composite
def dims_and_epsilons(draw, smallest=2):
    """Every dimension with every budget that makes sense in it: 1e-3 to min(dim, 2e4)."""
    dim = draw(dims(smallest=smallest))
    most = min(float(dim), 2e4)
    epsilon = math.exp(draw(st.floats(math.log(1e-3), math.log(most))))
    return dim, min(max(epsilon, 1e-3), most)


class DotLaw:
    """The exact law of the dot product of PrivUnit's output direction with its input.

    Written from the density c_d (1-t^2)^((d-3)/2) with the incomplete beta function, in ordinary
    arithmetic: for parameters where no probability underflows.
    """

    def __init__(self, dim, threshold=0.0, epsilon_flip=0.0):
        self.dim, self.threshold = dim, threshold
        self.p = special.expit(epsilon_flip)
        self.cap = float(self.tail(threshold))

    @classmethod
    def of(cls, mechanism):
        """Return the law that a PrivUnit should have, from its parameters alone."""
        return cls(mechanism.dim, mechanism.cap_threshold, mechanism.epsilon_flip)

    def tail(self, t):
        """P(T >= t) on the whole sphere."""
        t = np.clip(t, -1.0, 1.0)
        half = 0.5 * special.betaincc(0.5, (self.dim - 1) / 2, t * t)
        return np.where(t >= 0, half, 1.0 - half)

    def uniform_cdf(self, t):
        return 1.0 - self.tail(t)

    def inside_cdf(self, t):
        return np.clip(1.0 - self.tail(t) / self.cap, 0.0, 1.0)

    def outside_cdf(self, t):
        return np.minimum((1.0 - self.tail(t)) / (1.0 - self.cap), 1.0)

    def cdf(self, t):
        return self.p * self.inside_cdf(t) + (1.0 - self.p) * self.outside_cdf(t)

    @cached_property
    def _first_moment(self):
        """E[T; T >= threshold]."""
        a = (self.dim - 1) / 2
        log_c = special.gammaln(self.dim / 2) - special.gammaln(a) - 0.5 * math.log(math.pi)
        return math.exp(log_c + a * math.log1p(-(self.threshold**2))) / (2 * a)

    @cached_property
    def _second_moment(self):
        """E[T^2; T >= threshold], by parts."""
        return (self.cap + self.threshold * (self.dim - 1) * self._first_moment) / self.dim

    @property
    def mean_inside(self):
        return self._first_moment / self.cap

    @property
    def variance_inside(self):
        return self._second_moment / self.cap - self.mean_inside**2

    @property
    def mean(self):
        return self._first_moment * (self.p / self.cap - (1.0 - self.p) / (1.0 - self.cap))

    @property
    def second_moment_outside(self):
        return (1.0 / self.dim - self._second_moment) / (1.0 - self.cap)

    @property
    def variance(self):
        inside, outside = self._second_moment / self.cap, self.second_moment_outside
        return self.p * inside + (1.0 - self.p) * outside - self.mean**2
