"""What the laws of the sphere and of the hypercube compute with."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

MAX_DIM = 2**40
"""Largest dimension: beyond any model, and well inside what the formulas bear."""


def gauss_legendre(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return an even number of nodes and weights of quadrature on (0, 1), to their last digits.

    NumPy's are right to 1e-12 near the ends alone, which the price of a cap would show.
    """
    nodes, weights = np.empty(count), np.empty(count)
    with localcontext(prec=40):
        for i, start in enumerate(np.polynomial.legendre.leggauss(count)[0][: count // 2]):
            x = Decimal(float(start))
            for _ in range(2):  # Newton's step, and then the weight where it leads
                before, last = Decimal(1), x
                for k in range(2, count + 1):
                    before, last = last, ((2 * k - 1) * x * last - (k - 1) * before) / k
                slope = count * (before - x * last) / (1 - x * x)
                weights[[i, -1 - i]] = 1 / ((1 - x * x) * slope * slope)
                x -= last / slope
            nodes[[i, -1 - i]] = (1 + x) / 2, (1 - x) / 2
    return nodes, weights


NODES, WEIGHTS = gauss_legendre(96)
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


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function changes sign between two points, to the last bits.

    Chandrupatla's method (1997): inverse quadratic steps where they are safe, and halving
    elsewhere. SciPy has others, but a device pays half a second a message for their import.
    """
    x1, x2 = high, low
    f1, f2 = function(x1), function(x2)
    if f1 == 0.0 or f2 == 0.0:
        return x1 if f1 == 0.0 else x2
    if (f1 > 0.0) == (f2 > 0.0):
        raise ValueError(f"the function has the same sign at {low!r} and {high!r}")
    step = 0.5
    while True:
        x = x1 + step * (x2 - x1)
        f = function(x)
        if (f > 0.0) == (f1 > 0.0):
            x3, f3 = x1, f1
        else:
            x3, f3, x2, f2 = x2, f2, x1, f1
        x1, f1 = x, f
        best, least = (x1, f1) if abs(f1) < abs(f2) else (x2, f2)
        nearest = sys.float_info.epsilon * abs(best) / abs(x2 - x1)
        if least == 0.0 or nearest > 0.5:
            return best
        xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
        step = 0.5
        if 1.0 - math.sqrt(1.0 - xi) < phi < math.sqrt(xi):
            step = f1 / (f2 - f1) * f3 / (f2 - f3)
            step += (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
        step = min(max(step, nearest), 1.0 - nearest)
