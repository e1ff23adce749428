"""The arrays that mechanisms take: one check for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_sdp.randomness import FloatArray


def as_rows(name: str, array: Any, dim: int) -> FloatArray:
    """Return a ``(dim,)`` or ``(n, dim)`` array as contiguous rows, copying only if it must.

    Raises
    ------
    ValueError
        If it is not a NumPy array of float32 or float64 of such a shape; the text says `name`.
    """
    if not isinstance(array, np.ndarray) or array.dtype.type not in (np.float32, np.float64):
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} must be a NumPy array of float32 or float64; got {kind}")
    if array.ndim not in (1, 2) or array.shape[-1] != dim:
        raise ValueError(f"{name} must have shape ({dim},) or (n, {dim}); got {array.shape}")
    return np.ascontiguousarray(array).reshape(-1, dim)
