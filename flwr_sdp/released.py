"""Which arrays of a model are an update: the same answer on the device and at the server."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

BATCH_NORM_STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Name patterns of the arrays that batch normalisation fills with averages of the data."""


def is_released(name: str, dtype: Any, excluded: Iterable[str]) -> bool:
    """Return whether an array is part of the update that is privatized, summed and noised.

    Only floating-point arrays are: integer and boolean buffers hold counters and masks, which no
    mechanism here can privatize. Names that match a pattern in `excluded` are not either.
    """
    return np.issubdtype(np.dtype(dtype), np.floating) and not any(
        fnmatchcase(name, pattern) for pattern in excluded
    )


def check_patterns(field: str, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return name patterns as a tuple, or raise ``ValueError``."""
    if not isinstance(patterns, Iterable):
        raise ValueError(f"{field} must be names; got {patterns!r}")
    listed = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{field} must be names; got {listed!r}")
    return listed
