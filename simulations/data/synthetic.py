"""Synthetic colour images in the format of CIFAR-10, for when the real ones are not at hand.

**Not CIFAR-10**, and said so wherever the data is named. An image shows one of its class's smooth
patterns, moved, mirrored, with a contrast of its own, behind another smooth pattern that tells
nothing, and noise. The nearest average of a class is right for 46% of the images, the network of
the CIFAR-10 task for 75% after 200 steps of Adam with 32 images each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator, seeded_generator
from simulations.data.images import Images, Labels, Pixels

NAME = "synthetic-cifar"

_SIDE = 32
_CLASSES = 10
_PATTERNS = 2  # of each class
_WAVES, _BACKGROUND_WAVES = 7, 4  # the frequencies a pattern has along an axis
_SHIFT = 8  # pixels to either side
_CHUNK = 1000
_FOREGROUND, _BACKGROUND, _NOISE = 45.0, 20.0, 15.0  # standard deviations of pixel values


def synthetic_cifar(train: int = 10_000, test: int = 2_000) -> Images:
    """Return so many images, the same whenever it is called."""
    patterns = _patterns(_CLASSES * _PATTERNS, _WAVES, seeded_generator(0, NAME, "patterns"))
    train_images, train_labels = _draw(patterns, train, "train")
    test_images, test_labels = _draw(patterns, test, "test")
    return Images(
        name=NAME,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def _patterns(count: int, waves: int, rng: KeystreamGenerator) -> NDArray[np.float32]:
    """Return ``(count, 32, 32, 3)`` smooth random patterns of mean 0 and standard deviation 1."""
    phase = np.pi * (np.arange(_SIDE) + 0.5) / _SIDE
    cosines = np.cos(np.outer(phase, np.arange(waves))).astype(np.float32)
    weights = rng.normal(count * 3 * waves * waves, np.float32)
    fields = cosines @ weights.reshape(count, 3, waves, waves) @ cosines.T
    fields = fields.transpose(0, 2, 3, 1)
    fields -= fields.mean(axis=(1, 2, 3), keepdims=True)
    fields /= fields.std(axis=(1, 2, 3), keepdims=True)
    return np.ascontiguousarray(fields)


def _draw(patterns: NDArray[np.float32], count: int, purpose: str) -> tuple[Pixels, Labels]:
    images = np.empty((count, _SIDE, _SIDE, 3), np.uint8)
    labels = np.empty(count, np.int64)
    for chunk, start in enumerate(range(0, count, _CHUNK)):
        stop = min(start + _CHUNK, count)
        # A stream for each chunk: the first images do not depend on how many are asked for.
        rng = seeded_generator(0, NAME, purpose, chunk)
        values, kinds = _draw_chunk(patterns, rng)
        images[start:stop] = values[: stop - start]
        labels[start:stop] = kinds[: stop - start] % _CLASSES
    return images, labels


def _draw_chunk(
    patterns: NDArray[np.float32], rng: KeystreamGenerator
) -> tuple[Pixels, NDArray[np.int64]]:
    kinds = rng.integers(len(patterns), _CHUNK).astype(np.int64)
    down, along = (rng.integers(2 * _SHIFT + 1, 2 * _CHUNK).astype(np.int64) - _SHIFT).reshape(
        2, -1
    )
    mirrored = rng.integers(2, _CHUNK).astype(np.bool_)
    contrast = (0.5 + rng.uniforms(_CHUNK)).astype(np.float32)[:, None, None, None]
    place = np.arange(_SIDE)
    # Where a move leaves a gap the last row or column goes on.
    from_row = np.clip(place - down[:, None], 0, _SIDE - 1)
    from_column = np.clip(place - along[:, None], 0, _SIDE - 1)
    from_column[mirrored] = from_column[mirrored, ::-1]
    moved = patterns[kinds[:, None, None], from_row[:, :, None], from_column[:, None, :]]
    values = _FOREGROUND * contrast * moved
    values += _BACKGROUND * _patterns(_CHUNK, _BACKGROUND_WAVES, rng)
    values += _NOISE * rng.normal(values.size, np.float32).reshape(values.shape)
    values += 127.5
    return np.clip(np.rint(values), 0, 255).astype(np.uint8), kinds
