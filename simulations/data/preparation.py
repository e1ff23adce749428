"""From the bytes of images to what a network takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flwr_sdp import KeystreamGenerator

Prepare = Callable[[torch.Tensor, KeystreamGenerator | None], torch.Tensor]
"""Images of a data set, in bytes, to inputs; with a generator for training, without to evaluate."""

CROP = 24


def rows(images: torch.Tensor, rng: KeystreamGenerator | None = None) -> torch.Tensor:
    """Return ``(n, pixels)`` of images with values to 16, divided by that."""
    return images.flatten(1).float() / 16.0


def planes(images: torch.Tensor, rng: KeystreamGenerator | None = None) -> torch.Tensor:
    """Return ``(n, 1, height, width)`` of images with values to 255, divided by that."""
    return images.unsqueeze(1).float() / 255.0


def colours(images: torch.Tensor, rng: KeystreamGenerator | None = None) -> torch.Tensor:
    """Return ``(n, 3, height, width)`` of colour images with values to 255, brought to [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def crops(images: torch.Tensor, rng: KeystreamGenerator | None = None) -> torch.Tensor:
    """Return ``(n, 3, 24, 24)`` as TensorFlow's CIFAR-10 tutorial does.

    With a generator a random crop of each image, and its mirror image half of the time; without,
    the centre. Then each image is brought to mean 0 and standard deviation 1. The tutorial's random
    brightness and contrast are left out: most of either is gone after that.
    """
    count, side = len(images), images.shape[1]
    if rng is None:
        margin = (side - CROP) // 2
        cut = images[:, margin : margin + CROP, margin : margin + CROP]
    else:
        cut = _random_cut(images, rng, count, side)
    return _standardised(cut.permute(0, 3, 1, 2).float())


def _random_cut(
    images: torch.Tensor, rng: KeystreamGenerator, count: int, side: int
) -> torch.Tensor:
    draws = torch.from_numpy(rng.integers(side - CROP + 1, 2 * count).astype("int64"))
    mirrored = torch.from_numpy(rng.integers(2, count).astype("int64")).bool()
    place = torch.arange(CROP)
    down = draws[:count, None] + place
    along = draws[count:, None] + torch.where(mirrored[:, None], place.flip(0), place)
    which = torch.arange(count)[:, None, None].to(images.device)
    return images[which, down.to(images.device)[:, :, None], along.to(images.device)[:, None, :]]


def _standardised(images: torch.Tensor) -> torch.Tensor:
    """Return each image minus its mean, over its standard deviation.

    An image of one colour would be divided by nothing: the tutorial's floor is that of an image
    with values of 0 and 1 in which one value differs.
    """
    pixels = images.flatten(1)
    deviation = pixels.std(dim=1, correction=0).clamp_min(pixels.shape[1] ** -0.5)
    centred = (pixels - pixels.mean(dim=1, keepdim=True)) / deviation[:, None]
    return centred.reshape(images.shape)
