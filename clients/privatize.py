"""The device's mechanism for stacks other than Flower: arrays in, the same arrays out, private."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp.arrays import Array, is_tensor
from flwr_sdp.clients.device_log import device_log
from flwr_sdp.npy import largest, smallest
from flwr_sdp.privunit import Rule
from flwr_sdp.separated import SeparatedBudget, SeparatedMechanism

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@overload
def privatize_update(
    update: Mapping[str, Array],
    *,
    budget: SeparatedBudget,
    max_norm: float,
    rng: Any = None,
    rule: Rule = "tight",
    threads: int = 1,
) -> dict[str, Array]: ...


@overload
def privatize_update(
    update: Sequence[Array],
    *,
    budget: SeparatedBudget,
    max_norm: float,
    rng: Any = None,
    rule: Rule = "tight",
    threads: int = 1,
) -> list[Array]: ...


def privatize_update(
    update: Mapping[str, Array] | Sequence[Array],
    *,
    budget: SeparatedBudget,
    max_norm: float,
    rng: Any = None,
    rule: Rule = "tight",
    threads: int = 1,
) -> dict[str, Array] | list[Array]:
    """Return a private view of a model update: all its floating-point arrays, as one vector.

    Parameters
    ----------
    update : list or dict of arrays
        The update itself (what was trained, less what was received), as NumPy arrays or as torch
        tensors on one device. Whole numbers and booleans cannot be privatized: they come back as
        zeros, no change. An array that is there twice, the same object or the same memory, counts
        once.
    budget : SeparatedBudget
        What the report may cost.
    max_norm : float
        Longest update that is not shortened.
    rng : generator, optional
        As for :meth:`flwr_sdp.SeparatedMechanism.privatize`; by default a secure one.
    rule : {"tight", "paper"}
        See :meth:`flwr_sdp.PrivUnit.from_epsilon`.
    threads : int
        Threads that share the work on long updates.

    Returns
    -------
    list or dict of arrays
        The same names and order, kinds, shapes, dtypes and devices. float16 and bfloat16 are
        computed in float32; a coordinate that leaves their range takes the largest value there is.

    Raises
    ------
    ValueError
        If something is not an array, a setting is out of range, the dtypes are too coarse for
        `max_norm`, or there are fewer than two coordinates.

    Notes
    -----
    **Privacy.** As :meth:`flwr_sdp.SeparatedMechanism.privatize`. An update that is not finite is
    released as a zero update, which the device's log says. Nothing here counts what was spent:
    that is the :class:`~flwr_sdp.clients.DeviceLedger`'s.
    """
    if not isinstance(budget, SeparatedBudget):
        raise ValueError(f"budget must be a SeparatedBudget; got {_validate.shown(budget)}")
    max_norm = _validate.number("max_norm", max_norm, above=0.0)
    if isinstance(update, Mapping):
        arrays: dict[Any, Array] = dict(update)
    elif isinstance(update, Sequence) and not isinstance(update, str | bytes):
        arrays = dict(enumerate(update))
    else:
        raise ValueError(f"update must be a list or a dict of arrays; got {type(update).__name__}")
    _check_kinds(arrays)
    memory = {name: _memory(array) for name, array in arrays.items() if _is_float(name, array)}
    parts = {key: arrays[name] for name, key in memory.items()}  # each block of memory once
    private = _privatize_parts(parts, budget, max_norm, rng=rng, rule=rule, threads=threads)
    for name, array in arrays.items():
        # A whole number that has changed, such as a count of batches, is data.
        arrays[name] = private[memory[name]] if name in memory else _zeros(array)
    return arrays if isinstance(update, Mapping) else list(arrays.values())


def zero_unless_finite(vector: Array) -> None:
    """Make an update zero that is not finite, and say so in the device's log alone.

    To refuse it, or to leave the round out, would tell of the data what no budget is charged for.
    """
    xp = sys.modules["torch"] if is_tensor(vector) else np
    if not bool(xp.isfinite(vector).all()):
        device_log().warning("the update is not finite: a zero update is released in its place")
        vector[...] = 0.0


def check_not_too_short(dtypes: Collection[str], longest: float, dim: int) -> None:
    """Raise ``ValueError`` where no dtype is fine enough for the coordinates of the longest report.

    Nothing but zeros would be reported, for a full charge.
    """
    if not longest / math.sqrt(dim) >= min(map(smallest, dtypes)):
        raise ValueError(
            f"max_norm must be larger: reports of {longest:g} carry nothing, since their "
            f"coordinates round to 0 in {' and '.join(sorted(dtypes))}"
        )


def privatize_vector(update: NDArray[Any], mechanism: SeparatedMechanism, rng: Any) -> NDArray[Any]:
    """Return a private view of one flat update, drawn where `rng` draws.

    Parameters
    ----------
    update : ndarray
        ``(dim,)``, float32 or float64, finite.
    mechanism : SeparatedMechanism
        The mechanism.
    rng : generator
        As for :meth:`flwr_sdp.SeparatedMechanism.privatize`. To the device of a ``torch.Generator``
        the update goes once, is privatized there, and comes back.
    """
    torch = sys.modules.get("torch")
    private: NDArray[Any]
    if torch is None or not isinstance(rng, torch.Generator):
        private = mechanism.privatize(update, rng)
    else:
        private = mechanism.privatize(torch.from_numpy(update).to(rng.device), rng).cpu().numpy()
    return private


def _privatize_parts(
    parts: Mapping[Hashable, Array],
    budget: SeparatedBudget,
    max_norm: float,
    *,
    rng: Any,
    rule: Rule,
    threads: int,
) -> dict[Hashable, Array]:
    """Privatize arrays as one vector."""
    xp = sys.modules["torch"] if any(map(is_tensor, parts.values())) else np
    dim = sum(_size(part) for part in parts.values())
    mechanism = SeparatedMechanism.from_budget(dim, budget, max_norm, rule=rule)
    dtypes = {_dtype(part) for part in parts.values() if _size(part)}
    check_not_too_short(dtypes, mechanism.max_output_norm, dim)
    wide = any(_dtype(part) == "float64" for part in parts.values())
    dtype = xp.float64 if wide else xp.float32
    pieces = [part.detach() if is_tensor(part) else part for part in parts.values()]
    vector = xp.concatenate([xp.asarray(piece, dtype=dtype).reshape(-1) for piece in pieces])
    zero_unless_finite(vector)
    vector = mechanism.privatize(vector, rng, threads=threads)
    private: dict[Hashable, Array] = {}
    start = 0
    for key, part in parts.items():
        numbers = vector[start : start + _size(part)].reshape(part.shape)
        start += _size(part)
        room = largest(_dtype(part))
        if room < largest(_dtype(vector)):
            numbers = xp.clip(numbers, -room, room)
        private[key] = xp.asarray(numbers, dtype=part.dtype)
    return private


def _check_kinds(arrays: Mapping[Any, Array]) -> None:
    kinds = set()
    for name, array in arrays.items():
        if not (isinstance(array, np.ndarray) or is_tensor(array)):
            raise ValueError(
                "update must hold NumPy arrays or torch tensors; "
                f"{name!r} is of type {type(array).__name__}"
            )
        if isinstance(array, np.ma.MaskedArray):  # what is masked would be released
            raise ValueError(f"update must hold whole arrays; {name!r} is a MaskedArray")
        if is_tensor(array) and str(array.layout) != "torch.strided":
            raise ValueError(f"update must hold dense tensors; {name!r} is {array.layout}")
        kinds.add(str(array.device) if is_tensor(array) else "NumPy")
    if len(kinds) > 1:
        raise ValueError(f"update must be in one place; its arrays are in {sorted(kinds)}")


def _is_float(name: Any, array: Array) -> bool:
    """Return whether an array is privatized; whole numbers and booleans are not."""
    dtype = _dtype(array)
    if dtype in _FLOATS:
        return True
    whole = dtype.startswith(("int", "uint")) if is_tensor(array) else array.dtype.kind in "iu"
    if not whole and dtype != "bool":
        raise ValueError(
            f"update must hold floats of {', '.join(_FLOATS)}, in the machine's byte order, or "
            f"whole numbers; {name!r} is {_validate.dtype_name(array.dtype)}"
        )
    return False


def _dtype(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _zeros(array: Array) -> Array:
    return (sys.modules["torch"] if is_tensor(array) else np).zeros_like(array)


def _size(array: Array) -> int:
    return int(array.numel() if is_tensor(array) else array.size)


def _memory(array: Array) -> Hashable:
    """Return what two names of the same numbers have in common."""
    if _size(array) == 0:  # all empty ones may lie at one address
        return id(array)
    if is_tensor(array):
        return array.data_ptr(), array.dtype, tuple(array.shape), array.stride()
    return array.__array_interface__["data"][0], array.dtype, array.shape, array.strides
