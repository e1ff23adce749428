"""Fold private updates into one clipped sum, then release it with noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_sdp.arrays import norm
from flwr_sdp.randomness import KeystreamGenerator
from flwr_sdp.released import BATCH_NORM_STATISTICS, is_released


class ClippedSum:
    """The sum of updates, each projected onto a ball; sensitivity `clip_norm` to one client.

    Memory is one float64 vector and one update, whatever the number of replies.

    Parameters
    ----------
    model : ArrayRecord
        The model that was sent out. Its floating-point arrays are summed; others are left alone.
    clip_norm : float
        Radius rho of the ball; infinity clips nothing.
    excluded : iterable of str
        Name patterns of arrays that are left alone as well.
    """

    def __init__(
        self,
        model: ArrayRecord,
        clip_norm: float,
        excluded: Iterable[str] = BATCH_NORM_STATISTICS,
    ) -> None:
        self._model: dict[str, NDArray[Any]] = {
            name: array.numpy() for name, array in model.items()
        }
        self._names = tuple(
            name for name, array in self._model.items() if is_released(name, array.dtype, excluded)
        )
        self._clip_norm = clip_norm
        self._sum = np.zeros(sum(self._model[name].size for name in self._names))
        self.projected = 0

    @property
    def dim(self) -> int:
        """Number of coordinates of an update."""
        return int(self._sum.size)

    def add(self, reply: Mapping[str, Array]) -> None:
        """Fold in one replied model, as its projected difference from the model sent out.

        Raises
        ------
        ValueError
            If the keys or shapes are not the model's, or a number is not finite. Nothing has been
            added then.
        """
        if set(reply) != set(self._model):
            raise ValueError("its arrays are not those of the model")
        update = np.empty_like(self._sum)
        start = 0
        for name in self._names:
            sent = self._model[name]
            array = _read(name, reply[name])
            if array.shape != sent.shape:
                raise ValueError(f"array {name!r} has shape {array.shape}, not {sent.shape}")
            if not np.issubdtype(array.dtype, np.floating):
                raise ValueError(f"array {name!r} has dtype {array.dtype}, not {sent.dtype}")
            np.subtract(
                array.ravel(), sent.ravel(), out=update[start : start + sent.size], dtype=np.float64
            )
            start += sent.size
        length = norm(update)
        if not math.isfinite(length):
            raise ValueError("its update is not finite")
        if length > self._clip_norm:
            update *= self._clip_norm / length
            # A report of the largest norm, rounded to float32, is not news.
            self.projected += length > self._clip_norm * (1.0 + 1e-4)
        self._sum += update

    def mean(
        self, divisor: float, noise_std: float, rng: KeystreamGenerator
    ) -> NDArray[np.float64]:
        """Return (sum + noise) / divisor. The only way out, so that the noise cannot be forgotten.

        `noise_std` is the standard deviation of the noise on every coordinate of the sum.
        """
        mean: NDArray[np.float64] = self._sum
        if noise_std > 0:
            mean = np.empty_like(self._sum)
            rng.fill_normal(mean)
            mean *= noise_std
            mean += self._sum
        return mean / divisor

    def moved(self, step: NDArray[np.float64]) -> ArrayRecord:
        """Return the model moved by `step`; keys, shapes and dtypes kept."""
        record: dict[str, Array] = {}
        start = 0
        for name, array in self._model.items():
            if name in self._names:
                part = step[start : start + array.size].reshape(array.shape)
                start += array.size
                record[name] = Array(np.asarray(array + part, dtype=array.dtype))
            else:
                record[name] = Array(array)
        return ArrayRecord(record)

    def like_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return `arrays` with the model's dtypes, and its integer and boolean arrays as they were.

        A server optimiser averages whatever it is given, counters and masks included.
        """
        return ArrayRecord(
            {
                name: Array(
                    np.asarray(arrays[name].numpy(), dtype=array.dtype)
                    if name in self._names
                    else array
                )
                for name, array in self._model.items()
            }
        )


def _read(name: str, array: Array) -> NDArray[Any]:
    """Return the numbers of a replied array; whatever is wrong with its bytes is a bad reply."""
    try:
        numbers = array.numpy()
    except Exception as error:
        raise ValueError(f"array {name!r} cannot be read ({type(error).__name__})") from error
    if not isinstance(numbers, np.ndarray):
        raise ValueError(f"array {name!r} is not an array but a {type(numbers).__name__}")
    return numbers
