"""Between a Flower model and one flat update vector: which arrays count, and back again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_sdp import _validate, npy
from flwr_sdp.arrays import check_room
from flwr_sdp.clients.privatize import check_not_too_short
from flwr_sdp.released import Selection


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
    formats : dict[str, tuple[str, tuple[int, ...]]]
        dtype and shape of each, which a legacy message says nowhere but in the bytes of an array.
    released : tuple[str, ...]
        Names of the arrays that are privatized and sent; every other array is returned as received.
    tied : dict[str, str]
        Second names of released arrays.
    dtype : numpy dtype
        dtype of the flat vector: float64 if any released array has it, otherwise float32.
    """

    received: Mapping[str, Array]
    formats: Mapping[str, tuple[str, tuple[int, ...]]]
    released: tuple[str, ...]
    tied: Mapping[str, str]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, arrays: ArrayRecord, selection: Selection | None = None) -> UpdateLayout:
        """Return the layout of a model.

        Raises
        ------
        ValueError
            If an array cannot be read, or `selection` does not fit the model.
        """
        selection = selection or Selection()
        received = {
            name: Array(array.dtype, tuple(array.shape), array.stype, array.data)
            for name, array in arrays.items()
        }
        formats = npy.formats_of(received)
        released = selection.released(formats)
        wide = any(np.dtype(formats[name][0]).itemsize > 4 for name in _numpy(released, formats))
        return cls(
            received=received,
            formats=formats,
            released=released,
            tied={second: first for second, first in selection.tied.items() if first in released},
            dtype=np.dtype(np.float64 if wide else np.float32),
        )

    @property
    def dim(self) -> int:
        """Number of coordinates of the update."""
        return sum(prod(self.formats[name][1]) for name in self.released)

    def check(self, longest: float) -> None:
        """Raise unless a report of up to `longest` can be made on this model, whatever is trained.

        Parameters
        ----------
        longest : float
            The largest norm that reports have.

        Raises
        ------
        ValueError
            If a released array as it was received is not finite, or any other has NaN in it; if a
            dtype has no room for such reports, or is too coarse for any. The message names arrays,
            never their values.
        """
        steps, most = [], float(np.finfo(self.dtype).max)
        for name, array in self.received.items():
            dtype, shape = self.formats[name]
            if not npy.is_float(dtype):
                continue
            least, largest = npy.magnitudes(array)
            is_sent = name in self.released or name in self.tied
            if prod(shape) and is_sent:  # what is below this leaves such a number as it is
                steps.append(max(npy.roundoff(dtype) * least / 2.0, npy.smallest(dtype) / 2.0))
            # Others may be infinite, as masks are; with a NaN in them no update comes out.
            if not largest <= (most if is_sent else inf):
                raise ValueError(
                    f"the server's model is not finite: array {name!r} has an infinite number or "
                    "a NaN. Nothing was trained or charged. Mend the model at the server, or "
                    "exclude the array if it is a mask"
                )
        check_room("the model", self.dtype, longest)
        formats = [self.formats[name] for name in self.released]
        dtypes = {dtype for dtype, shape in formats if prod(shape)}
        typical = longest / sqrt(self.dim)
        for dtype in sorted(dtypes):
            if not typical <= npy.largest(dtype):
                raise ValueError(
                    f"max_norm must be smaller at this budget: {dtype} has no room for reports of "
                    f"{longest:g}, whose coordinates are about {typical:g}"
                )
        check_not_too_short(dtypes, longest, self.dim)
        if not longest >= min(steps):
            raise ValueError(
                f"max_norm must be larger: reports of {longest:g} carry nothing, since the numbers "
                f"of the model stay as they are when it is added to them in "
                f"{' and '.join(sorted(dtypes))}"
            )

    def difference(self, trained: Mapping[str, Array]) -> NDArray[Any]:
        """Return trained minus received, as one vector of :attr:`dim` coordinates.

        Arrays that are not released may be missing from `trained`.

        Raises
        ------
        ValueError
            If a released array is missing or has another shape, an array is there that was not
            received, or tied ones differ. The message names arrays, never values.
        """
        missing = sorted(set(self.released) - set(trained))
        unknown = len(set(trained) - set(self.received))
        if missing or unknown:
            raise ValueError(
                "the app must reply with the arrays it received, or at least with those it trains; "
                f"missing: {missing or 'none'}, unknown: {unknown} array(s)"
            )
        for second, first in self.tied.items():
            if second in trained and not np.array_equal(
                npy.read_array(second, trained[second]),
                npy.read_array(first, trained[first]),
                equal_nan=True,
            ):
                raise ValueError(f"arrays {first!r} and {second!r} must stay equal: they are tied")
        update = np.empty(self.dim, dtype=self.dtype)
        for name, part in self._parts(update):
            array = npy.read_array(name, trained[name])
            if array.shape != part.shape:
                raise ValueError(
                    f"array {name!r} must keep its shape {part.shape}; the app changed it"
                )
            if array.dtype.kind not in "fiub":  # NumPy quotes the texts that it cannot convert
                raise ValueError(
                    f"array {name!r} must hold real numbers; the app replied with "
                    f"{_validate.dtype_name(array.dtype)}"
                )
            # Overflow and invalid values are dealt with once, on the whole vector.
            with np.errstate(all="ignore"):
                part[...] = array
                part -= npy.read_array(name, self.received[name])
        return update

    def apply(self, update: NDArray[Any]) -> ArrayRecord:
        """Return the received model plus `update`, which is overwritten.

        Keys, shapes and dtypes are as received. A coordinate that leaves the range of its dtype
        takes the largest value there is.
        """
        model = dict(self.received)
        for name, part in self._parts(update):
            received, (dtype, shape) = self.received[name], self.formats[name]
            room = npy.largest(dtype)
            with np.errstate(over="ignore"):
                part += npy.read_array(name, received)
            np.clip(part, -room, room, out=part)
            numbers = part.astype(np.float32 if dtype == npy.BFLOAT16 else dtype, copy=False)
            data = npy.write(np.ascontiguousarray(numbers), shape, dtype)
            model[name] = Array(received.dtype, tuple(received.shape), received.stype, data)
        for second, first in self.tied.items():
            model[second] = model[first]
        return ArrayRecord(model)

    def _parts(self, vector: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
        start = 0
        for name in self.released:
            shape = self.formats[name][1]
            stop = start + prod(shape)
            yield name, vector[start:stop].reshape(shape)
            start = stop


def _numpy(names: tuple[str, ...], formats: Mapping[str, tuple[str, Any]]) -> list[str]:
    return [name for name in names if formats[name][0] != npy.BFLOAT16]
