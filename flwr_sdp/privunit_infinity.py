"""PrivUnit-infinity: an unbiased, pure-DP release of a vector in the hypercube.

Algorithm 2 and Theorem privacy-infinity of Bhowmick et al., arXiv:1812.00984v2.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._numerics import MAX_DIM
from flwr_sdp.arrays import Array, as_rows, check_room, draws_on_device, like, to_host
from flwr_sdp.hypercube import (
    MAX_SUBSET,
    HypercubeCap,
    Integers,
    fewest_matches,
    matches_for_log_odds,
    sample_hypergeometric,
    sample_matches,
    uniform_subset,
    uniform_subsets,
)
from flwr_sdp.privunit import RULES, Rule
from flwr_sdp.randomness import FloatArray, KeystreamGenerator, as_generator

# Coordinates processed at a time: their masks and bytes stay in the cache.
_BLOCK = MAX_SUBSET

# Rows of up to so many coordinates are drawn together, as many as fill a block.
_SHORT = 2048

# With an even dim every cap has a price, and a flip of nearly the opposite, of which too few digits
# are left below this. With an odd one the square of the norm of an output is no number in the end.
_MIN_EPSILON = {0: 1e-12, 1: 1e-140}


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivUnitInfinity:
    r"""Privatize a vector in :math:`[-1, 1]^d`: draw a corner from a cap around it, or elsewhere.

    Every coordinate is rounded at random to -1 or 1. With probability p the output corner is
    uniform on the cap :math:`\{v : \langle v, u\rangle > \kappa\}` of the rounded vector u,
    otherwise uniform on the rest of the corners; it is then scaled by a constant 1/m so that the
    output is unbiased.

    Parameters
    ----------
    dim : int
        Number of coordinates, at least 1.
    agreement_threshold : int
        kappa, in ``[0, dim - 1]``. The dot product of two corners has the parity of `dim`, so
        that kappa and one of its neighbours give the same cap; :attr:`min_matches` tells which.
    epsilon_flip : float
        :math:`\epsilon_0 = \log p/(1-p)`, above ``-epsilon_cap``. Below 0, that is at p < 1/2, the
        cap is drawn from less often than the rest and each of its corners still more often: the
        paper forbids it, privacy and unbiasedness do not, and it is sometimes best.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the output would not depend on the input, or so little
        that the square of its norm is beyond the floats.

    Notes
    -----
    **Privacy.** Pure :math:`\epsilon`-local differential privacy between any two vectors of the
    hypercube, with the exact loss :attr:`epsilon` = ``epsilon_flip + epsilon_cap`` (opposite
    corners attain it). The random rounding comes before the mechanism, so the loss does not
    depend on how finely it is done.

    **Accuracy.** Unbiased: ``E[Z | x] = x``. Every coordinate of an output is plus or minus
    :attr:`scale`; :meth:`expected_squared_error` is exact.

    **Cost.** O(dim) time and some two random bytes a coordinate; memory is the input, the output
    and one block of 65,536 coordinates.

    **Floating point.** The guarantee is that of the real-number mechanism. The number of agreeing
    coordinates is drawn from its exact law to double precision, and which ones they are is exactly
    uniform given the random bits; the rounding to corners is unbiased to 2**-60.
    """

    dim: int
    agreement_threshold: int
    epsilon_flip: float
    _cap: HypercubeCap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the parameters and evaluate the cap once."""
        dim = _validate.integer("dim", self.dim, minimum=1, maximum=MAX_DIM)
        _validate.store(
            self,
            dim=dim,
            agreement_threshold=_validate.integer(
                "agreement_threshold", self.agreement_threshold, minimum=0, maximum=dim - 1
            ),
            epsilon_flip=_validate.number("epsilon_flip", self.epsilon_flip),
        )
        # d tau = ceil((d + kappa + 1) / 2), as in Algorithm 2. The ceil((d + kappa) / 2) of the
        # paper's proof is one less when d + kappa is even, where ties would count as inside.
        matches = (dim + self.agreement_threshold) // 2 + 1
        object.__setattr__(self, "_cap", HypercubeCap(dim, matches))
        # The mean is no number, or beyond the floats, where epsilon is not above 0.
        scale = 1.0 / max(self._mean, 1e-323) if self.epsilon > 0 else math.inf
        if not dim * scale * scale < math.inf:
            raise ValueError(
                f"epsilon_flip must be a finite number > {-self.epsilon_cap:g}, the price of "
                f"agreement_threshold {self.agreement_threshold} at dim {self.dim}, or the output "
                f"carries nothing of the input; got {self.epsilon_flip!r}"
            )

    @classmethod
    def from_epsilon(
        cls, dim: int, epsilon: float, *, rule: Rule = "tight", flip_share: float = 0.01
    ) -> PrivUnitInfinity:
        r"""Return the mechanism that spends at most `epsilon`.

        Parameters
        ----------
        dim : int
            Number of coordinates, at least 1.
        epsilon : float
            Local privacy budget of one release, at least 1e-12 (1e-140 where `dim` is odd).
        rule : {"tight", "paper"}
            ``"tight"`` takes the threshold and the flip that together cost `epsilon` and make the
            output smallest, among all thresholds and flips, p < 1/2 included. ``"paper"`` spends
            ``flip_share`` of `epsilon` on the flip and takes the largest kappa that Theorem
            privacy-infinity admits for the rest. It does not use the corollary that follows the
            theorem: its first bound has kappa where kappa + 1 is needed and under-reports the
            loss, its second admits the one-vertex cap at kappa = d - 2 for every epsilon.
        flip_share : float
            For ``"paper"`` only: share of `epsilon` spent on the flip, in [0, 1).

        Returns
        -------
        PrivUnitInfinity
            With ``.epsilon <= epsilon``: the exact loss, which under ``"paper"`` is smaller. The
            `agreement_threshold` is the larger of the two that give its cap.

        Raises
        ------
        ValueError
            If a parameter is out of range, or, for ``"paper"``, no kappa is admissible: with
            `dim` even, the widest cap is less than half the cube and has a price of its own.
        """
        dim = _validate.integer("dim", dim, minimum=1, maximum=MAX_DIM)
        epsilon = _validate.number("epsilon", epsilon, minimum=_MIN_EPSILON[dim % 2])
        _validate.choice("rule", rule, RULES)
        flip_share = _validate.number("flip_share", flip_share, minimum=0.0, below=1.0)
        if rule == "tight":
            return _tight(dim, epsilon)
        epsilon_flip = flip_share * epsilon
        matches = matches_for_log_odds(dim, epsilon - epsilon_flip)
        if matches is None or (epsilon_flip == 0.0 and HypercubeCap(dim, matches).log_odds == 0.0):
            raise ValueError(
                f'epsilon must be {_smallest_epsilon(dim, flip_share)} for rule="paper" with '
                f"flip_share {flip_share:g} at dim {dim}: no kappa >= 0 is admissible below that; "
                f'got {epsilon!r}: use rule="tight"'
            )
        return _within(dim, matches, epsilon_flip, epsilon)

    # ------------------------------------------------------------------ what it is
    @property
    def min_matches(self) -> int:
        r"""Fewest agreeing coordinates inside the cap (:math:`d\tau` in the paper)."""
        return self._cap.min_matches

    @property
    def cap_probability(self) -> float:
        """Probability p of drawing from the cap (it may round to 1; the mechanism does not)."""
        rare = math.exp(-abs(self.epsilon_flip))
        return (1.0 if self.epsilon_flip >= 0 else rare) / (1.0 + rare)

    @property
    def epsilon_cap(self) -> float:
        """Exact log ratio of the numbers of corners outside and inside the cap."""
        return self._cap.log_odds

    @property
    def epsilon(self) -> float:
        """Exact privacy loss of one release."""
        return self.epsilon_flip + self._cap.log_odds

    @property
    def scale(self) -> float:
        """Absolute value 1/m of every coordinate of every output."""
        return 1.0 / self._mean

    @property
    def _mean(self) -> float:
        # m = p E[<V,u>/d | cap] + (1-p) E[<V,u>/d | rest], and E<U,u> = 0 ties the two together.
        return self._cap.mean_inside * self.cap_probability * -math.expm1(-self.epsilon)

    def expected_squared_error(self, x: Array) -> float:
        """Return ``E|Z - x|^2`` for a ``(dim,)`` vector x (exact).

        It includes the error of rounding x to a corner, and is ``dim * scale**2 - |x|^2``.
        """
        row = to_host(as_rows("x", x, self.dim))
        _check_cube(row)
        if x.ndim != 1:
            raise ValueError(f"x must have shape ({self.dim},); got {x.shape}")
        total = 0.0
        for start in range(0, self.dim, _BLOCK):
            block = row[0, start : start + _BLOCK].astype(np.float64)
            # No term is negative: the scale is at least 1.
            total += float(np.sum((self.scale - block) * (self.scale + block)))
        return total

    # ------------------------------------------------------------------ what it does
    def privatize(self, x: Array, rng: Any = None) -> Array:
        """Return an unbiased private view of a vector in the hypercube.

        Parameters
        ----------
        x : ndarray or torch.Tensor
            ``(dim,)`` or ``(n, dim)``, float32 or float64, every coordinate in [-1, 1].
        rng : generator, optional
            By default a secure one; others as for :meth:`PrivUnit.privatize`.

        Returns
        -------
        ndarray or torch.Tensor
            Same shape, dtype and device; every coordinate is plus or minus :attr:`scale`. Rows are
            independent releases, each at :attr:`epsilon`.

        Raises
        ------
        ValueError
            If the shape or the dtype is wrong, a value is NaN or outside [-1, 1], or the scale is
            beyond the dtype.
        """
        rows = as_rows("x", x, self.dim)
        check_room("x", rows.dtype, self.scale)
        generator = as_generator(rng)
        if draws_on_device(rows, rng):
            out = self._draw_on_device(rows, generator, rng)
            _check_cube(rows)  # last: the only wait for the device
            return out.reshape(x.shape)
        rows = to_host(rows)
        _check_cube(rows)
        out, matches = np.empty_like(rows), self._matches(len(rows), generator)
        many = max(_BLOCK // self.dim, 1)
        for start in range(0, len(rows), many):
            part = slice(start, start + many)
            draw = self._draw_short if self.dim <= _SHORT else self._draw_long
            draw(rows[part], out[part], matches[part], generator)
        return like(x, out)

    def _matches(self, count: int, rng: KeystreamGenerator) -> Integers:
        """Draw in how many coordinates each output agrees with its rounded input."""
        return sample_matches(self._cap, rng.bernoullis(self.epsilon_flip, count), rng)

    def _draw_on_device(self, rows: Array, rng: KeystreamGenerator, generator: Any) -> Array:
        torch = sys.modules["torch"]
        matches = torch.from_numpy(self._matches(len(rows), rng))
        # The places of the smallest of random keys are a uniform subset (two of d keys of 63 bits
        # are equal with probability d^2 / 2^64).
        keys = torch.empty(rows.shape, dtype=torch.int64, device=rows.device)
        order = keys.random_(generator=generator).argsort(dim=1)
        ranks = torch.arange(self.dim, device=rows.device)
        chosen = ranks < matches.to(rows.device, non_blocking=True)[:, None]
        agrees = torch.empty_like(chosen).scatter_(1, order, chosen)
        level = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        corner = level.uniform_(-1.0, 1.0, generator=generator) < rows
        return torch.where(agrees == corner, self.scale, -self.scale).to(rows.dtype)

    def _draw_short(
        self, rows: FloatArray, out: FloatArray, matches: Integers, rng: KeystreamGenerator
    ) -> None:
        agrees = uniform_subsets(self.dim, matches, rng)
        self._write(out.reshape(-1), rows.reshape(-1), agrees.reshape(-1), rng)

    def _draw_long(
        self, rows: FloatArray, out: FloatArray, matches: Integers, rng: KeystreamGenerator
    ) -> None:
        for row, target, left in zip(rows, out, matches.tolist(), strict=True):
            for start in range(0, row.size, _BLOCK):
                block = row[start : start + _BLOCK]
                # Among the coordinates not yet drawn, those that agree are a uniform subset.
                here = sample_hypergeometric(row.size - start, left, block.size, rng)
                agrees = uniform_subset(block.size, here, rng)
                self._write(target[start : start + _BLOCK], block, agrees, rng)
                left -= here

    def _write(
        self,
        out: FloatArray,
        block: FloatArray,
        agrees: NDArray[np.bool_],
        rng: KeystreamGenerator,
    ) -> None:
        """Round a block to corners, and write what agrees with them where it is to agree."""
        scale = out.dtype.type(self.scale)
        np.copyto(out, agrees == _round_to_corner(block, out, rng))  # 1 or 0
        out *= 2 * scale
        out -= scale


def _round_to_corner(
    block: FloatArray, scratch: FloatArray, rng: KeystreamGenerator
) -> NDArray[np.bool_]:
    """Return whether each coordinate is rounded to 1, which has probability ``(1 + x) / 2``.

    A random byte in [-128, 128) is compared with 128 x. One time in 256 it falls into the very
    unit that holds 128 x; then 52 more bits say which side of it they are on. `scratch` is
    overwritten: an array like `block`, which saves the memory of another.
    """
    np.multiply(block, block.dtype.type(128.0), out=scratch)
    np.floor(scratch, out=scratch)
    # Through int16, which holds 128: there and back is faster than a minimum of floats.
    level = np.minimum(scratch.astype(np.int16), 127).astype(np.int8)
    keys = rng.bits(-(-block.size // 8)).view(np.int8)[: block.size]
    plus = keys < level
    ties = np.flatnonzero(keys == level)
    if ties.size:
        # At x = 1 the fraction is 1 and at x = -1 it is 0: corners are never moved.
        fraction = 128.0 * block[ties].astype(np.float64) - level[ties]
        plus[ties] = ((rng.bits(ties.size) >> np.uint64(12)) + 0.5) * 2.0**-52 < fraction
    return plus


@lru_cache(maxsize=256)
def _tight(dim: int, epsilon: float) -> PrivUnitInfinity:
    """Return the PrivUnitInfinity of the smallest output whose exact loss is `epsilon`.

    With m(t) the mean at the threshold t and the flip that makes up the loss, m(t+1) > m(t) is
    the same as m(t) > (2t - d) / d. The right side grows with t, so m rises and then falls, and
    the best t is the first at which it does not rise any more.
    """

    def rises(matches: int) -> bool:
        cap = HypercubeCap(dim, matches)
        flip = epsilon - cap.log_odds
        p = math.exp(min(flip, 0.0)) / (1.0 + math.exp(-abs(flip)))
        return cap.mean_inside * p * -math.expm1(-epsilon) > (2 * matches - dim) / dim

    low, high = fewest_matches(dim), dim
    while low < high:
        middle = (low + high) // 2
        if rises(middle):
            low = middle + 1
        else:
            high = middle
    return _within(dim, low, epsilon - HypercubeCap(dim, low).log_odds, epsilon)


def _within(dim: int, matches: int, epsilon_flip: float, epsilon: float) -> PrivUnitInfinity:
    """Return the mechanism with these parameters, the flip lowered where rounding overspends."""
    price = HypercubeCap(dim, matches).log_odds
    while epsilon_flip + price > epsilon:
        epsilon_flip = math.nextafter(epsilon_flip, -math.inf)
    return PrivUnitInfinity(
        dim=dim, agreement_threshold=2 * matches - 1 - dim, epsilon_flip=epsilon_flip
    )


def _smallest_epsilon(dim: int, flip_share: float) -> str:
    """Return, in words, which budgets the paper's rule has an answer for."""
    matches = fewest_matches(dim)
    price = HypercubeCap(dim, matches).log_odds
    if price == 0.0 and flip_share == 0.0:  # half the cube, and no flip: nothing is released
        if matches == dim:
            return "spent on the flip in part"
        price = HypercubeCap(dim, matches + 1).log_odds
    least = price / (1.0 - flip_share)
    unit = 10.0 ** (math.floor(math.log10(least)) - 5)
    return f">= {math.ceil(least / unit * (1.0 + 1e-12)) * unit:.6g}"


def _check_cube(rows: Array) -> None:
    if rows.shape[0]:
        low, high = float(rows.min()), float(rows.max())
        if not (low >= -1.0 and high <= 1.0):  # NaN too
            raise ValueError("x must lie in [-1, 1] in every coordinate: clip it, or scale it down")
