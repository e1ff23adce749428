"""ScalarRelDP: an unbiased, pure-DP release of a magnitude, finer where it is small.

Algorithm 4 of Bhowmick et al., arXiv:1812.00984v2 (appendix "Sampling scalars with relative
error").
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_sdp import _validate
from flwr_sdp.magnitude import Floats, fits_floats, random_share, randomized_response
from flwr_sdp.randomness import KeystreamGenerator, as_generator

_MAX_BINS = 2**40
# Where the default grid stops getting finer: below any update's own precision.
_MIN_RELATIVE_ACCURACY = 2.0**-40
_MIN_SPACING = 2.0**-30

_BOTH_ENDS = np.array([[0.0], [1.0]])


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarRelDP:
    r"""Privatize a number in ``[0, max_norm]`` by randomized response on a geometric grid.

    The number is rounded at random to one of ``num_bins + 1`` grid points, replaced with some
    probability by a uniformly random grid point, and debiased.

    Parameters
    ----------
    epsilon : float
        Local privacy budget of one release, positive.
    num_bins : int
        k: the grid is ``accuracy * {0, ratio, ratio**2, ..., ratio**k}``, so k >= 1. It must
        reach `max_norm`, up to rounding.
    accuracy : float
        :math:`\alpha`, positive: the error is relative above it and absolute below.
    ratio : float
        :math:`\nu`, above 1: ratio of neighbouring grid points.
    max_norm : float
        :math:`r_{max}`, positive. Larger inputs are released as if they were `max_norm`.

    Raises
    ------
    ValueError
        If a parameter is out of range, the grid ends below `max_norm`, begins below 2.2e-308 or
        ends beyond the floats, or the square of an output is beyond them (from 1e154 on).

    Notes
    -----
    **Privacy.** Pure `epsilon`-local differential privacy between any two numbers, negative or
    larger than `max_norm` ones included (they are clipped first).

    **Accuracy.** Unbiased on ``[0, max_norm]``; :meth:`variance` is exact. The bound of Lemma
    one-dim-relative-error, for r up to `max_norm`, is

    .. math::
        \frac{E(Z-r)^2}{\max(r, \alpha)^2} \le \frac{k+1}{e^\epsilon-1}\nu^2
        + \frac{\nu^{2k}(e^\epsilon+k)}{(e^\epsilon-1)^2}\,\frac{1-\nu^{-2k}}{1-\nu^{-2}} + s,

    with :math:`s = \max((\nu-1)^2, \nu^2/4)` up to :math:`\nu = 2` and
    :math:`\max((\nu-1)^2, \nu-1)` above. The :math:`(\nu-1)^2` that the paper prints for s leaves
    out the first interval, where rounding alone costs :math:`r(\nu\alpha - r)`. An output may be
    negative or larger than `max_norm`; it must stay so, clipping it would bring the bias back.

    **Cost.** O(1) time and memory a number: the grid is never stored.
    """

    epsilon: float
    num_bins: int
    accuracy: float
    ratio: float
    max_norm: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        _validate.store(
            self,
            epsilon=_validate.number("epsilon", self.epsilon, above=0.0),
            num_bins=_validate.integer("num_bins", self.num_bins, minimum=1, maximum=_MAX_BINS),
            accuracy=_validate.number("accuracy", self.accuracy, minimum=sys.float_info.min),
            ratio=_validate.number("ratio", self.ratio, above=1.0),
            max_norm=_validate.number("max_norm", self.max_norm, above=0.0, maximum=1e154),
        )
        if not self._top >= _least_top(self.ratio, self.num_bins, self.max_norm):
            raise ValueError(
                "num_bins must be large enough that accuracy * ratio**num_bins >= max_norm "
                f"({self.max_norm!r}); got {self.num_bins!r}, which reaches "
                f"{self._top!r}"
            )
        if not (fits_floats(self.accuracy, self.max_output) and math.isfinite(self.offset)):
            raise ValueError(
                "num_bins must keep the largest output finite, and its square; at accuracy "
                f"{self.accuracy!r}, ratio {self.ratio!r} and epsilon {self.epsilon!r} got "
                f"{self.num_bins!r}, with outputs up to {self.max_output!r}"
            )

    @classmethod
    def from_epsilon(
        cls,
        epsilon: float,
        max_norm: float,
        *,
        accuracy: float | None = None,
        ratio: float | None = None,
    ) -> ScalarRelDP:
        r"""Return the mechanism with the paper's grid, or the given part of it.

        Parameters
        ----------
        epsilon : float
            Local privacy budget of one release, positive.
        max_norm : float
            Largest number of interest, positive.
        accuracy : float, optional
            By default :math:`\alpha = \alpha_0 r_{max}` with :math:`\alpha_0 = e^{-\epsilon/4}`,
            the paper's example.
        ratio : float, optional
            By default :math:`\nu = 1 + \Delta` with the paper's
            :math:`\Delta = \alpha_0^{-2/3} e^{-\epsilon/3}`, held at 1: the paper asks for
            :math:`\Delta < 1`, that is :math:`\alpha_0 > e^{-\epsilon/2}`.

        Returns
        -------
        ScalarRelDP
            With the smallest k that reaches `max_norm`, up to rounding. The defaults are
            held at :math:`\alpha_0 \ge 2^{-40}` and :math:`\Delta \ge 2^{-30}`, finer than any
            update is known.
        """
        epsilon = _validate.number("epsilon", epsilon, above=0.0)
        max_norm = _validate.number("max_norm", max_norm, above=0.0)
        if accuracy is None:
            accuracy = max_norm * max(math.exp(-epsilon / 4.0), _MIN_RELATIVE_ACCURACY)
        accuracy = _validate.number("accuracy", accuracy, minimum=sys.float_info.min)
        log_reach = math.log(max_norm) - math.log(accuracy)
        if ratio is None:
            log_spacing = 2.0 / 3.0 * log_reach - epsilon / 3.0
            ratio = 1.0 + max(math.exp(min(log_spacing, 0.0)), _MIN_SPACING)
        ratio = _validate.number("ratio", ratio, above=1.0)
        estimate = max(math.ceil(log_reach / math.log1p(ratio - 1.0)), 1)
        if estimate > _MAX_BINS:
            raise ValueError(
                f"ratio must be so large that {_MAX_BINS} grid points lead from accuracy "
                f"({accuracy!r}) to max_norm ({max_norm!r}); got {ratio!r}"
            )
        # The logarithms may round to the wrong side of an exact power.
        num_bins = max(estimate - 1, 1)
        while _grid_point(accuracy, ratio, num_bins) < _least_top(ratio, num_bins, max_norm):
            num_bins += 1
        return cls(
            epsilon=epsilon, num_bins=num_bins, accuracy=accuracy, ratio=ratio, max_norm=max_norm
        )

    # ------------------------------------------------------------------ what it is
    @property
    def step(self) -> float:
        """Factor from a power of the ratio to the output (a in the paper)."""
        return self.accuracy * self._gain

    @property
    def offset(self) -> float:
        """Power of the ratio that would be released as 0 (b in the paper)."""
        return self._share * self._grid_mean / self.accuracy

    @property
    def max_output(self) -> float:
        """Largest absolute value an output can take.

        On a grid whose ratio is near 1, all points but 0 lie close to the top, and so does their
        mean: at a small epsilon it is 0 that is released as the larger number, a negative one.
        """
        top = self._top
        return max(self._gain * (top - self._share * self._grid_mean), -self.min_output)

    @property
    def min_output(self) -> float:
        """Smallest (negative) value an output can take."""
        return self._gain * (0.0 - self._share * self._grid_mean)

    def variance(self, r: float) -> float:
        """Return the exact variance of the output at `r` (clipped to ``[0, max_norm]``).

        Above an epsilon of about 40 the points of the grid are so close that a double holds few
        digits of what rounding to them costs: 4 of them at an epsilon of 136 and more.
        """
        deviation = self.deviation(r)
        return deviation * deviation

    def deviation(self, r: float) -> float:
        """Return the standard deviation at `r`; its square may be below the floats."""
        clipped = self._clip(np.array([_validate.datum("r", r)]))
        share, gain, top = self._share, self._gain, self._top
        _, low, high = self._interval(clipped)
        # In units of the top, since squares in those of the grid may be no numbers.
        # Powers of arrays may be rounded otherwise than single ones, and so end below the number.
        below, above = (max(float(each[0]), 0.0) / top for each in (clipped - low, high - clipped))
        # Var of the mixture: 1/gain of the rounded number, share of a uniform grid point.
        mean, square = self._mean_power(1), self._mean_power(2)
        lean = float(clipped[0]) / top - mean
        spread = below * above / gain
        mixture = lean * lean / gain + square - mean * mean
        return gain * top * math.sqrt(spread + share * mixture)

    def mean_squared_error(self, r: float) -> float:
        """Return ``E(Z - r)^2``: the variance, and the bias of a number that is clipped.

        It is inf for an `r` so large that its square is.
        """
        r = _validate.datum("r", r)
        beyond = r - min(max(r, 0.0), self.max_norm)
        return self.variance(r) + beyond * beyond

    # ------------------------------------------------------------------ what it does
    def privatize(self, r: Any, rng: Any = None) -> Any:
        """Return an unbiased private view of the number `r`, or of each of a ``(n,)`` array.

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
        r = self._clip(r)
        index, low, high = self._interval(r)
        index += rng.uniforms(r.size) * (high - low) < r - low
        return self._outputs(randomized_response(index, self.num_bins, self.epsilon, rng))

    def _clip(self, r: Floats) -> Floats:
        # The last point may be below max_norm by roundings: what lies beyond it would be biased.
        return np.minimum(np.maximum(r, 0.0), min(self.max_norm, self._top))

    # ------------------------------------------------------------------ the grid
    def _point(self, index: int) -> float:
        return _grid_point(self.accuracy, self.ratio, index)

    @property
    def _top(self) -> float:
        return self._point(self.num_bins)

    def _points(self, index: Floats) -> Floats:
        return np.where(index > 0.0, self.accuracy * self.ratio**index, 0.0)

    def _outputs(self, index: Floats) -> Floats:
        outputs: Floats = self._gain * (self._points(index) - self._share * self._grid_mean)
        return outputs

    def _interval(self, r: Floats) -> tuple[Floats, Floats, Floats]:
        """Return i and the grid points i and i + 1 around `r`, with the same work for all.

        On the finest grids, whose points are as close as floats, they may be neighbours of those.
        """
        last = self.num_bins - 1.0
        over = np.maximum(r, self.accuracy) - self.accuracy
        index: Floats = np.log1p(over / self.accuracy) / math.log1p(self.ratio - 1.0)
        index = np.minimum(np.floor(index), last)
        low, high = self._points(index + _BOTH_ENDS)
        # The logarithms may round to the wrong side of an exact power. What is next to it is then
        # found by a step: `r` lies so near the power that the last digits there do not matter.
        up, down = (high < r) & (index < last), low > r
        index += up
        index -= down
        below = low / np.where(down, self.ratio, 1.0) * (index > 0.0)
        above = high * np.where(up, self.ratio, 1.0)
        return index, np.where(up, high, below), np.where(down, low, above)

    @property
    def _share(self) -> float:
        return random_share(self.num_bins, self.epsilon)

    @property
    def _gain(self) -> float:
        """Return 1 / (1 - random share)."""
        bins = self.num_bins
        return (1.0 + bins * math.exp(-self.epsilon)) / -math.expm1(-self.epsilon)

    @property
    def _grid_mean(self) -> float:
        return self._top * self._mean_power(1)

    def _mean_power(self, power: int) -> float:
        """Return the mean of ``(v / v_k)**power`` over the k + 1 grid points, v_0 = 0 included."""
        bins, decay = self.num_bins, power * math.log1p(self.ratio - 1.0)
        return math.expm1(-bins * decay) / math.expm1(-decay) / (bins + 1)


def _least_top(ratio: float, num_bins: int, max_norm: float) -> float:
    """Return what the last grid point has to be, to be `max_norm` on paper.

    A ratio that was written as a decimal was rounded by half an ulp, which its powers multiply; and
    so were accuracy, power, product and `max_norm`. But no more than a thousandth of an interval.
    """
    rounding = (num_bins + 4.0) * sys.float_info.epsilon / 2.0
    return max_norm * (1.0 - min(rounding, 1e-3 * (ratio - 1.0)))


def _grid_point(accuracy: float, ratio: float, index: int) -> float:
    if index == 0:
        return 0.0
    try:
        return float(accuracy * float(ratio) ** index)
    except OverflowError:
        return math.inf
