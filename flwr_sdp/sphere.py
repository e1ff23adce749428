r"""The law of one coordinate of a uniform point on the sphere, in logarithms, and its samplers.

For :math:`U` uniform on the unit sphere of :math:`R^d` and a fixed unit vector :math:`u`, the
dot product :math:`T = \langle U, u\rangle` has density :math:`c_d (1-t^2)^{(d-3)/2}` on [-1, 1],
:math:`c_d = \Gamma(d/2) / (\sqrt\pi\,\Gamma((d-1)/2))`. Everything PrivUnit needs to know about a
spherical cap :math:`\{v : \langle v, u\rangle \ge \gamma\}` follows from

.. math:: \int_\gamma^1 t\,c_d(1-t^2)^{(d-3)/2}dt = M = c_d (1-\gamma^2)^{(d-1)/2} / (d-1)

and the ratio :math:`P(T \ge \gamma) / M`, which is a well-scaled integral at every dimension:
it is computed directly, so that no cap probability ever underflows and no small difference of
large logarithms is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._numerics import CUT, MAX_DIM, NODES, WEIGHTS, stirling_error
from flwr_sdp.randomness import KeystreamGenerator

MAX_THRESHOLD = 1.0 - 1e-6
"""Largest cap threshold in use: closer to 1, the spacing of floats shows in ``1 - threshold**2``.

