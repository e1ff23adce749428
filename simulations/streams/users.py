"""Where the users' data come from: one reproducible stream for each trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from flwr_sdp import KeystreamGenerator, seeded_generator
from simulations.streams.arrays import Singles

Covariates = Callable[[int, int, KeystreamGenerator], Singles]
"""Returns ``(count, dim)`` covariates."""

# Users drawn at a time: enough to make long calls, few enough to stay in the cache.
_BLOCK = 32


class Users:
    """Users whose labels follow the logistic model, a line of them for each row.

    Parameters
    ----------
    truths : ndarray
        ``(rows, dim)`` true parameters.
    generators : sequence of KeystreamGenerator
        One for each row: what a row sees does not depend on the others.
    covariates : callable
        The law of the covariates.
    """

    def __init__(
        self,
        truths: NDArray[np.float64],
        generators: Sequence[KeystreamGenerator],
        covariates: Covariates,
    ) -> None:
        self._truths = truths.astype(np.float32)
        self._generators = generators
        self._covariates = covariates

    def blocks(self, num_users: int) -> Iterator[tuple[Singles, Singles]]:
        """Yield covariates, ``(count, rows, dim)``, and labels of -1 or 1, ``(count, rows)``.

        The blocks are always as large, so that whoever goes through the same generators sees the
        same users.
        """
        rows, dim = self._truths.shape
        for start in range(0, num_users, _BLOCK):
            count = min(_BLOCK, num_users - start)
            x = np.empty((count, rows, dim), np.float32)
            levels = np.empty((count, rows))
            for row, rng in enumerate(self._generators):
                x[:, row] = self._covariates(count, dim, rng)
                levels[:, row] = rng.uniforms(count)
            chances = expit(np.einsum("krd,rd->kr", x, self._truths).astype(np.float64))
            yield x, np.where(levels < chances, np.float32(1.0), np.float32(-1.0))


def on_sphere(count: int, dim: int, rng: KeystreamGenerator) -> Singles:
    """Return uniform points of the unit sphere."""
    x: Singles = rng.normal(count * dim, np.float32).reshape(count, dim)
    x /= np.sqrt(np.einsum("kd,kd->k", x, x))[:, None]
    return x


def on_cube(count: int, dim: int, rng: KeystreamGenerator) -> Singles:
    """Return uniform corners of the hypercube, of coordinates -1 and 1."""
    words = rng.bits(-(-count * dim // 64))
    bits = np.unpackbits(words.view(np.uint8), count=count * dim).reshape(count, dim)
    signs: Singles = bits.astype(np.float32)
    signs *= np.float32(2.0)
    signs -= np.float32(1.0)
    return signs


def trial_generators(
    seed: int, purpose: str, stream: str, trials: Sequence[int]
) -> list[KeystreamGenerator]:
    """Return a generator for each trial, the same whatever the level or the batch it is run in."""
    return [seeded_generator(seed, purpose, stream, trial) for trial in trials]
