"""Between a torch module and Flower's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from flwr_sdp import npy

Network = TypeVar("Network", bound=nn.Module)


def seeded(build: Callable[[], Network], seed: int) -> Network:
    """Build a module with weights drawn from `seed`; torch's global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def trained(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return what training changes, by name: what is written to these tensors is in the module.

    These are the parameters that require a gradient, tied ones once, and the buffers of the layers
    that have such parameters. What is frozen is no part of the model that is sent.
    """
    parameters = {name for name, each in module.named_parameters() if each.requires_grad}
    frozen = {name for name, _ in module.named_parameters(remove_duplicate=False)} - parameters
    layers = {name.rpartition(".")[0] for name in parameters}
    return {
        name: tensor
        for name, tensor in module.state_dict().items()
        if name not in frozen and name.rpartition(".")[0] in layers
    }


def dump(module: nn.Module) -> ArrayRecord:
    """Return what is trained of the module."""
    record = ArrayRecord()
    for name, tensor in trained(module).items():
        numbers = np.ascontiguousarray(tensor.cpu().numpy())
        shape = tuple(tensor.shape)
        # The bytes that Flower would write, with a copy less.
        data = npy.write(numbers, shape)
        record[name] = Array(str(numbers.dtype), shape, "numpy.ndarray", data)
    return record
