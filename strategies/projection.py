r"""What the server's projection does to private reports, in closed form.

A report of :class:`~flwr_sdp.SeparatedMechanism` is Z = L V: V is the direction part, of norm
`scale` and unbiased, and L, independent of it, a number from the grid of the magnitude part. The
projection onto the ball of radius rho keeps V and clips L to [-c, c] with c = rho / scale, so that
for a vector w of norm r, :math:`E[\mathrm{proj}_\rho(Z)] = (w / r)\, E[\mathrm{clip}(L, -c, c)]`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from flwr_sdp import _validate
from flwr_sdp.magnitude import ScalarDP, random_share
from flwr_sdp.relative_magnitude import ScalarRelDP
from flwr_sdp.separated import SeparatedMechanism

# Relative; a clip norm that is the largest output up to rounding does not bind.
_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionEffect:
    """The exact effect of projecting the private reports of a vector.

    Attributes
    ----------
    norm : float
        Norm of the vector, as it is on the device.
    share_projected : float
        Probability that a report is longer than the clip norm.
    mean_length : float
        Length of the mean of the projected reports, along the vector (negative: against it).
    bias : float
        `mean_length` less `norm`: what averaging any number of reports does not remove. A vector
        longer than the mechanism's ``max_norm`` is shortened on the device already, and that is
        part of it.
    """

    norm: float
    share_projected: float
    mean_length: float
    bias: float

    @property
    def shrinkage(self) -> float:
        """The factor s of E[proj(Z)] = s w; 1 without bias. NaN for the zero vector."""
        return self.mean_length / self.norm if self.norm > 0.0 else math.nan


def projection_effect(
    mechanism: SeparatedMechanism, clip_norm: float, norm: float | None = None
) -> ProjectionEffect:
    """Return what projecting onto the ball of radius `clip_norm` does to the reports of a vector.

    Parameters
    ----------
    mechanism : SeparatedMechanism
        What the devices run.
    clip_norm : float
        rho, positive.
    norm : float, optional
        Norm of the vector. By default that with the largest bias up to the mechanism's
        ``max_norm``. The bias falls with the norm, so this is one of the ends; for ScalarDP it is
        ``max_norm``, and the share is the largest there as well.

    Notes
    -----
    **Accuracy.** Exact, from the law of the magnitude part, at a cost that does not depend on how
    fine its grid is.
    """
    if not isinstance(mechanism, SeparatedMechanism):
        raise ValueError(f"mechanism must be a SeparatedMechanism; got {mechanism!r}")
    clip_norm = _validate.number("clip_norm", clip_norm, above=0.0)
    magnitude = mechanism.magnitude
    if norm is None:
        ends = (projection_effect(mechanism, clip_norm, r) for r in (magnitude.max_norm, 0.0))
        return max(ends, key=lambda effect: abs(effect.bias))
    norm = _validate.number("norm", norm, minimum=0.0)
    r = min(norm, magnitude.max_norm)
    share, mean = _clipped(magnitude, r, clip_norm / mechanism.direction.scale)
    if share == 0.0:
        mean = r
    return ProjectionEffect(norm=norm, share_projected=share, mean_length=mean, bias=mean - norm)


def unprojected_noise_multiplier(
    mechanism: SeparatedMechanism, *, clip_norm: float, noise_multiplier: float
) -> float:
    """Return the noise multiplier that the same noise amounts to without any projection.

    **Privacy.** A report cannot be longer than ``mechanism.max_output_norm``. So noise of standard
    deviation `noise_multiplier` times `clip_norm` on the sum of reports that are *not* projected is
    a Gaussian release at this multiplier: account for it like any other. It relies on devices that
    run the mechanism, where a projection holds whatever they send. If `clip_norm` is above the
    largest norm, the projection never binds, and this is the better of the two figures.
    """
    if not isinstance(mechanism, SeparatedMechanism):
        raise ValueError(f"mechanism must be a SeparatedMechanism; got {mechanism!r}")
    clip_norm = _validate.number("clip_norm", clip_norm, above=0.0)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, minimum=0.0)
    return noise_multiplier * (clip_norm / mechanism.max_output_norm)


def _clipped(magnitude: ScalarDP | ScalarRelDP, r: float, limit: float) -> tuple[float, float]:
    """Return the probability that the output at r exceeds a limit, and its mean when clipped."""
    bins, step, offset = magnitude.num_bins, magnitude.step, magnitude.offset
    # Index j is released as step (grid(j) - offset), and clipped where that exceeds the limit.
    reach = limit / step
    slack = _TOLERANCE * (reach + offset)

    def is_below(index: int, bound: float) -> bool:
        return _grid(magnitude, index) - offset < bound

    def clipped(index: int) -> tuple[float, float]:
        value = _grid(magnitude, index) - offset
        return float(abs(value) > reach + slack), min(max(value, -reach), reach)

    # A uniform index, with this probability ...
    uniform = random_share(bins, magnitude.epsilon)
    indices = range(bins + 1)
    first = bisect_left(indices, True, key=lambda index: not is_below(index, -reach - slack))
    end = bisect_left(indices, True, key=lambda index: not is_below(index, reach + slack))
    kept = _grid_sum(magnitude, first, end) - (end - first) * offset
    random_mean = (kept + reach * ((bins + 1 - end) - first)) / (bins + 1)
    random_clipped = (bins + 1 - (end - first)) / (bins + 1)
    # ... or else one of the two next to r, at random so that their mean is r.
    upper = bisect_left(
        range(bins), r, key=lambda index: _unit(magnitude) * _grid(magnitude, index)
    )
    lower = max(upper - 1, 0)
    points = [_unit(magnitude) * _grid(magnitude, index) for index in (lower, lower + 1)]
    fraction = min(max((r - points[0]) / (points[1] - points[0]), 0.0), 1.0)
    low, high = clipped(lower), clipped(lower + 1)
    near_clipped = (1.0 - fraction) * low[0] + fraction * high[0]
    near_mean = (1.0 - fraction) * low[1] + fraction * high[1]
    share = uniform * random_clipped + (1.0 - uniform) * near_clipped
    mean = uniform * random_mean + (1.0 - uniform) * near_mean
    return share, step * mean


def _unit(magnitude: ScalarDP | ScalarRelDP) -> float:
    """Return what one is worth on the grid, as a norm."""
    if isinstance(magnitude, ScalarRelDP):
        return magnitude.accuracy
    return magnitude.max_norm / magnitude.num_bins


def _grid(magnitude: ScalarDP | ScalarRelDP, index: int) -> float:
    """Return a point of the grid: 0, 1, 2, ..., or 0, ratio, ratio^2, ..."""
    if isinstance(magnitude, ScalarRelDP) and index > 0:
        return magnitude.ratio**index
    return float(index)


def _grid_sum(magnitude: ScalarDP | ScalarRelDP, first: int, end: int) -> float:
    """Return the sum of the points from `first` to before `end`."""
    if isinstance(magnitude, ScalarRelDP):
        first = max(first, 1)
        if end <= first:
            return 0.0
        ratio = magnitude.ratio
        return ratio**first * math.expm1((end - first) * math.log(ratio)) / (ratio - 1.0)
    return 0.5 * (end - first) * (first + end - 1)
