"""What one example does to a model: the gradient that a device would send for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from simulations.audit.images import SIDE, Floats
from simulations.models.torch_model import seeded


def small_cnn(seed: int) -> nn.Module:
    """Return an untrained convolutional network for 8x8 digits, 3,818 weights.

    Smooth, as matching gradients by gradients needs (Zhu, Liu and Han, *Deep Leakage from
    Gradients*, NeurIPS 2019, replace ReLU by a sigmoid for that reason): tanh.
    """
    return seeded(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, SIDE, SIDE)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 16, 3, padding=1, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16 * SIDE * SIDE // 4, 10),
        ),
        seed,
    ).double()


def per_example(network: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the cross-entropy of each example, ``(n, weights)``.

    In the order of ``network.parameters()``; differentiable with respect to the pixels.
    """
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> Any:
        scores = functional_call(network, weights, (image[None],))
        return nn.functional.cross_entropy(scores, label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, pixels, labels)
    return torch.cat([gradients[name].flatten(1) for name in weights], dim=1)


def gradients_of(network: nn.Module, pixels: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return :func:`per_example` as an array."""
    found = per_example(network, torch.from_numpy(pixels), torch.from_numpy(labels))
    array: Floats = found.numpy().astype(np.float64)
    return array
