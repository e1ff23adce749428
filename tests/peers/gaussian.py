"""The textbook Gaussian mechanism at budgets it was not meant for."""

from __future__ import annotations

import math

from scipy import optimize, special

DELTA = 1e-5


def spent_delta(epsilon: float, noise: float) -> float:
    """Return the exact delta at `epsilon` of noise with standard deviation `noise`.

    In units of the sensitivity; Balle and Wang 2018, arXiv:1805.06530, Theorem 8.
    """
    half, shift = 1.0 / (2.0 * noise), epsilon * noise
    above = special.ndtr(half - shift)
    return float(above - math.exp(epsilon + special.log_ndtr(-half - shift)))


def needed_noise(epsilon: float) -> float:
    """Return the least noise, in units of the sensitivity, that spends `DELTA` at `epsilon`."""
    return float(optimize.brentq(lambda noise: spent_delta(epsilon, noise) - DELTA, 1e-3, 1e3))
