"""Local response normalisation."""

from __future__ import annotations

import torch
from torch import nn


class LocalResponse(nn.Module):
    r"""Divide by :math:`(1 + \alpha/s \sum_{|j - i| \le s/2} x_j^2)^{3/4}`, over channels.

    ``torch.nn.LocalResponseNorm`` at beta = 3/4, in less time on a CPU: the sum over neighbours is
    a 1x1 convolution, and the power two square roots.

    Parameters
    ----------
    channels : int
        Channels of the input.
    size : int
        How many neighbours are summed, odd.
    alpha : float
        Their weight.
    """

    def __init__(self, channels: int, *, size: int, alpha: float) -> None:
        super().__init__()
        place = torch.arange(channels)
        is_near = (place[:, None] - place).abs() <= size // 2
        # Not persistent: a constant is no part of the model that is sent.
        self.register_buffer("_near", is_near.float()[:, :, None, None], persistent=False)
        self._near: torch.Tensor
        self._weight = alpha / size

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised channels."""
        sums = 1.0 + self._weight * nn.functional.conv2d(inputs * inputs, self._near)
        return inputs * torch.rsqrt(sums * sums.sqrt())
