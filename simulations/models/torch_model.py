"""Between a torch module and Flower's arrays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord
from torch import nn


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with weights drawn from `seed`; torch's global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def load(module: nn.Module, model: ArrayRecord) -> nn.Module:
    """Load `model` into `module` and return it."""
    module.load_state_dict(model.to_torch_state_dict())
    return module


def dump(module: nn.Module) -> ArrayRecord:
    """Return the module's state."""
    return ArrayRecord(module.state_dict())
