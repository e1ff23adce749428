"""Fold private updates into one clipped sum, then release it with noise.

What a device sends and how the server folds it in are the two halves of one encoding. The
server's half is an :class:`Accumulator`; :class:`ClippedSum` is that of a device that sends a
whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_sdp import npy
from flwr_sdp.randomness import KeystreamGenerator
from flwr_sdp.released import Selection

# Coordinates handled at a time: they stay in the cache, and OpenBLAS hands dot products of more
# than 10,000 numbers to threads, which then wait for each other on a busy machine.
_CHUNK = 8_192

# The noised sum is rounded to 2^-32 to 2^-31 of the noise: see `flwr_sdp.direction` for what its
# last digits would tell. Its own lattice is finer by a factor of a million.
_GRID_BITS = 32

LEAST_NOISE = 1e-250
"""Smallest standard deviation of the noise on a sum, but for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What leaves an accumulator: the model moved by the noised mean, and the mean's norm."""

    arrays: ArrayRecord
    mean_norm: float


class Accumulator(Protocol):
    """The server's half of an encoding: it takes replies one by one and gives out one release.

    **Privacy.** Whatever a reply carries, adding it moves the sum that :meth:`release` noises by
    at most the clip norm in the Euclidean norm. A reply that raises has moved nothing.
    """

    projected: int
    """Replies that were longer than the clip norm."""

    @property
    def dim(self) -> int:
        """Number of coordinates that are noised."""

    @property
    def kept_length(self) -> float:
        """Length of the updates after projection, summed, over that before; 1 without updates."""

    def add(self, reply: Mapping[str, Array]) -> None:
        """Fold in one reply, or raise ``ValueError``."""

    def release(
        self, *, divisor: float, noise_std: float, learning_rate: float, rng: KeystreamGenerator
    ) -> Release:
        """Give out (sum + noise) / divisor, once."""

    def like_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return `arrays` in the form of the model that was sent out."""


class ClippedSum:
    """The sum of updates, each projected onto a ball; sensitivity `clip_norm` to one client.

    Memory is one float64 vector and one reply, whatever the number of replies; nothing more is
    needed to add the noise and to move the model.

    Parameters
    ----------
    model : ArrayRecord
        The model that was sent out.
    clip_norm : float
        Radius rho of the ball; infinity clips nothing.
    selection : Selection, optional
        Which arrays are summed; all others are left alone.

    Raises
    ------
    ValueError
        If `selection` does not fit the model.
    """

    def __init__(
        self, model: ArrayRecord, clip_norm: float, selection: Selection | None = None
    ) -> None:
        selection = selection or Selection()
        self._model: dict[str, Array] = dict(model.items())
        formats = npy.formats_of(self._model)
        self._formats = {name: dtype for name, (dtype, _) in formats.items()}
        released = selection.released(formats)
        self._sent: dict[str, NDArray[Any]] = {
            name: npy.read_array(name, self._model[name]) for name in released
        }
        self._tied = {
            second: first for second, first in selection.tied.items() if first in self._sent
        }
        self._clip_norm = clip_norm
        self._sums: dict[str, NDArray[np.float64]] | None = {
            name: np.zeros(sent.size) for name, sent in self._sent.items()
        }
        self._chunk = np.empty(_CHUNK)
        self._length_before = self._length_after = 0.0
        self.projected = 0

    @property
    def dim(self) -> int:
        """Number of coordinates of an update."""
        return sum(sent.size for sent in self._sent.values())

    @property
    def kept_length(self) -> float:
        """Length of the updates after projection, summed, over that before; 1 without updates.

        The projection shortens the mean of unbiased reports by about this factor.
        """
        return self._length_after / self._length_before if self._length_before > 0 else 1.0

    def add(self, reply: Mapping[str, Array]) -> None:
        """Fold in one replied model, as its projected difference from the model sent out.

        Raises
        ------
        ValueError
            If the keys or shapes are not the model's, or a number is not finite. Nothing has been
            added then.
        """
        sums = self._unreleased()
        if set(reply) != set(self._model):
            raise ValueError("its arrays are not those of the model")
        received: dict[str, NDArray[Any]] = {}
        for name, sent in self._sent.items():
            array = npy.read_array(name, reply[name])
            if array.shape != sent.shape:
                raise ValueError(f"array {name!r} has shape {array.shape}, not {sent.shape}")
            if not np.issubdtype(array.dtype, np.floating):
                raise ValueError(f"array {name!r} has dtype {array.dtype}, not {sent.dtype}")
            received[name] = array
        # Two passes over the reply cost less than the memory of its difference in double precision.
        square = 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # it is refused, which says enough
            for _, _, update in self._updates(received):
                square += float(update @ update)
        if not math.isfinite(square):
            raise ValueError("its update is not finite, or too long to be measured")
        length = math.sqrt(square)
        factor = 1.0
        if length > self._clip_norm:
            factor = self._clip_norm / length
            # A report of the largest norm, rounded to float32, is not news.
            self.projected += length > self._clip_norm * (1.0 + 1e-4)
        for name, part, update in self._updates(received):
            if factor != 1.0:
                update *= factor
            sums[name][part] += update
        self._length_before += length
        self._length_after += length * factor

    def _updates(
        self, received: Mapping[str, NDArray[Any]]
    ) -> Iterator[tuple[str, slice, NDArray[np.float64]]]:
        """Yield the difference from the model sent out, chunk by chunk, in the same memory."""
        for name, array in received.items():
            new, old = array.ravel(), self._sent[name].ravel()
            for part in _parts(old.size):
                update = self._chunk[: part.stop - part.start]
                np.subtract(new[part], old[part], out=update, dtype=np.float64)
                yield name, part, update

    def release(
        self, *, divisor: float, noise_std: float, learning_rate: float, rng: KeystreamGenerator
    ) -> Release:
        """Return the model moved by ``learning_rate * (sum + noise) / divisor``; keys, dtypes kept.

        The only way out, so that the noise cannot be forgotten, and passable once: a second
        release of the same sum would have to be charged as a second one. The noised sum is rounded
        to a grid that depends on the noise alone.

        Parameters
        ----------
        divisor : float
            What the sum is divided by.
        noise_std : float
            Standard deviation of the noise on every coordinate of the sum: 0 or from 1e-250 on.
        learning_rate : float
            How far the model moves along the mean.
        rng : KeystreamGenerator
            Generator of the noise.

        Raises
        ------
        ValueError
            If `noise_std` is out of range.
        RuntimeError
            If the sum has been released.
        """
        # Anything else would leave the noise out, or the grid would be no number.
        if not (noise_std == 0 or LEAST_NOISE <= noise_std < math.inf):
            raise ValueError(
                f"noise_std must be 0 or a finite number >= {LEAST_NOISE:g}; got {noise_std!r}"
            )
        sums, self._sums = self._unreleased(), None
        square, grid = 0.0, math.ldexp(1.0, math.frexp(noise_std)[1] - _GRID_BITS)
        moved: dict[str, Array] = {}
        for name, array in self._model.items():
            if name not in sums:
                moved[name] = array
                continue
            total = step = sums.pop(name)
            sent = self._sent[name]
            old, new = sent.ravel(), np.empty(sent.size, dtype=sent.dtype)
            room = npy.largest(self._formats[name])
            for part in _parts(total.size):
                step = total[part]
                if noise_std > 0:
                    noise = self._chunk[: step.size]
                    rng.fill_normal(noise)
                    noise *= noise_std
                    step += noise
                    # Whatever of the noise could be told from other numbers is gone with this.
                    step /= grid
                    np.rint(step, out=step)
                    step *= grid
                step /= divisor
                square += float(step @ step)
                step *= learning_rate
                step += old[part]
                # An infinite number would stay in the model for good.
                np.clip(step, -room, room, out=step)
                new[part] = step
            del total, step  # the sum of an array is gone before the next one is written
            dtype = self._formats[name]
            data = npy.write(new, sent.shape, dtype)
            moved[name] = Array(dtype, sent.shape, "numpy.ndarray", data)
        for second, first in self._tied.items():
            moved[second] = moved[first]
        return Release(arrays=ArrayRecord(moved), mean_norm=math.sqrt(square))

    def like_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return `arrays` with the model's dtypes, and its other arrays as they were.

        A server optimiser averages whatever it is given, counters and masks included.
        """
        restored: dict[str, Array] = {}
        for name, array in self._model.items():
            if name not in self._sent:
                restored[name] = array
            elif arrays[name].dtype == array.dtype:
                restored[name] = arrays[name]
            else:
                sent, dtype = self._sent[name], self._formats[name]
                numbers = np.ascontiguousarray(npy.read_array(name, arrays[name]), dtype=sent.dtype)
                data = npy.write(numbers, sent.shape, dtype)
                restored[name] = Array(dtype, sent.shape, "numpy.ndarray", data)
        for second, first in self._tied.items():
            restored[second] = restored[first]
        return ArrayRecord(restored)

    def _unreleased(self) -> dict[str, NDArray[np.float64]]:
        if self._sums is None:
            raise RuntimeError("the sum has been released: what comes now belongs to a new round")
        return self._sums


def _parts(size: int) -> Iterator[slice]:
    for start in range(0, size, _CHUNK):
        yield slice(start, min(start + _CHUNK, size))
