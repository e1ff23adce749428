"""The symmetric Dirichlet law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator


def dirichlet(alpha: float, count: int, rng: KeystreamGenerator) -> NDArray[np.float64]:
    """Return `count` proportions that add up to 1, from Dirichlet(alpha, ..., alpha).

    Independent Gamma(alpha) numbers over their sum; in logarithms, since at a small `alpha` most of
    them are below every positive number.
    """
    logs = _log_gammas(alpha, count, rng)
    weights = np.exp(logs - logs.max())
    proportions: NDArray[np.float64] = weights / weights.sum()
    return proportions


def _log_gammas(alpha: float, count: int, rng: KeystreamGenerator) -> NDArray[np.float64]:
    """Return logarithms of Gamma(alpha) numbers.

    Marsaglia and Tsang, *A Simple Method for Generating Gamma Variables* (2000), for alpha + 1:
    d (1 + c x)^3 with a normal x, accepted for at least 95% of all x. Times U^(1/alpha) it is
    Gamma(alpha).
    """
    d = alpha + 2.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    found, missing = [], count
    while missing:
        normals = rng.normal(missing)
        cube = np.maximum(1.0 + c * normals, 0.0) ** 3
        log_uniforms = rng.log_uniforms(missing)
        possible = cube > 0.0
        x, v = normals[possible], cube[possible]
        accepted = log_uniforms[possible] < 0.5 * x**2 + d * (1.0 - v + np.log(v))
        found.append(np.log(d * v[accepted]))
        missing -= int(np.count_nonzero(accepted))
    return np.concatenate(found) + rng.log_uniforms(count) / alpha
