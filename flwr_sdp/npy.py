"""NumPy's file format in memory: the numbers of an array that was sent, without copies."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"
"""A name that NumPy does not know. It stores such numbers as two bytes without a meaning."""

_PIECE = 2**17  # numbers


def read(data: bytes, dtype: str = "") -> NDArray[Any]:
    """Return the numbers in `data` where they lie, read-only; bfloat16 as a float32 copy.

    Parameters
    ----------
    data : bytes
        What ``numpy.save`` writes.
    dtype : str
        What the sender calls the numbers; only ``"bfloat16"`` says more than `data` does.

    Raises
    ------
    ValueError
        If `data` is not a whole array of plain numbers.
    """
    header = _header(data)
    if header is None or min(header[1], default=0) < 0:
        raise ValueError("not an array of plain numbers")
    start, shape, is_fortran, stored = header
    count = math.prod(shape)
    if stored.hasobject:
        raise ValueError("an array of objects")
    if count * stored.itemsize > len(data) - start:
        raise ValueError("an array that is not whole")
    if count == 0:
        numbers = np.empty(shape, dtype=stored)
    else:
        flat = np.frombuffer(data, dtype=stored, count=count, offset=start)
        numbers = flat.reshape(shape, order="F" if is_fortran else "C")
    return _widen(numbers) if dtype == BFLOAT16 and stored.itemsize == 2 else numbers


def _header(data: bytes) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]] | None:
    """Return where the numbers start, shape, whether in Fortran's order, and dtype; or None.

    No error is passed on, even as the cause of another: NumPy's quote what they cannot read.
    """
    try:
        start = _data_start(data)
        return start, *_parse_header(data[:start])
    except Exception:
        return None


def _data_start(data: bytes) -> int:
    """Return where the header ends; its length follows the magic string and the version."""
    length_size = {b"\x01\x00": 2, b"\x02\x00": 4}[data[6:8]]
    return 8 + length_size + int.from_bytes(data[8 : 8 + length_size], "little")


@lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether in Fortran's order, and dtype.

    The arrays of a model come again and again, and NumPy's parser takes longer than their numbers.
    """
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0,
                   (2, 0): np.lib.format.read_array_header_2_0}[version]  # fmt: skip
    facts: tuple[tuple[int, ...], bool, np.dtype[Any]] = read_header(file)
    return facts


class SentArray(Protocol):
    """An array as Flower sends it; ``flwr.app.Array`` is one."""

    dtype: str
    stype: str
    data: bytes


def read_array(name: str, array: SentArray) -> NDArray[Any]:
    """Return the numbers of an array that was sent; see :func:`read`.

    Raises
    ------
    ValueError
        Whatever is wrong with it; the text says `name` and no number.
    """
    try:
        if array.stype != "numpy.ndarray":
            raise ValueError("not a serialised NumPy array")
        return read(array.data, array.dtype)
    except Exception as error:
        raise ValueError(f"array {name!r} cannot be read ({type(error).__name__})") from error


def magnitudes(array: SentArray) -> tuple[float, float]:
    """Return the smallest and the largest absolute value; in pieces, to save memory.

    Both are NaN where a number is, and 0 of an empty array.

    Raises
    ------
    ValueError
        If the array cannot be read.
    """
    flat = read(array.data).ravel(order="K")  # a view in either order
    is_narrow = array.dtype == BFLOAT16 and flat.itemsize == 2
    found = []
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        sizes = np.abs(_widen(piece) if is_narrow else piece)
        with np.errstate(over="ignore"):  # of numbers that are wider than a double
            found.append((float(sizes.min()), float(sizes.max())))
    least, largest = np.array(found or [(0.0, 0.0)]).T
    return float(least.min()), float(largest.max())


def is_finite(array: SentArray, dtype: Any = np.float64) -> bool:
    """Return whether all numbers of an array are finite as a `dtype`; see :func:`magnitudes`."""
    return magnitudes(array)[1] <= float(np.finfo(dtype).max)


def format_of(name: str, array: SentArray) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape, which a legacy message says nowhere but in the bytes."""
    numbers = read_array(name, array)
    return (BFLOAT16 if array.dtype == BFLOAT16 else str(numbers.dtype)), numbers.shape


def formats_of(model: Mapping[str, SentArray]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each array of a model.

    Raises
    ------
    ValueError
        If an array cannot be read.
    """
    return {name: format_of(name, array) for name, array in model.items()}


def write(numbers: NDArray[Any], shape: tuple[int, ...], dtype: str = "") -> bytes:
    """Return what ``numpy.save`` writes for ``numbers.reshape(shape)``, with one copy on the way.

    Parameters
    ----------
    numbers : ndarray
        C-contiguous; float32 where `dtype` is ``"bfloat16"``.
    shape : tuple of int
        Shape to write down.
    dtype : str
        As in :func:`read`.
    """
    numbers = _narrow(numbers) if dtype == BFLOAT16 else numbers.reshape(-1)
    header = io.BytesIO()
    facts = {**np.lib.format.header_data_from_array_1_0(numbers), "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return b"".join((header.getvalue(), numbers.view(np.uint8).data))


def is_float(dtype: str) -> bool:
    """Return whether a name is that of floating-point numbers."""
    if dtype == BFLOAT16:
        return True
    try:
        return bool(np.issubdtype(np.dtype(dtype), np.floating))
    except TypeError:  # of records, whose names are no names of types
        return False


def roundoff(dtype: str) -> float:
    """Return the largest relative error of rounding to a floating-point type."""
    return 2.0**-8 if dtype == BFLOAT16 else float(np.finfo(dtype).eps) / 2.0


def smallest(dtype: str) -> float:
    """Return the smallest positive number of a floating-point type."""
    return 2.0**-133 if dtype == BFLOAT16 else float(np.finfo(dtype).smallest_subnormal)


def largest(dtype: str) -> float:
    """Return the largest finite number of a floating-point type."""
    if dtype == BFLOAT16:
        return float(_widen(np.array([0x7F7F], np.uint16))[0])
    return float(np.finfo(dtype).max)


def _widen(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Return bfloat16 as float32: the same bits, and zeros below."""
    bits = numbers.view(np.uint16).astype(np.uint32)
    # A bare 16 would make a single number an int64 with NumPy 1.26.
    return (bits << np.uint32(16)).view(np.float32)


def _narrow(numbers: NDArray[np.float32]) -> NDArray[Any]:
    """Return finite float32 as bfloat16, rounded to the nearest, ties to even."""
    bits = numbers.reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).view("V2")
