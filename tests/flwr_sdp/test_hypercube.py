"""The law of the number of agreeing coordinates, and the samplers of which ones they are."""

import dataclasses
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flwr_sdp import KeystreamGenerator, seeded_generator
from flwr_sdp._numerics import MAX_DIM
from flwr_sdp.hypercube import (
    MAX_SUBSET,
    HypercubeCap,
    fewest_matches,
    log_binomial_half,
    matches_for_log_odds,
    sample_hypergeometric,
    sample_matches,
    uniform_subset,
    uniform_subsets,
)
from tests.statistics_helpers import (
    PROPERTY,
    assert_counts,
    assert_detects,
    assert_follows,
    assert_mean_close,
    dims,
    load_oracle,
)

CASES = load_oracle("privunit_infinity")["cases"]
WITH_CAP = [case for case in CASES if "d_tau" in case]
close = {"rel": 1e-9, "abs": 0}


def case_id(case):
    return f"d{case['d']}-eps{case['eps']}"


# ------------------------------------------------------------------ against the oracle
def test_oracle_is_complete():
    assert len(CASES) == 68
    assert len(WITH_CAP) == 61


@pytest.mark.parametrize("case", WITH_CAP, ids=case_id)
def test_cap_matches_oracle(case):
    cap = HypercubeCap(case["d"], case["d_tau"])
    assert cap.log_odds == pytest.approx(float(case["exact_price"]), **close)
    assert cap.log_probability == pytest.approx(float(case["log_p_cap"]), **close)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_matches_for_log_odds_matches_oracle(case):
    matches = matches_for_log_odds(case["d"], float(case["eps"]))
    kappa = None if matches is None else 2 * matches - 1 - case["d"]
    assert kappa == case["kappa_general"]


# ------------------------------------------------------------------ against exact arithmetic
def exact_cap(dim, matches):
    """Return log P, log-odds and mean of a cap, from integers."""
    inside = sum(math.comb(dim, count) for count in range(matches, dim + 1))
    outside = 2**dim - inside
    with mpmath.workdps(40):
        log_probability = mpmath.log(inside) - dim * mpmath.log(2)
        # log1p keeps the digits of odds near 1.
        log_odds = mpmath.log1p(mpmath.mpf(outside - inside) / inside)
    mean = Fraction(sum((2 * n - dim) * math.comb(dim, n) for n in range(matches, dim + 1)), inside)
    return float(log_probability), float(log_odds), float(mean / dim)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 8, 9, 33, 64, 191, 192, 193, 400, 1001])
