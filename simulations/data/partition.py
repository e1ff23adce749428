"""Deal a data set to clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator


def permutation(count: int, rng: KeystreamGenerator) -> NDArray[np.intp]:
    """Return a uniformly random order of ``range(count)``."""
    return np.argsort(rng.bits(count), kind="stable")


def deal(indices: NDArray[np.intp], num_clients: int) -> list[NDArray[np.intp]]:
    """Deal `indices` to clients one by one, so that their shares differ by at most one."""
    return [indices[client::num_clients] for client in range(num_clients)]