A cap so narrow fixes the direction to 1.4e-3 radians; only dimensions below about 10 reach it.
"""

# Below these log-odds the threshold lies where the density is flat, and is so much smaller than
# that of a Gaussian tail that the first Newton step from there would cancel all of its digits.
_FLAT = 1e-6


@dataclass(frozen=True, slots=True)
class Cap:
    r"""A spherical cap of directions within :math:`\arccos(\text{threshold})` of a unit vector.

    Parameters
    ----------
    dim : int
        Dimension of the ambient space, at least 2.
    threshold : float
        Smallest dot product inside the cap, in ``[0, MAX_THRESHOLD]`` (gamma in the paper).

    Attributes
    ----------
    log_probability : float
        :math:`\log P(T \ge \gamma)`; at most ``log(1/2)``.
    log_odds : float
        :math:`\log P(T < \gamma) / P(T \ge \gamma)`; at least 0. The exact privacy price of the
        threshold, where Theorem 1 of Bhowmick et al. (arXiv:1812.00984v2) has an upper bound.
    mean_inside : float
        :math:`E[T \mid T \ge \gamma]`, in (0, 1).
    """

    dim: int
    threshold: float
    log_probability: float = field(init=False, repr=False, compare=False)
    log_odds: float = field(init=False, repr=False, compare=False)
    mean_inside: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _validate.integer("dim", self.dim, minimum=2, maximum=MAX_DIM)
        _validate.number("threshold", self.threshold, minimum=0.0, maximum=MAX_THRESHOLD)
        dim, threshold = int(self.dim), float(self.threshold)
        mean_inside = 1.0 / _tail_over_moment(dim, threshold)
        log_moment = (
            log_density_constant(dim)
            + (dim - 1) / 2 * math.log1p(-threshold * threshold)
            - math.log(dim - 1)
        )
        log_probability = min(log_moment - math.log(mean_inside), -math.log(2.0))
        if threshold * threshold * dim < 1.0:
            # Near the equator the odds are a small number: take P(0 <= T < gamma) directly.
            band = _band_probability(dim, threshold)
            log_odds = math.log1p(2.0 * band) - math.log1p(-2.0 * band)
        else:
            log_odds = math.log(-math.expm1(log_probability)) - log_probability
        object.__setattr__(self, "log_probability", log_probability)
        object.__setattr__(self, "log_odds", log_odds)
        object.__setattr__(self, "mean_inside", mean_inside)

    @property
    def log_odds_slope(self) -> float:
        """Derivative of :attr:`log_odds` with respect to the threshold."""
        hazard = (self.dim - 1) * self.mean_inside / (1.0 - self.threshold**2)
        return float(hazard / -math.expm1(self.log_probability))


def log_density_constant(dim: int) -> float:
    r"""Return :math:`\log c_d`, to the last few digits at every dimension.

    A difference of two ``lgamma`` loses 7 of 16 digits at ``dim = 1e8``; the difference of their
    Stirling series does not.
    """
    a = (dim - 1) / 2
    if a < 16:
        return math.lgamma(a + 0.5) - math.lgamma(a) - 0.5 * math.log(math.pi)
    log_ratio = (
        a * math.log1p(0.5 / a)
        - 0.5
        + 0.5 * math.log(a)
        + stirling_error(a + 0.5)
        - stirling_error(a)
    )
    return log_ratio - 0.5 * math.log(math.pi)


def threshold_for_log_odds(dim: int, log_odds: float) -> float:
    """Return the largest threshold whose exact price :attr:`Cap.log_odds` is at most `log_odds`.

    The answer errs on the private side: its price, as computed, never exceeds `log_odds`.
    """
    low, high = 0.0, MAX_THRESHOLD
    if Cap(dim, high).log_odds <= log_odds:
        return high
    # Newton inside a bracket, started at the threshold of the Gaussian tail.
    threshold = min(math.sqrt(-math.expm1(-2.0 * log_odds / (dim - 1))), high / 2)
    if log_odds < _FLAT:
        threshold = log_odds / (4.0 * math.exp(log_density_constant(dim)))
    for _ in range(200):
        cap = Cap(dim, threshold)
        excess = cap.log_odds - log_odds
        low, high = (low, threshold) if excess > 0 else (threshold, high)
        step = excess / cap.log_odds_slope
        if abs(step) <= 2e-16 * threshold:
            break
        threshold -= step
        if not low < threshold < high:
            threshold = (low + high) / 2
    while Cap(dim, threshold).log_odds > log_odds:
        threshold = math.nextafter(threshold, 0.0)
    return threshold


# ---------------------------------------------------------------------- samplers
def sample_dots(
    cap: Cap, inside: NDArray[np.bool_], rng: KeystreamGenerator
) -> NDArray[np.float64]:
    """Draw T given that it lies inside (or outside) the cap, once for each of `inside`.

    Exact and O(1) each, by rejection in one dimension: the expected number of trials is below 6 at
    every dimension and threshold. Vectors are never rejected. Both are drawn each time, first the
    one inside, so that the work says nothing of which was taken; nor does it of the value, since
    the number of trials is independent of it.
    """
    dots_inside = _accepted(inside.size, lambda many: _try_inside(cap, many, rng))
    dots_outside = _accepted(inside.size, lambda many: _try_outside(cap, many, rng))
    return np.where(inside, dots_inside, dots_outside)


def sample_dots_anywhere(dim: int, count: int, rng: KeystreamGenerator) -> NDArray[np.float64]:
    """Draw T on the whole sphere."""
    return _accepted(count, lambda many: _try_anywhere(dim, many, rng))


_Trial = tuple[NDArray[np.float64], NDArray[np.bool_]]


def _accepted(count: int, attempt: Callable[[int], _Trial]) -> NDArray[np.float64]:
    """Return the first `count` accepted draws, in rounds of as many trials as are missing."""
    draws, found = np.empty(count), 0
    while found < count:
        values, accepted = attempt(count - found)
        kept = values[accepted]
        draws[found : found + kept.size] = kept
        found += kept.size
    return draws


def _try_outside(cap: Cap, count: int, rng: KeystreamGenerator) -> _Trial:
    dots, accepted = _try_anywhere(cap.dim, count, rng)
    return dots, accepted & (dots < cap.threshold)


def _try_inside(cap: Cap, count: int, rng: KeystreamGenerator) -> _Trial:
    dim, threshold = cap.dim, cap.threshold
    if cap.log_probability > math.log(0.15):
        dots, accepted = _try_anywhere(dim, count, rng)
        dots = np.abs(dots)
        return dots, accepted & (dots >= threshold)
    # 1 - T^2 given T >= gamma has density proportional to s^(a-1) (1-s)^(-1/2) on (0, 1-gamma^2),
    # a = (d-1)/2: draw s = (1-gamma^2) U^(1/a) and accept with probability gamma / T.
    shrink = -np.expm1(rng.log_uniforms(count) / ((dim - 1) / 2))
    dots = np.sqrt(threshold**2 + (1.0 - threshold**2) * shrink)
    return np.minimum(dots, 1.0), rng.uniforms(count) * dots <= threshold


def _try_anywhere(dim: int, count: int, rng: KeystreamGenerator) -> _Trial:
    """Propose T on the whole sphere."""
    if dim <= 3:
        u = rng.uniforms(count)
        return np.cos(math.pi * u) if dim == 2 else 2.0 * u - 1.0, np.ones(count, dtype=np.bool_)
    # (1-t^2) <= e^(-t^2), so a normal of variance 1/(d-3) dominates the density.
    dots, log_u = rng.normal(count) / math.sqrt(dim - 3), rng.log_uniforms(count)
    square = np.minimum(dots * dots, 1.0)
    with np.errstate(divide="ignore"):
        return dots, log_u <= (dim - 3) / 2 * (np.log1p(-square) + square)


def _tail_over_moment(dim: int, threshold: float) -> float:
    r"""Return :math:`P(T \ge \gamma) / M` = 1 / E[T | T >= gamma].

    With t = cos(phi), phi = phi_0 - theta, it is
    (d-1)/sin(phi_0) times the integral of (sin(phi) / sin(phi_0))^(d-2) over theta in (0, phi_0):
    an analytic integrand that falls from 1, at every dimension.
    """
    power = dim - 2
    sine = math.sqrt((1.0 - threshold) * (1.0 + threshold))
    slope = threshold / sine
    width = math.acos(threshold)
    if power > 0:
        # The exponent is at least power * (slope theta + theta^2 / 2) in size: cut it at CUT.
        scaled = CUT / power
        width = min(width, 2.0 * scaled / (slope + math.sqrt(slope * slope + 2.0 * scaled)))
    theta = width * NODES
    falloff = -2.0 * np.sin(theta / 2) ** 2 - slope * np.sin(theta)
    # At the pole sin(phi) is 0, where rounding may leave the argument at or below -1.
    integrand = np.exp(power * np.log1p(np.maximum(falloff, np.nextafter(-1.0, 0.0))))
    return float((dim - 1) / sine * width * np.dot(WEIGHTS, integrand))


def _band_probability(dim: int, threshold: float) -> float:
    """Return P(0 <= T < threshold) for a threshold below about ``1/sqrt(dim)``."""
    angle = math.asin(threshold) * NODES
    integrand = np.exp((dim - 2) / 2 * np.log1p(-(np.sin(angle) ** 2)))
    constant = math.exp(log_density_constant(dim))
    return float(constant * math.asin(threshold) * np.dot(WEIGHTS, integrand))
