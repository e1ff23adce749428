"""Between a Flower model and one flat update vector: which arrays count, and back again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_sdp.released import is_released


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateLayout:
    """Where each released array of a model lies in the flat update vector.

    Built from the model a device received, before any data is touched, so that nothing about
    the layout depends on the data.

    Attributes
    ----------
    received : dict[str, Array]
        The model as it was received, in its own order. The arrays are held by value: an app that
        changes its message afterwards does not change them.
    released : tuple[str, ...]
        Names of the arrays that are privatized and sent; every other array is returned as received.
    dtype : numpy dtype
        dtype of the flat vector: float64 if any released array has it, otherwise float32.
    """

    received: Mapping[str, Array]
    released: tuple[str, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, arrays: ArrayRecord, excluded: Iterable[str]) -> UpdateLayout:
        """Return the layout of `arrays`; see :func:`flwr_sdp.released.is_released`."""
        received = {
            name: Array(array.dtype, tuple(array.shape), array.stype, array.data)
            for name, array in arrays.items()
        }
        released = tuple(
            name for name, array in received.items() if is_released(name, array.dtype, excluded)
        )
        wide = any(np.dtype(received[name].dtype) == np.float64 for name in released)
        return cls(
            received=received, released=released, dtype=np.dtype(np.float64 if wide else np.float32)
        )

    @property
    def dim(self) -> int:
        """Number of coordinates of the update."""
        return sum(prod(self.received[name].shape) for name in self.released)

    def difference(self, trained: ArrayRecord) -> NDArray[Any]:
        """Return trained minus received, as one vector of :attr:`dim` coordinates.

        Raises
        ------
        ValueError
            If `trained` does not have exactly the arrays of the received model, in any order, with
            the same shapes. The message names arrays, never values.
        """
        missing = sorted(set(self.received) - set(trained))
        unknown = len(set(trained) - set(self.received))
        if missing or unknown:
            raise ValueError(
                "the app must reply with the arrays it received; "
                f"missing: {missing or 'none'}, unknown: {unknown} array(s)"
            )
        update = np.empty(self.dim, dtype=self.dtype)
        for name, part in self._parts(update):
            array = trained[name].numpy()
            if array.shape != part.shape:
                raise ValueError(
                    f"array {name!r} must keep its shape {part.shape}; the app changed it"
                )
            # Overflow and invalid values are dealt with once, on the whole vector.
            with np.errstate(all="ignore"):
                part[...] = array
                part -= self.received[name].numpy()
        return update

    def apply(self, update: NDArray[Any]) -> ArrayRecord:
        """Return the received model plus `update`; keys, shapes and dtypes as received."""
        model = dict(self.received)
        for name, part in self._parts(update):
            received = self.received[name].numpy()
            with np.errstate(over="ignore"):
                moved = np.asarray(received + part, dtype=received.dtype)
            model[name] = Array(moved.reshape(received.shape))
        return ArrayRecord(model)

    def _parts(self, vector: NDArray[Any]) -> Iterable[tuple[str, NDArray[Any]]]:
        start = 0
        for name in self.released:
            shape = tuple(self.received[name].shape)
            stop = start + prod(shape)
            yield name, vector[start:stop].reshape(shape)
            start = stop
