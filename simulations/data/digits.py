"""scikit-learn's 1,797 real handwritten digits: always there, and small."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.drawing import permutation
from simulations.data.images import Images, Labels, Pixels

HELD_OUT = 300
"""Images that no client holds, for evaluation."""

MAX_PIXEL = 16


def digits() -> tuple[Pixels, Labels]:
    """Return images of 8x8, with values from 0 to `MAX_PIXEL`, and labels."""
    from sklearn.datasets import load_digits

    source = load_digits()
    return source.images.astype(np.uint8), source.target.astype(np.int64)


def split(images: Pixels, labels: Labels, name: str, seed: int) -> Images:
    """Return the images in a random order, the first of them held out."""
    order = permutation(len(images), seeded_generator(seed, "digits", "split"))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    return Images(
        name=name,
        train_images=images[rest],
        train_labels=labels[rest],
        test_images=images[held_out],
        test_labels=labels[held_out],
    )


def enlarged_digits() -> Images:
    """Return the digits as MNIST has them: 20x20 in a frame of 28x28, values to 255.

    A stand-in that needs no file. The split is the same in every run, as MNIST's is.
    """
    images, labels = digits()
    large = nn.functional.interpolate(
        torch.from_numpy(images)[:, None].float(), size=(20, 20), mode="bilinear"
    )
    pixels = nn.functional.pad(large[:, 0], (4, 4, 4, 4)).numpy()
    return split((pixels * (255 / MAX_PIXEL)).round().astype(np.uint8), labels, "digits-28", seed=0)
