"""Reading pickles of arrays of bytes, and refusing all others.

A pickle is a program: to load one is to run what its author wrote. This reader runs dictionaries,
lists, numbers, texts and arrays of unsigned bytes, and builds the arrays itself, so that nothing in
the file reaches NumPy but a shape and bytes.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from simulations.data.images import Pixels


def load(path: Path) -> Any:
    """Return what is pickled in a file, of Python 2 (texts come as bytes) or 3.

    Raises
    ------
    ValueError
        If it is not a whole pickle, or would need anything but what this module says; the message
        names the file.
    """
    try:
        with path.open("rb") as file:
            return _arrays(_Reader(file, encoding="bytes").load())
    except OSError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        # Of what is in the file nothing is said: it is data, and errors may travel.
        reason = str(error) if isinstance(error, _Refused) else type(error).__name__
    raise ValueError(f"{path} is not a pickle of arrays of bytes: {reason}")


class _Refused(pickle.UnpicklingError):
    """What this module does not read, and why, in words that are not the file's."""


class _Dtype:
    """What stands for a dtype while reading."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if text not in ("u1", "|u1", "uint8"):
            raise _Refused("an array of something else, not of unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and fields, which bytes do not have."""


class _Array:
    """What stands for an array while reading: empty first, and its state when that comes."""

    numbers: Pixels

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.numbers = _array(data, dtype, shape, "F" if is_fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: Any) -> Pixels:
    """Return the array of a shape in given bytes."""
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise _Refused("an array without dtype or bytes")
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(data):
        raise _Refused("an array of a shape that does not fit its bytes")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if order == "F" else "C")


def _empty_array(kind: Any, *_: Any) -> _Array:
    if kind is not _Array:
        raise _Refused("an array that is no plain array")
    return _Array()


def _array_from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Pixels:
    return _array(data, dtype, shape, order)


def _bytes_of(text: Any, encoding: Any) -> bytes:
    """Return bytes as Python 3 writes them for Python 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Refused("bytes in an unknown encoding")
    return text.encode("latin1")


# By the names that versions of NumPy and of the pickle protocol have for them.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _array_from_buffer,
    ("_codecs", "encode"): _bytes_of,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what may be called from a file, or refuse."""
        if (module, name) not in _ALLOWED:
            raise _Refused("it asks for something that is no array of bytes")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: object) -> Any:
        """Refuse objects that are elsewhere."""
        raise _Refused("it refers to objects outside")


def _arrays(value: Any) -> Any:
    """Return `value` with the arrays in place of what stood for them."""
    if isinstance(value, _Array):
        return value.numbers
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return value
