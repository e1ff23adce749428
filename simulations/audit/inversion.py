"""Gradient inversion: look for the image whose gradient is the one that was sent.

Zhu, Liu and Han, *Deep Leakage from Gradients*, NeurIPS 2019, match gradients by gradient descent
on the image; Geiping, Bauermeister, Dröge and Moeller, *Inverting Gradients*, NeurIPS 2020,
compare them by their cosine, which a private magnitude leaves alone, and add total variation.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from simulations.audit.gradients import per_example
from simulations.audit.images import SIDE, Floats

_SMOOTHNESS = 1e-4
_RATE = 0.1


def invert(
    network: nn.Module,
    updates: Floats,
    labels: NDArray[np.int64],
    *,
    steps: int,
    seed: int,
) -> Floats:
    """Return an image for each update, with pixels in [0, 1].

    All of them at once, from noise, by Adam with a rate that falls to zero. The labels are given:
    without noise they can be read off the last layer (Zhao, Mopuri and Bilen, arXiv:2001.02610),
    and an onlooker may know them anyway.

    Parameters
    ----------
    network : Module
        The model the updates belong to.
    updates : ndarray
        ``(n, weights)``: gradients, up to a positive factor.
    labels : ndarray
        ``(n,)``.
    steps : int
        Steps of Adam.
    seed : int
        Of the image to start from.
    """
    wanted = nn.functional.normalize(torch.from_numpy(updates), dim=1)
    known = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(len(updates), SIDE * SIDE, generator=generator, dtype=torch.float64)
    pixels.requires_grad_()
    optimizer = torch.optim.Adam([pixels], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        found = nn.functional.normalize(per_example(network, pixels, known), dim=1)
        mismatch = (1.0 - (found * wanted).sum(dim=1)).sum()
        loss = mismatch + _SMOOTHNESS * _total_variation(pixels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            pixels.clamp_(0.0, 1.0)
    return pixels.detach().numpy()


def _total_variation(pixels: torch.Tensor) -> torch.Tensor:
    """Return the sum of the differences of neighbouring pixels."""
    images = pixels.reshape(-1, SIDE, SIDE)
    return images.diff(dim=1).abs().sum() + images.diff(dim=2).abs().sum()