def test_cap_is_exact(dim):
    """The quadrature is exact for polynomials to degree 191, and cut from about there on."""
    least = fewest_matches(dim)
    for matches in range(least, dim + 1, max(1, dim // 40)):
        cap = HypercubeCap(dim, matches)
        log_probability, log_odds, mean = exact_cap(dim, matches)
        assert cap.log_probability == pytest.approx(log_probability, rel=1e-12)
        assert cap.log_odds == pytest.approx(log_odds, rel=1e-12, abs=0)
        assert cap.mean_inside == pytest.approx(mean, rel=1e-12)


def tail_by_series(dim, matches):
    """Return log P and the mean of a cap from the sum of ratios of neighbouring binomials."""
    ratios = (dim - matches - np.arange(0, min(dim - matches, 10**5))) / (
        matches + 1.0 + np.arange(0, min(dim - matches, 10**5))
    )
    total = 1.0 + float(np.sum(np.cumprod(ratios)))
    with mpmath.workdps(40):
        log_choose = (mpmath.loggamma(dim + 1) - mpmath.loggamma(matches + 1)) - mpmath.loggamma(
            dim - matches + 1
        )
        log_term = log_choose - dim * mpmath.log(2)
        return float(log_term), float(log_term + mpmath.log(total)), matches / dim / total


@pytest.mark.parametrize("deviations", [0.001, 0.3, 0.9, 1.1, 5.0, 60.0, 700.0])
@pytest.mark.parametrize("dim", [10**5, 10**6 + 1, 10**8, 10**8 + 1])
def test_cap_of_large_dimension(dim, deviations):
    """Against a sum of up to 1e5 ratios of binomials, and log-gammas of 40 digits."""
    matches = min(dim // 2 + 1 + int(deviations * math.sqrt(dim)), dim - 1)
    cap = HypercubeCap(dim, matches)
    log_term, log_probability, mean = tail_by_series(dim, matches)
    assert log_binomial_half(dim, matches) == pytest.approx(log_term, rel=1e-12)
    assert cap.log_probability == pytest.approx(log_probability, rel=1e-11)
    assert cap.mean_inside == pytest.approx(mean, rel=1e-10)


@pytest.mark.parametrize("dim", [10**4, 10**6, 10**8])
def test_small_odds_keep_their_digits(dim):
    """Near the centre the odds are 2 atanh of a sum of a few central binomials.

    For odd dimensions the widest cap is half the cube, and costs nothing at all.
    """
    assert HypercubeCap(dim + 1, dim // 2 + 1).log_odds == 0.0
    with mpmath.workdps(40):
        log_centre = mpmath.loggamma(dim + 1) - 2 * mpmath.loggamma(dim // 2 + 1)
        term = mpmath.exp(log_centre - dim * mpmath.log(2))
        band = term / 2
        for step in range(4):
            matches = dim // 2 + 1 + step
            expected = float(2 * mpmath.atanh(2 * band))
            assert HypercubeCap(dim, matches).log_odds == pytest.approx(expected, rel=1e-11, abs=0)
            term *= mpmath.mpf(dim - matches + 1) / matches
            band += term


@PROPERTY
@given(dim=dims(smallest=1), share=st.floats(0.0, 1.0), power=st.floats(0.2, 4.0))
def test_caps_over_the_range(dim, share, power):
    """Everything is finite, and a narrower cap is rarer, dearer and closer to its centre."""
    least = fewest_matches(dim)
    matches = least + int(share**power * (dim - least))
    cap = HypercubeCap(dim, matches)
    assert -dim * math.log(2) * (1 + 1e-12) <= cap.log_probability <= -math.log(2)
    assert 0.0 <= cap.log_odds <= dim * math.log(2) * (1 + 1e-12)
    assert (2 * matches - dim) / dim * (1 - 1e-12) <= cap.mean_inside <= 1.0
    assert matches_for_log_odds(dim, cap.log_odds) == matches
    if matches < dim:
        narrower = HypercubeCap(dim, matches + 1)
        assert narrower.log_probability < cap.log_probability
        assert narrower.log_odds > cap.log_odds
        assert narrower.mean_inside > cap.mean_inside * (1 - 1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3, 100, 10**8, MAX_DIM - 1, MAX_DIM])
def test_ends_of_the_range(dim):
    """The narrowest cap is one corner, whatever the dimension."""
    corner = HypercubeCap(dim, dim)
    assert corner.log_probability == pytest.approx(-dim * math.log(2), rel=1e-12)
    assert corner.mean_inside == pytest.approx(1.0, rel=1e-12)
    assert matches_for_log_odds(dim, 1e300) == dim
    assert matches_for_log_odds(dim, 0.0) == (None if dim % 2 == 0 else fewest_matches(dim))


@pytest.mark.parametrize("dim", [0, -1, 2.0, math.nan, math.inf, "5", True, None, MAX_DIM + 1])
def test_bad_dimensions(dim):
    with pytest.raises(ValueError, match="dim must be an integer >= 1"):
        HypercubeCap(dim, 1)


@pytest.mark.parametrize("matches", [0, -1, 5, 11, 6.0, math.nan, math.inf, "6", True])
def test_bad_matches(matches):
    with pytest.raises(ValueError, match="min_matches must be an integer >= 6 and <= 10"):
        HypercubeCap(10, matches)


def test_cap_is_a_value():
    cap = HypercubeCap(10, 7)
    assert cap == HypercubeCap(10, 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cap.min_matches = 8


# ------------------------------------------------------------------ the number of matches
class CapLaw:
    """The exact law of the number of matches inside or outside a cap, from scipy's binomial."""

    def __init__(self, dim, matches, inside):
        self.law = stats.binom(dim, 0.5)
        self.low, self.high = (matches, dim) if inside else (0, matches - 1)
        self.below = self.law.cdf(self.low - 1)
        self.total = self.law.sf(matches - 1) if inside else self.law.cdf(matches - 1)

    def pmf(self, counts):
        return self.law.pmf(counts) / self.total

    def cdf(self, counts):
        if self.low > 0:
            return 1.0 - self.law.sf(counts) / self.total
        return self.law.cdf(counts) / self.total

    def assert_follows(self, counts):
        """Chi-square where the law has few values, else KS after a random fill of its steps."""
        counts = np.asarray(counts)
        assert counts.min() >= self.low
        assert counts.max() <= self.high
        if self.high == self.low:
            return  # one value: nothing is random
        if self.high - self.low < 200:
            values = np.arange(self.low, self.high + 1)
            assert_counts(np.bincount(counts - self.low, minlength=len(values)), self.pmf(values))
            return
        fill = np.random.default_rng(0).random(len(counts))
        assert_follows(self.cdf(counts - 1) + fill * self.pmf(counts), lambda level: level)


# Dimension, fewest matches, draws: deep and shallow caps, one corner, half the cube.
CAPS = [
    (1, 1, 100),
    (2, 2, 1000),
    (3, 2, 1000),
    (3, 3, 1000),
    (10, 6, 2000),
    (10, 9, 2000),
    (1000, 501, 2000),
    (1000, 560, 2000),
    (10**5, 50_000 + 600, 1500),
    (10**5 + 1, 50_001, 1500),
    (10**8, 5 * 10**7 + 20_000, 300),
]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("case", CAPS, ids=str)
def test_number_of_matches(case, inside):
    """1,000 to 2,000 draws (300 at dim 1e8) against the exact law; false alarms: 6e-7 a case.

    The mutants are the law of the other side and that of a threshold one higher or one lower,
    which shows wherever the values near the threshold are not too rare.
    """
    dim, matches, count = case
    cap, rng = HypercubeCap(dim, matches), seeded_generator(50, dim, matches, int(inside))
    draws = sample_matches(cap, np.full(count, inside), rng)
    CapLaw(dim, matches, inside).assert_follows(draws)
    assert_detects(CapLaw(dim, matches, not inside).assert_follows, draws)
    if inside and matches < dim <= 10**5:
        assert_detects(CapLaw(dim, matches + 1, True).assert_follows, draws)
        if fewest_matches(dim) < matches and dim <= 1000:
            assert_detects(CapLaw(dim, matches - 1, True).assert_follows, draws)


class GivenUniforms(KeystreamGenerator):
    """A generator that returns the given numbers, to look at single points of an inversion."""

    def __init__(self, uniform, log_uniform):
        self._given = uniform, log_uniform

    def uniforms(self, count):
        return np.full(count, self._given[0])

    def log_uniforms(self, count):
        return np.full(count, self._given[1])


def one_match(cap, inside, *given):
    """Return what two numbers of a generator give."""
    return sample_matches(cap, np.array([inside]), GivenUniforms(*given))[0]


def test_the_work_does_not_depend_on_the_side():
    """Each draw takes as many words inside as outside: what comes next is the same."""
    for dim, matches in ((10, 9), (1000, 600)):
        after = []
        for inside in (True, False):
            rng = seeded_generator(57, dim)
            sample_matches(HypercubeCap(dim, matches), np.full(50, inside), rng)
            after.append(rng.bits(1)[0])
        assert after[0] == after[1]


@pytest.mark.parametrize("log_u", [-0.01, -1.0, -10.0, -25.0, -38.0])
@pytest.mark.parametrize(("dim", "matches"), [(1000, 501), (1000, 600), (10**5, 50_600)])
def test_tails_keep_their_relative_accuracy(dim, matches, log_u):
    """The inversion finds the right quantile far beyond the resolution of a uniform number."""
    law = stats.binom(dim, 0.5)
    upper = one_match(HypercubeCap(dim, matches), True, 0.0, log_u)
    level = law.logsf(matches) + log_u  # given that it exceeds the threshold
    assert law.logsf(upper) < level + 1e-9
    assert level - 1e-9 <= law.logsf(upper - 1)
    lower = one_match(HypercubeCap(dim, matches), False, 0.6, log_u)
    level = law.logcdf(dim // 2 - 1) + log_u
    assert law.logcdf(lower - 1) < level + 1e-9
    assert level - 1e-9 <= law.logcdf(lower)


# ------------------------------------------------------------------ how many fall into a block
@pytest.mark.parametrize(
    ("total", "good", "draws"),
    [(5, 2, 3), (10, 9, 4), (100, 50, 30), (10**5, 52_000, 65_536), (10**6, 10**6 - 5, 65_536)],
)
def test_hypergeometric(total, good, draws):
    """2,000 draws against the exact law, chi-square; false alarms: 6e-7 a case.

    The mutant draws with replacement, which shows where the block is much of the whole.
    """
    rng = seeded_generator(51, total)
    law = stats.hypergeom(total, good, draws)
    low, high = (int(end) for end in law.support())

    def check(counts):
        counts = np.asarray(counts)
        assert counts.min() >= low
        assert counts.max() <= high
        reach = 8.0 * law.std() + 5.0
        first = max(low, int(law.mean() - reach))
        values = np.arange(first, min(high, int(law.mean() + reach)) + 1)
        assert_counts(np.bincount(counts - first, minlength=len(values)), law.pmf(values))

    check([sample_hypergeometric(total, good, draws, rng) for _ in range(2000)])
    if total < 10**6:
        assert_detects(check, np.random.default_rng(1).binomial(draws, good / total, 2000))


@pytest.mark.parametrize(
    ("total", "good", "draws", "expected"),
    [(5, 0, 3, 0), (5, 5, 3, 3), (5, 2, 5, 2), (10**9, 0, 65_536, 0), (1, 1, 1, 1), (7, 3, 0, 0)],
)
def test_hypergeometric_without_choice(total, good, draws, expected):
    assert sample_hypergeometric(total, good, draws, seeded_generator(52)) == expected


def test_hypergeometric_split_of_a_huge_vector():
    """Blocks of 65,536 out of 1e8 coordinates: 2,000 first blocks; false alarms: 6e-7."""
    rng = seeded_generator(53)
    good = 5 * 10**7 + 123_456
    counts = [sample_hypergeometric(10**8, good, 65_536, rng) for _ in range(2000)]
    law = stats.hypergeom(10**8, good, 65_536)
    assert_mean_close(counts, law.mean(), variance=law.var())
    assert_detects(assert_mean_close, np.array(counts) - 40, law.mean())


# ------------------------------------------------------------------ which coordinates
def one_by_one(size, counts, rng):
    """Return what long rows are made of, as :func:`uniform_subsets` returns short ones."""
    return np.array([uniform_subset(size, int(count), rng) for count in counts])


class CoarseKeys(KeystreamGenerator):
    """A generator whose words have eight values, so that keys are often equal."""

    def bits(self, count):
        return super().bits(count) & np.uint64(0x0000000E0000000E)


def coarse(size, counts, rng):
    """Draw short rows from keys that are often equal."""
    return uniform_subsets(size, counts, CoarseKeys(rng.bits(4).tobytes(), secure=False))


each_way = pytest.mark.parametrize("draw", [one_by_one, uniform_subsets])


def first_of_equals(size, counts, rng):
    """The mutant that does not draw again, and takes the first of equal keys."""
    keys = (rng.bits(len(counts) * size) & np.uint64(7)).reshape(-1, size)
    return keys.argsort(axis=1, kind="stable").argsort(axis=1) < counts[:, None]


@pytest.mark.parametrize("draw", [one_by_one, uniform_subsets, coarse])
@pytest.mark.parametrize(("size", "count"), [(2, 1), (4, 2), (5, 1), (5, 4), (6, 3)])
def test_subsets_are_equally_likely(size, count, draw):
    """4,000 subsets, chi-square over all of them; false alarms: 6e-7 a case.

    The mutants start at a random place and take neighbours, and prefer the first of equal keys.
    """
    rng, counts = seeded_generator(54, size, count), np.full(4000, count)
    every = {subset: n for n, subset in enumerate(itertools.combinations(range(size), count))}

    def check(subsets):
        ids = [every[tuple(int(i) for i in sorted(subset))] for subset in subsets]
        assert_counts(np.bincount(ids, minlength=len(every)), np.full(len(every), 1 / len(every)))

    check([np.flatnonzero(mask) for mask in draw(size, counts, rng)])
    assert_detects(check, [np.flatnonzero(m) for m in first_of_equals(size, counts, rng)])
    if (size, count) in ((4, 2), (6, 3)):
        starts = np.random.default_rng(2).integers(size, size=4000)
        assert_detects(check, [(start + np.arange(count)) % size for start in starts])


def check_pairs(masks, count):
    """Check that every position, and every pair of a few, is as often set as any other."""
    masks = np.asarray(masks, dtype=np.float64)
    size = masks.shape[1]
    share = count / size
    assert np.all(masks.sum(axis=1) == count)
    assert_mean_close(masks, share, variance=share * (1 - share))
    both = share * (count - 1) / (size - 1)
    for shift in (1, 2, 7, size // 2):
        products = masks * np.roll(masks, shift, axis=1)
        assert_mean_close(products, both, variance=both * (1 - both))


@each_way
@pytest.mark.parametrize("count", [40, 100, 157])
def test_pairs_of_a_subset(count, draw):
    """1,500 subsets of 200 positions: each position, and 800 pairs; false alarms: 6e-4 a case.

    The first mutant favours the first half, the second ties neighbours to each other.
    """
    rng = seeded_generator(55, count)
    masks = draw(200, np.full(1500, count), rng)
    check_pairs(masks, count)
    if count == 100:
        favoured = masks.copy()
        favoured[::5] = np.sort(favoured[::5], axis=1)[:, ::-1]
        assert_detects(check_pairs, favoured, count)
        keys = np.random.default_rng(3).random((1500, 100)).argsort(axis=1) < 50
        assert_detects(check_pairs, np.repeat(keys, 2, axis=1), count)


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 1000, 65_535, MAX_SUBSET])
def test_subsets_of_any_size(size):
    """Counts next to both ends, next to the middle, and halfway between two levels of a byte."""
    halfway = {round((level + 0.5) * size / 256) for level in (0, 1, 127, 254, 255)}
    for count in sorted({0, 1, size // 2, size - 1, size} | halfway):
        chosen = uniform_subset(size, count, seeded_generator(56, size, count))
        assert chosen.dtype == np.bool_
        assert chosen.shape == (size,)
        assert np.count_nonzero(chosen) == count


@PROPERTY
@given(
    size=st.integers(1, 3000),
    shares=st.lists(st.floats(0.0, 1.0), max_size=5),
    seed=st.integers(0, 10**6),
)
def test_subsets_have_the_right_size(size, shares, seed):
    counts = np.array([round(share * size) for share in (0.0, 1.0, *shares)])
    for draw in (one_by_one, uniform_subsets):
        masks = draw(size, counts, seeded_generator(seed))
        assert masks.shape == (len(counts), size)
        np.testing.assert_array_equal(masks.sum(axis=1), counts)
