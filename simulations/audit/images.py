"""The images that are attacked, and how a recovered one is measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator
from simulations.data.drawing import permutation

Floats = NDArray[np.float64]

SIDE = 8
PIXELS = SIDE * SIDE


@dataclass(frozen=True, slots=True)
class Images:
    """Private images, and images like them that the onlooker has.

    Attributes
    ----------
    pixels, labels : ndarray
        ``(n, PIXELS)`` and ``(n,)`` integers.
    album, album_labels : ndarray
        The onlooker's own, none of them private; without any rows if nothing is known beforehand.
    """

    pixels: Floats
    labels: NDArray[np.int64]
    album: Floats
    album_labels: NDArray[np.int64]

    @property
    def guess(self) -> Floats:
        """The average of the album: what an onlooker would answer unseen; zero without one."""
        average: Floats = self.album.sum(axis=0) / max(len(self.album), 1)
        return average


def digits(count: int, rng: KeystreamGenerator) -> Images:
    """Return some of scikit-learn's 1,797 real handwritten digits; the others are the album."""
    from sklearn.datasets import load_digits

    source = load_digits()
    order = permutation(len(source.data), rng)
    pixels, labels = source.data[order] / 16.0, source.target[order].astype(np.int64)
    return Images(pixels[:count], labels[:count], pixels[count:], labels[count:])


def uniform(count: int, rng: KeystreamGenerator, *, norm: float = 1.0) -> Images:
    """Return images of a uniformly random direction: the prior that the bounds are about."""
    pixels = norm * uniform_directions(count, PIXELS, rng)
    labels = rng.integers(10, count).astype(np.int64)
    return Images(pixels, labels, pixels[:0], labels[:0])


def uniform_directions(count: int, dim: int, rng: KeystreamGenerator) -> Floats:
    """Return unit vectors, uniformly random on the sphere."""
    return unit(rng.normal(count * dim).reshape(count, dim))


def unit(rows: Floats) -> Floats:
    """Return the rows divided by their norms; a zero row stays."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0.0, norms, 1.0)


def cosines(found: Floats, truth: Floats) -> Floats:
    """Return the cosine of each row with the true one."""
    products: Floats = np.sum(unit(found) * unit(truth), axis=-1)
    return products
