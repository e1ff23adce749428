"""The state of a server optimiser, as plain data: what a resumed run has to be given back."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

# A function is a setting of the strategy, not its state: a resumed run brings its own, and no run
# may change it.
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
)

Store = Callable[[NDArray[Any] | bytes], str]
"""Keeps an array or bytes somewhere and returns the name to ask for it."""

Fetch = Callable[[str], bytes]

Seen = dict[int, tuple[int, Any]]
"""By its id, the number of what was encoded, and the thing itself, so that the id stays its."""

# What may be changed in its place, so that two names for it are not two copies of it.
_MUTABLE = (list, dict, np.ndarray, ArrayRecord, MetricRecord)


def functions_of(strategy: Strategy) -> dict[str, Any]:
    """Return the functions among a strategy's attributes, which no checkpoint can hold."""
    if _speaks_for_itself(strategy):
        return {}
    return {name: each for name, each in vars(strategy).items() if isinstance(each, _FUNCTIONS)}


def state_of(strategy: Strategy, functions: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a strategy carries from round to round.

    Flower's strategies have no method for it, and keep all of it in their attributes: settings,
    momenta, the last model. A strategy that keeps it elsewhere, or in objects that are not plain
    data, has to say itself what is to be saved, by ``state_dict()`` and ``load_state_dict(state)``.

    Parameters
    ----------
    strategy : Strategy
        The strategy.
    functions : dict, optional
        What :func:`functions_of` it returned before the run.

    Raises
    ------
    ValueError
        Naming the first attribute that cannot be saved, or a function that is another one now.
    """
    if _speaks_for_itself(strategy):
        state = dict(strategy.state_dict())  # type: ignore[attr-defined]
    else:
        now = functions_of(strategy)
        state = {name: value for name, value in vars(strategy).items() if name not in now}
        before = now if functions is None else functions
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise _not_savable(strategy, name, "another function than before the run")
    for name, value in state.items():
        try:
            encode(value, lambda _data: "")
        except TypeError as error:
            raise _not_savable(strategy, name, str(error)) from None
    return state


def restore_state(strategy: Strategy, state: dict[str, Any]) -> None:
    """Give a strategy back what :func:`state_of` returned."""
    if _speaks_for_itself(strategy):
        strategy.load_state_dict(state)  # type: ignore[attr-defined]
    else:
        own = vars(strategy)
        for name in own.keys() - state.keys() - functions_of(strategy).keys():
            del own[name]  # as the run did
        own.update(state)


def settings_of(strategy: Strategy) -> dict[str, Any]:
    """Return the plain numbers and texts among a new strategy's attributes, its settings."""
    return {
        name: encode(value, lambda _data: "")
        for name, value in sorted(vars(strategy).items())
        if value is None or isinstance(value, bool | int | float | str)
    }


def _not_savable(strategy: Strategy, name: str, what: str) -> ValueError:
    return ValueError(
        f"strategy must be plain data to be saved, but {type(strategy).__name__}.{name} holds "
        f"{what}: give it state_dict() and load_state_dict(), or leave out checkpoints"
    )


def _speaks_for_itself(strategy: Strategy) -> bool:
    return hasattr(strategy, "state_dict") and hasattr(strategy, "load_state_dict")


# ------------------------------------------------------------------ plain data to JSON and back
def encode(value: Any, store: Store, seen: Seen | None = None) -> Any:
    """Return `value` as JSON-ready data; arrays and bytes go to `store`. No code, no pickles.

    Raises
    ------
    TypeError
        Naming the type that is not plain data.
    """
    seen = {} if seen is None else seen
    if id(value) in seen:
        return {"same": seen[id(value)][0]}
    node = _encode(value, store, seen)
    if isinstance(value, _MUTABLE):
        seen[id(value)] = (len(seen), value)
    return node


def _encode(value: Any, store: Store, seen: Seen) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": store(value)}
    if isinstance(value, Array):
        return {
            "flower": [value.dtype, list(value.shape), value.stype],
            "data": store(value.data),
        }
    if isinstance(value, MetricRecord):
        return {"metrics": _encode(dict(value), store, seen)}
    if isinstance(value, ArrayRecord):
        return {"arrays": [[name, encode(array, store, seen)] for name, array in value.items()]}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        kind = "ndarray" if isinstance(value, np.ndarray) else "number"
        return {kind: store(np.asarray(value))}
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode(item, store, seen) for item in value]}
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, encode(item, store, seen)] for key, item in value.items()]}
    raise TypeError(f"a {type(value).__name__}")


def decode(
    node: Any,
    fetch: Fetch,
    load: Callable[[str], NDArray[Any]],
    seen: list[Any] | None = None,
) -> Any:
    """Return the value of which :func:`encode` made `node`; what was one thing is one again."""
    if not isinstance(node, dict):
        return node
    seen = [] if seen is None else seen
    if "same" in node:
        return seen[node["same"]]
    value = _decode(node, fetch, load, seen)
    if isinstance(value, _MUTABLE):
        seen.append(value)
    return value


def _decode(
    node: dict[str, Any], fetch: Fetch, load: Callable[[str], NDArray[Any]], seen: list[Any]
) -> Any:
    if "flower" in node:
        dtype, shape, stype = node["flower"]
        return Array(dtype, tuple(shape), stype, fetch(node["data"]))
    ((kind, content),) = node.items()
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return fetch(content)
    if kind == "metrics":
        return MetricRecord(_decode(content, fetch, load, seen))
    if kind == "arrays":
        return ArrayRecord({name: decode(item, fetch, load, seen) for name, item in content})
    if kind == "ndarray":
        return load(content)
    if kind == "number":
        return load(content)[()]
    if kind == "dict":
        return {key: decode(item, fetch, load, seen) for key, item in content}
    if kind in ("list", "tuple"):
        items = [decode(item, fetch, load, seen) for item in content]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"unknown kind of data {kind!r}")
