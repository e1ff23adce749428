"""Random orders and random subsets, of a generator of the library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator

Indices = NDArray[np.intp]


def permutation(count: int, rng: KeystreamGenerator) -> Indices:
    """Return a uniformly random order of ``range(count)``."""
    return np.argsort(rng.bits(count), kind="stable")


def sample(count: int, size: int, rng: KeystreamGenerator) -> Indices:
    """Return `size` different members of ``range(count)``, every set as likely, at O(size) cost."""
    if 2 * size > count:
        return permutation(count, rng)[:size]
    drawn = np.empty(0, np.intp)
    # The first `size` different ones of a row of independent draws.
    while len(drawn) < size:
        more = rng.integers(count, size - len(drawn)).astype(np.intp)
        row = np.concatenate([drawn, more])
        drawn = row[np.sort(np.unique(row, return_index=True)[1])]
    return drawn
