"""What the laws of the sphere and of the hypercube compute with."""

from __future__ import annotations

import math

import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(96)
NODES, WEIGHTS = (NODES + 1.0) / 2.0, WEIGHTS / 2.0
"""Gauss-Legendre quadrature on (0, 1)."""

CUT = 46.0
"""Integrands and laws are cut where they have fallen by e^-46 (1e-20): a double rounds before."""


def stirling_error(x: float) -> float:
    """Return log Gamma(x) - ((x - 1/2) log x - x + log(2 pi)/2), for x >= 1.

    For an integer it is as well log x! - ((x + 1/2) log x - x + log(2 pi)/2).
    """
    if x < 16:
        leading = (x + 0.5) * math.log(x) - x + 0.5 * math.log(2.0 * math.pi)
        return math.lgamma(x + 1.0) - leading
    y = 1.0 / (float(x) * x)
    return (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x
