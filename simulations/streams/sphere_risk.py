r"""The exact risk of logistic regression when covariates are uniform on the sphere.

With :math:`T` the first coordinate of a uniform point, :math:`r = |\theta|` and :math:`u` the
direction of the true parameter :math:`\theta^* = \tau u`,

.. math:: L(\theta) = E\log(2\cosh(rT/2)) - c\,\langle\theta, u\rangle,
          \qquad c = E[T\tanh(\tau T/2)] / 2,

because :math:`\log(1+e^{-yz}) = \log(2\cosh(z/2)) - yz/2` and :math:`E[y \mid x] =
\tanh(\langle\theta^*, x\rangle/2)`. So every risk is one integral over an angle and one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flwr_sdp._numerics import CUT, NODES, WEIGHTS
from flwr_sdp.sphere import log_density_constant
from simulations.streams.arrays import Floats


class SphereRisk:
    """The risk L, its curvature at the true parameter, and the distance to it.

    Parameters
    ----------
    dim : int
        Dimension of the covariates, at least 2.
    signal : float
        Norm of the true parameter (tau in the paper), positive.
    """

    def __init__(self, dim: int, signal: float) -> None:
        self.dim, self.signal = dim, signal
        self.pull = self._mean_of_odd(signal)
        self._least = self._even_part(np.array([signal]))[0] - self.pull * signal

    def gap(self, norms: Floats, along: Floats) -> Floats:
        """Return L(theta) - L(theta*) for parameters of these norms and components along theta*."""
        gap: Floats = self._even_part(norms) - self.pull * along - self._least
        return gap

    def measure(self, truths: Floats) -> Callable[[Floats], tuple[Floats, Floats]]:
        """Return a function from ``(rows, dim)`` parameters to gaps and distances."""

        def of_rows(parameters: Floats) -> tuple[Floats, Floats]:
            norms = np.sqrt(np.einsum("rd,rd->r", parameters, parameters))
            along = np.einsum("rd,rd->r", parameters, truths) / self.signal
            return self.gap(norms, along), np.linalg.norm(parameters - truths, axis=1)

        return of_rows

    @property
    def curvature(self) -> tuple[float, float]:
        """The eigenvalue of the Hessian at the true parameter along it, and that across it."""

        def slope(t: Floats) -> Floats:
            return 0.25 / np.cosh(np.minimum(np.abs(self.signal * t) / 2.0, 350.0)) ** 2

        angles, weights = _angles(self.dim, self.signal)
        square = np.sin(angles) ** 2
        slopes = 2.0 * weights * slope(np.sin(angles))
        return float(slopes @ square), float(slopes @ (1.0 - square)) / (self.dim - 1)

    def _even_part(self, norms: Floats) -> Floats:
        """Return E log(2 cosh(r T / 2)) = r E|T| / 2 + E log(1 + exp(-r |T|)).

        The second term falls on the scale of 1/r, and the range of integration with it: it is as
        exact for the longest parameter as for the shortest.
        """
        values = np.empty(norms.shape)
        first = math.exp(log_density_constant(self.dim)) / (self.dim - 1)  # E|T| / 2
        for index, norm in np.ndenumerate(norms):
            angles, weights = _angles(self.dim, float(norm))
            tail = np.log1p(np.exp(-norm * np.sin(angles)))
            values[index] = norm * first + 2.0 * np.dot(weights, tail)
        return values

    def _mean_of_odd(self, norm: float) -> float:
        """Return E[T tanh(r T / 2)] / 2 = E|T| / 2 - E[|T| / (1 + exp(r |T|))]."""
        first = math.exp(log_density_constant(self.dim)) / (self.dim - 1)
        angles, weights = _angles(self.dim, norm)
        sines = np.sin(angles)
        decay = np.exp(-norm * sines)
        return first - 2.0 * float(np.dot(weights, sines * decay / (1.0 + decay)))


def _angles(dim: int, norm: float) -> tuple[Floats, Floats]:
    """Return nodes and weights for the law of T = sin(angle) on the positive half.

    They reach as far as the law itself, or, if that is less, as exp(-norm T) does not vanish.
    """
    width = math.pi / 2
    if dim > 2:
        # cos(a)^(d-2) <= exp(-(d-2) a^2 / 2).
        width = min(width, math.sqrt(2.0 * CUT / (dim - 2)))
    if 0.0 < norm < math.inf:
        width = min(width, math.pi / 2 * CUT / norm)  # sin(a) >= 2 a / pi
    angles = width * NODES
    density = math.exp(log_density_constant(dim)) * np.cos(angles) ** (dim - 2)
    return angles, width * WEIGHTS * density
