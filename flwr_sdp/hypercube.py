r"""The law of the number of coordinates in which two corners agree, in logarithms; its samplers.

For :math:`U` uniform on :math:`\{-1, 1\}^d` and a fixed corner :math:`u`, the number of agreeing
coordinates :math:`N` is binomial(d, 1/2), and :math:`\langle U, u\rangle = 2N - d`. Everything
PrivUnit-infinity needs to know about the cap of corners that agree in at least t coordinates
follows from

.. math:: P(N \ge t) = t\binom dt 2^{-d} \int_0^1 (1-s^2)^{d-t} (1-s)^{\kappa} ds,
          \qquad \kappa = 2t - 1 - d \ge 0,

the incomplete beta function at 1/2 with its largest factor taken out. The integrand falls from 1
and has no cancellation, and the factor is a binomial probability, which Stirling's series gives
without a difference of large logarithms: both cost O(1) and keep their digits at every dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._numerics import CUT, MAX_DIM, NODES, WEIGHTS, stirling_error
from flwr_sdp.randomness import KeystreamGenerator

MAX_SUBSET = 2**16
"""Largest set :func:`uniform_subset` chooses from: its positions are 16 random bits each."""

_NONE = np.empty(0)

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HypercubeCap:
    r"""The corners of the hypercube that agree with a given one in at least so many coordinates.

    Parameters
    ----------
    dim : int
        Number of coordinates d, at least 1.
    min_matches : int
        Fewest agreeing coordinates inside the cap, more than half of them: in
        ``[dim // 2 + 1, dim]`` (:math:`d\tau` in the paper).

    Attributes
    ----------
    log_probability : float
        :math:`\log P(N \ge t)`; at most ``log(1/2)``.
    log_odds : float
        :math:`\log P(N < t) / P(N \ge t)`, at least 0: the exact privacy price of the threshold,
        the left side of Eq. sufficient-kappaGEN of Bhowmick et al. (arXiv:1812.00984v2).
    mean_inside : float
        :math:`E[\langle U, u\rangle / d \mid N \ge t]`, in (0, 1].
    """

    dim: int
    min_matches: int
    log_probability: float = field(init=False, repr=False, compare=False)
    log_odds: float = field(init=False, repr=False, compare=False)
    mean_inside: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _validate.integer("dim", self.dim, minimum=1, maximum=MAX_DIM)
        least = fewest_matches(int(self.dim))
        _validate.integer("min_matches", self.min_matches, minimum=least, maximum=self.dim)
        dim, matches = int(self.dim), int(self.min_matches)
        excess = 2 * matches - 1 - dim
        log_factor = math.log(matches) + log_binomial_half(dim, matches)
        integral = _tail_integral(dim, matches)
        log_probability = min(log_factor + math.log(integral), -math.log(2.0))
        if excess * excess < dim:
            # Near the centre the odds are a small number: integrate P(N < t) - P(N >= t) itself.
            difference = math.exp(log_factor) * _difference_integral(dim, matches)
            log_odds = 2.0 * math.atanh(difference)
        else:
            log_odds = math.log(-math.expm1(log_probability)) - log_probability
        object.__setattr__(self, "log_probability", log_probability)
        object.__setattr__(self, "log_odds", log_odds)
        object.__setattr__(self, "mean_inside", min(1.0 / (dim * integral), 1.0))


def fewest_matches(dim: int) -> int:
    """Return the smallest number of matches above half of `dim`: the widest cap there is."""
    return dim // 2 + 1


def matches_for_log_odds(dim: int, log_odds: float) -> int | None:
    """Return the largest `min_matches` whose exact price is at most `log_odds`.

    None if even the widest cap costs more, as for even `dim` and a small `log_odds`: a tie is not
    inside, so the widest cap holds less than half of the corners.
    """
    low, high = fewest_matches(dim), dim
    if HypercubeCap(dim, low).log_odds > log_odds:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if HypercubeCap(dim, middle).log_odds <= log_odds:
            low = middle
        else:
            high = middle - 1
    return low


def log_binomial_half(dim: int, matches: int) -> float:
    r"""Return :math:`\log\binom dt 2^{-d}` to the last few digits, for t of at least d/2.

    A sum of three ``lgamma`` loses 9 of 16 digits at ``dim = 1e8``. Here the three leading terms
    of Stirling's series are combined into the deviance from d/2, a sum without cancellation.
    """
    if matches == dim:
        return -dim * math.log(2.0)
    rest = dim - matches
    lean = (matches - rest) / dim
    if lean < 0.5:
        deviance = dim / 2 * (2.0 * lean * math.atanh(lean) + math.log1p(-lean * lean))
    else:  # where 1 - lean would lose digits, and the plain form no longer does
        deviance = matches * math.log(2 * matches / dim) + rest * math.log(2 * rest / dim)
    errors = stirling_error(dim) - stirling_error(matches) - stirling_error(rest)
    return errors - deviance - 0.5 * math.log(2.0 * math.pi * matches * (rest / dim))


# ---------------------------------------------------------------------- samplers
def sample_matches(
    cap: HypercubeCap, inside: NDArray[np.bool_], rng: KeystreamGenerator
) -> Integers:
    """Draw the number of matches given that it lies inside (or outside) the cap, once for each.

    Inverts the distribution, in O(sqrt(dim)) and without rejection. Every probability is right to
    1e-8 in relative terms, those of the tails included, down to tails of 1e-20. Both laws are drawn
    from each time, so that the time does not tell the side.
    """
    given = _given(inside.size, rng)
    return np.where(inside, *(law.draw(*given) for law in _laws_of_matches(cap)))


@lru_cache(maxsize=8)
def _laws_of_matches(cap: HypercubeCap) -> tuple[_Law, _Law]:
    """Return the law inside and that outside."""
    dim, matches, mode = cap.dim, cap.min_matches, cap.dim // 2
    return (
        _Law(matches, _ratios(dim, matches, dim - matches), _NONE),
        # The law is symmetric: below its mode it falls as it does above dim - mode.
        _Law(mode, _ratios(dim, mode, matches - 1 - mode), _ratios(dim, dim - mode, mode)),
    )


def sample_hypergeometric(total: int, good: int, draws: int, rng: KeystreamGenerator) -> int:
    """Draw how many of the `good` items are among `draws` taken at random out of `total`.

    As exact as :func:`sample_matches`, in O(sqrt(draws)).
    """
    low, high = max(0, draws - (total - good)), min(draws, good)
    if low == high:
        return low
    mode = (draws + 1) * (good + 1) // (total + 2)
    # Hoeffding: P(|X - mean| >= s) <= 2 exp(-2 s^2 / draws), and the mode is next to the mean.
    reach = math.ceil(math.sqrt(CUT * draws / 2)) + 2
    rest = total - good - draws
    up = mode + np.arange(min(high - mode, reach), dtype=np.float64)
    above = (good - up) * (draws - up) / ((up + 1.0) * (rest + 1.0 + up))
    down = mode - np.arange(min(mode - low, reach), dtype=np.float64)
    below = down * (rest + down) / ((good + 1.0 - down) * (draws + 1.0 - down))
    return int(_Law(mode, above, below).draw(*_given(1, rng))[0])


def uniform_subsets(size: int, counts: Integers, rng: KeystreamGenerator) -> NDArray[np.bool_]:
    """Return masks ``(n, size)`` with the given counts set in the rows, all such equally likely.

    Those of the smallest of random keys: for short rows, where sorting is fast, and as fast for
    every count. Keys that are equal at the boundary prefer no position: the row draws new ones.
    """
    many = len(counts) * size
    keys = rng.bits(-(-many // 2)).view(np.uint32)[:many].reshape(-1, size)
    keys |= np.uint32(1)  # so that none is below 1
    largest = np.sort(keys, axis=1)[np.arange(len(counts)), counts - 1]
    chosen: NDArray[np.bool_] = keys <= np.where(counts > 0, largest, np.uint32(0))[:, None]
    tied = np.count_nonzero(chosen, axis=1) != counts
    if tied.any():
        chosen[tied] = uniform_subsets(size, counts[tied], rng)
    return chosen


def uniform_subset(size: int, count: int, rng: KeystreamGenerator) -> NDArray[np.bool_]:
    """Return a mask of `size` positions with exactly `count` set, all such masks equally likely.

    Every position is first set on its own with a probability close to ``count / size``, by one
    random byte; then the surplus is removed from (or the shortfall added at) positions taken at
    random. Neither step prefers any position, so given its size the set is uniform: the byte
    decides how much there is to repair, never the law.
    """
    keys = rng.bits(-(-size // 8)).view(np.uint8)[:size]
    level = round(256 * count / size)
    chosen = keys < level if level < 256 else np.ones(size, dtype=np.bool_)
    surplus = int(np.count_nonzero(chosen)) - count
    while surplus:
        remove = surplus > 0
        available = count + surplus if remove else size - (count + surplus)
        places = _positions(size, abs(surplus) * size // available + 16, rng)
        # No more than needed; a place drawn twice counts twice, and leaves one for the next turn.
        places = places[chosen[places] == remove][: abs(surplus)]
        chosen[places] = not remove
        surplus = int(np.count_nonzero(chosen)) - count
    return chosen


def _positions(size: int, count: int, rng: KeystreamGenerator) -> NDArray[np.uint16]:
    """Return independent uniform positions in ``range(size)``: `count` at most, half on average."""
    mask = np.uint16((1 << (size - 1).bit_length()) - 1)
    places = rng.bits(-(-count // 4)).view(np.uint16) & mask
    return places if int(mask) == size - 1 else places[places < size]


def _ratios(dim: int, start: int, most: int) -> NDArray[np.float64]:
    """Return C(d, l+1) / C(d, l) for l = start, start + 1, ...: `most` at most, no negligible ones.

    The ratio is exp(-2 atanh(y / mid)) <= exp(-2 y / mid) at y = l + 1 - mid, mid = (d+1)/2, so
    that n of them multiply to at most exp(-(n^2 + lean n) / mid).
    """
    middle, lean = (dim + 1) / 2, 2 * start - dim
    room = CUT * middle
    enough = math.ceil(2.0 * room / (lean + math.sqrt(lean * lean + 4.0 * room)))
    level = start + np.arange(min(most, enough), dtype=np.float64)
    return (dim - level) / (level + 1.0)


def _given(count: int, rng: KeystreamGenerator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the random numbers that draws from a law are made of."""
    return rng.uniforms(count), np.exp(rng.log_uniforms(count))


class _Law:
    """A law on the integers whose weights fall on both sides of `mode` by the given ratios."""

    __slots__ = ("_down", "_mode", "_up", "_weight_down", "_weight_up")

    def __init__(self, mode: int, above: NDArray[np.float64], below: NDArray[np.float64]) -> None:
        self._mode = mode
        # Sums start at the far ends, so that the tails keep their relative accuracy.
        self._up = np.cumsum(np.cumprod(above)[::-1])
        self._down = np.cumsum(np.cumprod(below)[::-1])
        self._weight_up = float(self._up[-1]) if self._up.size else 0.0
        self._weight_down = float(self._down[-1]) if self._down.size else 0.0

    def draw(self, level: NDArray[np.float64], tail: NDArray[np.float64]) -> Integers:
        """Return what two uniform numbers give: one a side of the mode, one how far out it is."""
        up, down = self._weight_up, self._weight_down
        level = level * (1.0 + up + down)
        above = self._mode + self._up.size - self._up.searchsorted(tail * up)
        below = self._mode - self._down.size + self._down.searchsorted(tail * down)
        return np.where(level < up, above, np.where(level < up + down, below, self._mode))


# ---------------------------------------------------------------------- integrals
def _tail_integral(dim: int, matches: int) -> float:
    """Return the integral of (1-s^2)^(d-t) (1-s)^kappa over (0, 1)."""
    excess, rest = 2 * matches - 1 - dim, dim - matches
    # The exponent is at least kappa s + rest s^2 in size.
    width = 1.0
    if excess + rest > 0:
        width = min(2.0 * CUT / (excess + math.sqrt(excess**2 + 4.0 * CUT * rest)), 1.0)
    s = width * NODES
    integrand = np.exp(rest * np.log1p(-s * s) + excess * np.log1p(-s))
    return float(width * np.dot(WEIGHTS, integrand))


def _difference_integral(dim: int, matches: int) -> float:
    """Return the integral of (1-s^2)^(d-t) ((1+s)^kappa - (1-s)^kappa) over (0, 1).

    For kappa of at most ``sqrt(dim)``. Exactly 0 at kappa = 0, where the cap is half the cube.
    """
    excess, rest = 2 * matches - 1 - dim, dim - matches
    # In logarithms at most kappa s - (d-1) s^2 / 2.
    width = 1.0
    if dim > 1:
        width = min((excess + math.sqrt(excess**2 + 2.0 * CUT * (dim - 1))) / (dim - 1), 1.0)
    s = width * NODES
    integrand = np.exp(rest * np.log1p(-s * s) + excess * np.log1p(s))
    integrand *= -np.expm1(-2.0 * excess * np.arctanh(s))
    return float(width * np.dot(WEIGHTS, integrand))
