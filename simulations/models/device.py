"""Where the tensors are."""

from __future__ import annotations

import torch


def device() -> torch.device:
    """Return the first GPU if this process sees one, and the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
