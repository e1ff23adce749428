"""A multilayer perceptron."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers of the given widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
