"""Where the noise of a simulated device comes from."""

from __future__ import annotations

import os

import torch

from flwr_sdp import KeystreamGenerator, secure_generator
from simulations.models.device import device


def report_generator() -> KeystreamGenerator | torch.Generator:
    """Return a new generator for one report: the GPU's if this process sees one, else a secure one.

    It is never seeded from the run's seed. **That of a GPU is for simulation only**: its noise has
    the right law, but its 64 bits of state can be searched and its output predicted.
    """
    if device().type == "cpu":
        return secure_generator()
    return torch.Generator(device()).manual_seed(int.from_bytes(os.urandom(8), "little"))
