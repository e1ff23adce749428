r"""The attack of an active server: a model made such that updates lie where the server looks.

Every neuron of the first layer is dead but one, which is barely alive. What follows that one is
made so steep that its gradient :math:`\delta (x, 1)` outweighs all others a million times. So the
update lies in the 65 coordinates of one row, and the server takes the report there: the noise in
the thousands of others no longer protects it. Several reports are added up.
(The idea is that of Fowl et al., *Robbing the Fed*, ICLR 2022, arXiv:2110.13057.)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from simulations.audit import linear
from simulations.audit.images import PIXELS, Floats, unit

COORDINATES = np.append(np.arange(PIXELS), linear.HIDDEN * PIXELS)
"""Where the update lies: the weights of the first neuron, and its bias."""

_STEEP, _ALIVE = 1e6, 1e-9


def network() -> nn.Module:
    """Return the network of the digits task, with the weights that the server makes."""
    made = linear.network(0)
    first, first_bias, last, last_bias = made.parameters()
    with torch.no_grad():
        for each in (first, last, last_bias):
            each.zero_()
        first_bias.fill_(-1.0)
        first_bias[0] = _ALIVE
        last[:, 0] = _STEEP * torch.arange(1.0, len(last) + 1.0)  # no two labels alike
    return made


def read(reports: Floats) -> Floats:
    """Return ``(n, 65)`` of ``(n, weights)`` reports: their directions, where the updates lie.

    Those of several reports of the same updates are to be added up.
    """
    found: Floats = unit(reports)[:, COORDINATES]
    return found
