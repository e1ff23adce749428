r"""What theory says of a stream: the exact second moment of a release, and two predictions.

Everything is isotropic but for the direction of the true parameter, so every matrix is a pair: its
eigenvalue *along* the true parameter, and its eigenvalue *across* it, d - 1 times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, expit

from flwr_sdp import PrivUnit, SeparatedMechanism
from flwr_sdp.sphere import Cap
from simulations.streams.arrays import Floats
from simulations.streams.sphere_risk import SphereRisk

# ScalarDP's variance has a kink at every point of its grid: many panels, not many nodes.
_PANELS = 2048


@dataclass(frozen=True, slots=True)
class Pair:
    """The eigenvalues of a matrix along the true parameter and, d - 1 times, across it."""

    along: float
    across: float

    def trace(self, dim: int) -> float:
        """Return the sum of all eigenvalues."""
        return self.along + (dim - 1) * self.across


def second_moment(risk: SphereRisk, mechanism: SeparatedMechanism | None) -> Pair:
    r"""Return E[Z Z^T] at the true parameter, for Z the release of a user's gradient.

    The gradient is a number times x. For Z = R V / m, V at the dot product D with that direction,
    :math:`E[ZZ^T \mid x] = E[R^2] (a\,xx^T + b\,(I-xx^T)) / m^2` with :math:`a = E D^2` and
    :math:`b = (1-a)/(d-1)`. Without a mechanism it is the Hessian, as for every likelihood.
    """
    if mechanism is None:
        return Pair(*risk.curvature)
    dim = risk.dim
    direct = mean_square_dot(mechanism.direction)
    other = (1.0 - direct) / (dim - 1)
    t = _panels(dim)
    energy = np.zeros_like(t)
    for label in (-1.0, 1.0):
        chances = expit(label * risk.signal * t)
        sizes = expit(-label * risk.signal * t)  # of the gradient
        squares = np.array([mechanism.magnitude.variance(size) for size in sizes]) + sizes**2
        energy += chances * squares
    energy *= mechanism.direction.scale**2
    along = float(np.mean(energy * (direct * t**2 + other * (1.0 - t**2))))
    return Pair(along, (float(np.mean(energy)) - along) / (dim - 1))


def mean_square_dot(direction: PrivUnit) -> float:
    """Return E<V, u>^2 for the direction V that a PrivUnit draws around u."""
    dim, gamma = direction.dim, direction.cap_threshold
    cap = Cap(dim, gamma)
    chance = math.exp(cap.log_probability)
    inside = (1.0 + gamma * (dim - 1) * cap.mean_inside) / dim  # by parts
    outside = (1.0 / dim - chance * inside) / (1.0 - chance)
    p = direction.cap_probability
    return p * inside + (1.0 - p) * outside


def asymptotic_square_error(risk: SphereRisk, moment: Pair, num_users: int) -> float:
    """Return tr(H^-1 Sigma H^-1) / N: the mean square error of the averaged iterate, for N large.

    Corollary priv-asympt of Bhowmick et al., arXiv:1812.00984v2.
    """
    curvature = Pair(*risk.curvature)
    per_user = Pair(moment.along / curvature.along**2, moment.across / curvature.across**2)
    return per_user.trace(risk.dim) / num_users


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the stream linearised at the true parameter does after its last user, exactly.

    Attributes
    ----------
    average_square_error, gap : float
        Mean square error of the averaged iterate, and mean excess risk of the last one.
    remaining : float
        Share of the true parameter that the mean of the last iterate still lacks: the asymptotic
        law needs it to be near 0.
    """

    average_square_error: float
    gap: float
    remaining: float


def predict(
    risk: SphereRisk, moment: Pair, *, stepsize: float, exponent: float, num_users: int
) -> Prediction:
    """Return the prediction for a stream that starts at 0."""
    curvature = Pair(*risk.curvature)
    sizes = stepsize * np.arange(1.0, num_users + 1.0) ** -exponent
    along, across = (_linear(sizes, h) for h in (curvature.along, curvature.across))
    start = risk.signal**2  # the distance from 0 lies along the true parameter
    average = Pair(
        along.average_bias**2 * start + along.average_gain * moment.along,
        across.average_gain * moment.across,
    )
    last = Pair(
        along.last_bias**2 * start + along.last_gain * moment.along,
        across.last_gain * moment.across,
    )
    return Prediction(
        average_square_error=average.trace(risk.dim),
        gap=Pair(last.along * curvature.along, last.across * curvature.across).trace(risk.dim) / 2,
        remaining=along.last_bias,
    )


@dataclass(frozen=True, slots=True)
class _Gains:
    """What of the start, and how much of each user's variance, is in the average and the last."""

    average_bias: float
    average_gain: float
    last_bias: float
    last_gain: float


def _linear(sizes: Floats, curvature: float) -> _Gains:
    """Follow e -> (1 - eta h) e - eta xi for unit start and unit variance of xi."""
    last_bias, bias_sum, last_gain = 1.0, 0.0, 0.0
    for size in sizes.tolist():
        keeps = 1.0 - size * curvature
        last_bias *= keeps
        bias_sum += last_bias
        last_gain = keeps * keeps * last_gain + size * size
    later, average_gain = 0.0, 0.0
    for size in reversed(sizes.tolist()):
        # How much the iterates from here on hold of this user's noise, in units of its step.
        weight = size * (1.0 + later)
        average_gain += weight * weight
        later = (1.0 - size * curvature) * (1.0 + later)
    count = len(sizes)
    return _Gains(bias_sum / count, average_gain / count**2, last_bias, last_gain)


def _panels(dim: int) -> Floats:
    """Return medians of panels of equal probability under the law of T."""
    levels = (2.0 * np.arange(_PANELS) + 1.0) / _PANELS - 1.0
    # T^2 has a beta law, and both signs are as likely.
    sizes = np.sqrt(betaincinv(0.5, (dim - 1) / 2, np.abs(levels)))
    medians: Floats = np.sign(levels) * sizes
    return medians
