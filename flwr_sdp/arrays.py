"""NumPy or torch, nothing else: the checks, the moves and the few operations that mechanisms need.

torch is never imported here. Whoever holds a tensor has imported it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from flwr_sdp.randomness import PIECE, FloatArray, scratch

Array = Any
"""A NumPy array or a torch tensor."""

_LARGEST = {name: float(np.finfo(name).max) for name in ("float32", "float64")}


def is_tensor(array: Any) -> bool:
    """Return whether `array` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def as_rows(name: str, array: Any, dim: int) -> Array:
    """Return a ``(dim,)`` or ``(n, dim)`` array as contiguous rows, copying only if it must.

    Raises
    ------
    ValueError
        If it is not an array of float32 or float64 of such a shape; the text says `name`.
    """
    dtype = str(getattr(array, "dtype", "")).removeprefix("torch.")
    known = isinstance(array, np.ndarray) or is_tensor(array)
    if isinstance(array, np.ma.MaskedArray):  # what is masked would be released
        known = False
    if not known or dtype not in _LARGEST:
        got = dtype if known else f"{type(array).__name__} {dtype}".rstrip()
        raise ValueError(
            f"{name} must be a NumPy array or torch tensor of float32 or float64; got {got}"
        )
    if is_tensor(array) and str(array.layout) != "torch.strided":
        raise ValueError(f"{name} must be a dense tensor; got {array.layout}")
    if array.ndim not in (1, 2) or array.shape[-1] != dim:
        raise ValueError(f"{name} must have shape ({dim},) or (n, {dim}); got {tuple(array.shape)}")
    if is_tensor(array):
        return array.detach().resolve_neg().contiguous().reshape(-1, dim)
    return np.ascontiguousarray(array).reshape(-1, dim)


def check_room(name: str, dtype: Any, largest: float) -> None:
    """Raise ``ValueError`` where the largest output is not well within the dtype."""
    dtype = str(dtype).removeprefix("torch.")
    if not 2.0 * largest <= _LARGEST[dtype]:
        raise ValueError(
            f"{name} must be float64 at this budget, and the budget larger if it is; "
            f"{dtype} has no room for {largest:g}"
        )


def draws_on_device(array: Array, rng: Any) -> bool:
    """Return whether `rng` is a torch generator of the accelerator that holds `array`."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(rng, torch.Generator)
        and is_tensor(array)
        and rng.device.type == array.device.type != "cpu"
    )


def to_host(array: Array) -> FloatArray:
    """Return a NumPy view of an array or of a tensor in host memory, or a copy of another."""
    host: FloatArray = array.cpu().numpy() if is_tensor(array) else array
    return host


def like(array: Array, out: FloatArray) -> Array:
    """Return `out` in the shape of `array`, as a tensor on its device if it is one."""
    if is_tensor(array):
        out = sys.modules["torch"].from_numpy(out).to(array.device)
    return out.reshape(array.shape)


# ---------------------------------------------------------------------- operations on (n, m) rows
class NumPyRows:
    """Operations on rows of NumPy arrays; the numbers of the rows are float64."""

    copysign = staticmethod(np.copysign)

    @staticmethod
    def dots(a: Array, b: Array) -> Array:
        """Return the dot product of each pair of rows."""
        if a.shape[1] <= PIECE:
            return np.matmul(a[:, None, :], b[:, :, None])[:, 0, 0].astype(np.float64)
        return np.array([dot(x, y) for x, y in zip(a, b, strict=True)])

    @staticmethod
    def last(a: Array) -> Array:
        """Return the last number of each row."""
        return a[:, -1]

    @staticmethod
    def combine(a: Array, of_a: Array, b: Array, of_b: Array) -> None:
        """Turn each row of `a` into a combination of it and that of `b`."""
        product = scratch(a.dtype, a.size).reshape(a.shape)
        np.multiply(b, of_b.astype(a.dtype)[:, None], out=product)
        a *= of_a.astype(a.dtype)[:, None]
        a += product


class NumPyRow:
    """The same on a single row, of one dimension. Its numbers are floats."""

    copysign = staticmethod(math.copysign)

    @staticmethod
    def dots(a: Array, b: Array) -> float:
        """Return the dot product."""
        return dot(a, b)

    @staticmethod
    def last(a: Array) -> float:
        """Return the last number."""
        return float(a[-1])

    @staticmethod
    def combine(a: Array, of_a: float | None, b: Array, of_b: float) -> None:
        """Turn `a` into a combination of it and `b`; without `of_a` it has its length already."""
        product = scratch(a.dtype, a.size)
        np.multiply(b, a.dtype.type(of_b), product)
        if of_a is not None:
            a *= a.dtype.type(of_a)
        np.add(a, product, a)


class TorchRows:
    """Operations on rows of torch tensors. Nothing waits for the device."""

    @staticmethod
    def copysign(a: Array, b: Array) -> Array:
        """Return `a` with the signs of `b`."""
        return sys.modules["torch"].copysign(a, b)

    @staticmethod
    def dots(a: Array, b: Array) -> Array:
        """Return the dot product of each pair of rows."""
        if a.shape[0] == 1:  # the fast kernel for one long row
            return sys.modules["torch"].dot(a[0], b[0]).reshape(1)
        return sys.modules["torch"].linalg.vecdot(a, b)

    @staticmethod
    def last(a: Array) -> Array:
        """Return the last number of each row."""
        return a[:, -1]

    @staticmethod
    def combine(a: Array, of_a: Array, b: Array, of_b: Array) -> None:
        """Turn each row of `a` into a combination of it and that of `b`."""
        a.mul_(of_a[:, None]).addcmul_(b, of_b[:, None])


def norm(vector: FloatArray) -> float:
    """Return the Euclidean norm; inf or 0 where the squares leave the dtype."""
    with np.errstate(over="ignore", under="ignore"):
        return math.sqrt(dot(vector, vector))


def dot(a: FloatArray, b: FloatArray) -> float:
    """Return the dot product of two vectors, summed up in pieces."""
    # NumPy keeps its lock, and other threads waiting, for 500 products or fewer.
    piece = min(max(a.size // 512, 512), PIECE)
    whole = a.size - a.size % piece
    total = float(np.dot(a[whole:], b[whole:]))
    if whole:
        products = np.matmul(a[:whole].reshape(-1, 1, piece), b[:whole].reshape(-1, piece, 1))
        total += float(np.add.reduce(products, axis=None, dtype=np.float64))
    return total
