"""ResNet-50 v2, in the two parts that refitting takes it in: a trunk, and a top of d = 1,255,524.

He et al., *Identity Mappings in Deep Residual Networks* (2016), in the layout of the implementation
that Bhowmick et al., arXiv:1812.00984v2, section "Pretrained models", refer to: a bias in the first
convolution, in the projections and in the last convolution of each block; a stage is made smaller
in its last block. "We consider only the final (softmax) layer and final convolutional layer of the
network to be modifiable": what lies below does not change, and has to be computed but once for an
image.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

_EPSILON = 1.001e-5  # of batch normalisation, in that implementation
_STAGES = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # width, blocks, stride of the last
_EXPANSION = 4  # channels that leave a block, over those within

BRANCH, SHORTCUT = 512, 2048
"""Channels that the last convolution takes, and that it is added to."""


class ResNet50V2(nn.Module):
    """The whole network, ``(n, 3, height, width)`` to scores ``(n, classes)``.

    Parameters
    ----------
    classes : int
        The classes to tell apart.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.top = Top(classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        scores: torch.Tensor = self.top(self.trunk(images))
        return scores


class Trunk(nn.Module):
    """All but the last convolution, and what comes after it.

    From images ``(n, 3, height, width)`` to ``(n, 2560, height / 32, width / 32)``: the `BRANCH`
    channels that the last convolution takes, and then the `SHORTCUT` ones that it is added to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, _STAGES[0][0], 7, stride=2, padding=3),
            nn.ZeroPad2d(1),  # not MaxPool2d's padding, which is of minus infinity
            nn.MaxPool2d(3, stride=2),
        )
        channels = _STAGES[0][0]
        blocks: list[_Bottleneck] = []
        for width, count, stride in _STAGES:
            for place in range(count):
                blocks.append(
                    _Bottleneck(
                        channels,
                        width,
                        stride=stride if place == count - 1 else 1,
                        is_projected=place == 0,
                    )
                )
                channels = _EXPANSION * width
        self.blocks = nn.Sequential(*(_Residual(block) for block in blocks[:-1]))
        self.last = blocks[-1]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        return torch.cat(self.last(self.blocks(self.stem(images))), dim=1)


class Top(nn.Module):
    """The last convolution, batch normalisation and softmax layer, on what a :class:`Trunk` gives.

    Parameters
    ----------
    classes : int
        The classes to tell apart.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(BRANCH, SHORTCUT, 1)
        self.norm = _norm(SHORTCUT)
        self.scores = nn.Linear(SHORTCUT, classes)
        self._is_norm_fixed = False

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores ``(n, classes)``."""
        branch, shortcut = torch.split(features, [BRANCH, SHORTCUT], dim=1)
        found = torch.relu(self.norm(shortcut + self.convolution(branch)))
        scores: torch.Tensor = self.scores(found.mean(dim=(2, 3)))
        return scores

    def fix_norm(self) -> Self:
        """Leave the batch normalisation as it is from now on, in training as well.

        Neither its weights nor its statistics are trained then: the convolution and the softmax
        layer are, which is what a refit is allowed.
        """
        self._is_norm_fixed = True
        self.norm.requires_grad_(False)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Train or evaluate; a fixed normalisation does as in evaluation in either case."""
        super().train(mode)
        if self._is_norm_fixed:
            self.norm.eval()
        return self


class _Bottleneck(nn.Module):
    """A block without its last convolution: to what that takes, and to what it is added to."""

    def __init__(self, channels: int, width: int, *, stride: int, is_projected: bool) -> None:
        super().__init__()
        self.width = width
        self.activation = nn.Sequential(_norm(channels), nn.ReLU())
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            _norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            _norm(width),
            nn.ReLU(),
        )
        self.projection = (
            nn.Conv2d(channels, _EXPANSION * width, 1, stride=stride) if is_projected else None
        )
        self.identity = nn.MaxPool2d(1, stride=stride)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        active = self.activation(inputs)
        if self.projection is None:
            return self.branch(active), self.identity(inputs)
        return self.branch(active), self.projection(active)


class _Residual(nn.Module):
    """A whole block."""

    def __init__(self, bottleneck: _Bottleneck) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.convolution = nn.Conv2d(bottleneck.width, _EXPANSION * bottleneck.width, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        branch, shortcut = self.bottleneck(inputs)
        added: torch.Tensor = shortcut + self.convolution(branch)
        return added


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=_EPSILON)
