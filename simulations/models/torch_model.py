"""Between a torch module and Flower's arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from flwr_sdp import npy


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with weights drawn from `seed`; torch's global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def dump(module: nn.Module) -> ArrayRecord:
    """Return the module's state."""
    record = ArrayRecord()
    for name, tensor in module.state_dict().items():
        numbers = np.ascontiguousarray(tensor.cpu().numpy())
        shape = tuple(tensor.shape)
        # The bytes that Flower would write, with a copy less.
        data = npy.write(numbers, shape)
        record[name] = Array(str(numbers.dtype), shape, "numpy.ndarray", data)
    return record
