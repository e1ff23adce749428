"""ScalarDP: an unbiased, pure-DP release of a magnitude.

Algorithm 3 of Bhowmick et al., arXiv:1812.00984v2.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp.randomness import KeystreamGenerator, as_generator

Floats = NDArray[np.float64]

_MAX_BINS = 2**40


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarDP:
    r"""Privatize a number in ``[0, max_norm]`` by randomized response on a grid.

    The number is rounded at random to one of ``num_bins + 1`` grid points, replaced with some
    probability by a uniformly random grid point, and debiased.

    Parameters
    ----------
    epsilon : float
        Local privacy budget of one release, positive.
    num_bins : int
        k: the grid is ``max_norm * {0, 1/k, ..., 1}``, so k >= 1.
    max_norm : float
        :math:`r_{max}`, positive. Larger inputs are released as if they were `max_norm`.

    Raises
    ------
    ValueError
        If a parameter is out of range, the square of an output is beyond the floats (from 1e154
        on), or the spacing of the grid below 2.2e-308, where they have few digits.

    Notes
    -----
    **Privacy.** Pure `epsilon`-local differential privacy between any two numbers, negative or
    larger than `max_norm` ones included (they are clipped first).

    **Accuracy.** Unbiased on ``[0, max_norm]``; :meth:`variance` is exact. An output may be
    negative or larger than `max_norm`; it must stay so, clipping it would bring the bias back.
    """

    epsilon: float
    num_bins: int
    max_norm: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        _validate.store(
            self,
            epsilon=_validate.number("epsilon", self.epsilon, above=0.0),
            num_bins=_validate.integer("num_bins", self.num_bins, minimum=1, maximum=_MAX_BINS),
            max_norm=_validate.number("max_norm", self.max_norm, above=0.0),
        )
        if not fits_floats(self.max_norm / self.num_bins, self.max_output):
            raise ValueError(
                "max_norm must keep the largest output finite, and its square, and the spacing of "
                f"the grid above 2.2e-308; at epsilon {self.epsilon!r} and {self.num_bins} bins "
                f"got {self.max_norm!r}"
            )

    @classmethod
    def from_epsilon(cls, epsilon: float, max_norm: float) -> ScalarDP:
        r"""Return the mechanism with :math:`k = \lceil e^{\epsilon/3}\rceil`.

        That k makes the variance :math:`O(r_{max}^2 e^{-2\epsilon/3})`, the best possible order for
        ``epsilon >= 1``. (The paper's "k = ceil(e^(2 eps/3)) = 29" at epsilon 10 is a misprint of
        this formula.) It is held at 2**40, where the grid is finer than any update is known.
        """
        epsilon = _validate.number("epsilon", epsilon, above=0.0)
        num_bins = _MAX_BINS if epsilon > 83 else math.ceil(math.exp(epsilon / 3.0))
        return cls(epsilon=epsilon, num_bins=min(num_bins, _MAX_BINS), max_norm=max_norm)

    @property
    def step(self) -> float:
        """Distance between neighbouring outputs (a in the paper)."""
        decay = math.exp(-self.epsilon)
        bins = self.num_bins
        return (1.0 + bins * decay) / -math.expm1(-self.epsilon) * (self.max_norm / bins)

    @property
    def offset(self) -> float:
        """Index that is released as 0 (b in the paper)."""
        return random_share(self.num_bins, self.epsilon) * self.num_bins / 2.0

    @property
    def max_output(self) -> float:
        """Largest absolute value an output can take."""
        return self.step * (self.num_bins - self.offset)

    @property
    def min_output(self) -> float:
        """Smallest (negative) value an output can take."""
        return -self.step * self.offset

    def variance(self, r: float) -> float:
        """Return the exact variance of the output at `r` (clipped to ``[0, max_norm]``)."""
        deviation = self.deviation(r)
        return deviation * deviation

    def deviation(self, r: float) -> float:
        """Return the standard deviation at `r`; its square may be below the floats."""
        k, share = self.num_bins, random_share(self.num_bins, self.epsilon)
        clipped = min(max(_validate.datum("r", r), 0.0), self.max_norm)
        # Of the place on a fine grid, a double would not hold the fraction.
        exact = Fraction(clipped) / Fraction(self.max_norm) * k
        position, fraction = float(exact), float(exact % 1)
        spread = (1.0 - share) * fraction * (1.0 - fraction)
        # Var of the mixture; position * (k - position) enters negatively but never dominates.
        mixture = (
            k * (2 * k + 1) / 6.0 - (1.0 - share) * position * (k - position) - share * k * k / 4.0
        )
        return self.step * math.sqrt(spread + share * mixture)

    def privatize(self, r: Any, rng: Any = None) -> Any:
        """Return an unbiased private view of the number `r`.

        Parameters
        ----------
        r : float or ndarray
            One number, or a ``(n,)`` array of them, each released on its own.
        rng : generator, optional
            By default a secure one.

        Returns
        -------
        float or ndarray
            float64, of the shape of `r`.

        Raises
        ------
        ValueError
            If `r` is not a number, infinite or NaN.
        """
        if isinstance(r, np.ndarray) and r.ndim == 1:
            return self._privatize(_validate.numbers("r", r), as_generator(rng))
        number = _validate.datum("r", r)
        return float(self._privatize(np.array([number]), as_generator(rng))[0])

    def _privatize(self, r: Floats, rng: KeystreamGenerator) -> Floats:
        positions = self._positions(r)
        index = np.floor(positions)
        index += rng.uniforms(index.size) < positions - index
        index = randomized_response(index, self.num_bins, self.epsilon, rng)
        return self.step * (index - self.offset)

    def _positions(self, r: Floats) -> Floats:
        positions: Floats = np.clip(r, 0.0, self.max_norm) / self.max_norm
        return positions * self.num_bins


def fits_floats(spacing: float, max_output: float) -> bool:
    """Return whether a grid has all its digits, and the largest output a square, in the floats."""
    return spacing >= sys.float_info.min and max_output * max_output < math.inf


def randomized_response(
    index: Floats, bins: int, epsilon: float, rng: KeystreamGenerator
) -> Floats:
    """Return each index, or at odds ``bins`` to ``exp(epsilon)`` another of ``range(bins + 1)``.

    `bins` is at most 2**53, so that a double holds every index.
    """
    stays = rng.bernoullis(epsilon - math.log(bins), index.size)
    other = (index + 1.0 + rng.integers(bins, index.size)) % (bins + 1.0)
    return np.where(stays, index, other)


def random_share(bins: int, epsilon: float) -> float:
    """Return the probability with which :func:`randomized_response` is a uniform index.

    Otherwise it is the index itself.
    """
    decay = math.exp(-epsilon)
    return (bins + 1) * decay / (1.0 + bins * decay)
