r"""Drawing a vector at a given angle to another one, exactly and in one pass.

A vector of length L at the dot product t with the unit vector u, and otherwise uniformly random, is
:math:`L t u + L\sqrt{1-t^2} h` with h uniform on the unit sphere orthogonal to u: a normal vector
without its component along u, divided by its length.

That length is known at the end, when most of a long vector has left the cache. So long vectors are
cut into segments, and how h spreads over them is drawn first. In segment b, let :math:`s_b` be the
norm of u. The components of a normal vector along the segments of u form the normal vector a, here
without its component along s; the squared lengths of what remains of each segment are independent
chi-square numbers :math:`\chi_b`, of one degree less than the segment has coordinates. With
:math:`T^2 = |a|^2 + \sum\chi_b`, the segment of h has the component :math:`a_b / T` along its
segment of u and is in all other directions uniformly random with length :math:`\sqrt{\chi_b} / T`.
Each segment is thus drawn like a short vector of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp.arrays import Array, NumPyRows, TorchRows, norm
from flwr_sdp.randomness import BLOCK, FloatArray, KeystreamGenerator, process

Floats = NDArray[np.float64]

# Up to this dimension, g - <g,u>u may be so short that the difference has lost its digits.
_FEW = 64


def segment_norms(rows: FloatArray, threads: int = 1) -> Floats:
    """Return the norms of the segments of each row, shape ``(n, segments)``.

    A norm is inf or 0 where the squares leave the dtype.
    """
    bounds = _bounds(rows.shape[1])
    with np.errstate(over="ignore", under="ignore"):
        if len(bounds) == 1:
            squares: Floats = NumPyRows.dots(rows, rows)
            return np.sqrt(squares)[:, None]
        pieces = [row[low:high] for row in rows for low, high in bounds]
        norms = _map(norm, pieces, threads)
    return np.array(norms).reshape(len(rows), len(bounds))


def draw(
    rows: FloatArray,
    norms: Floats,
    dots: Floats,
    lengths: Floats,
    rng: KeystreamGenerator,
    threads: int = 1,
) -> FloatArray:
    """Return random vectors of the given lengths at the given dot products with the rows.

    Parameters
    ----------
    rows : ndarray
        ``(n, dim)``. A zero row has no direction: for it the whole direction is random.
    norms : ndarray
        :func:`segment_norms` of the rows, finite.
    dots, lengths : ndarray
        ``(n,)``. A length may be negative, and is then that of the opposite vector.
    rng : KeystreamGenerator
        The vectors depend on it and not on `threads`.
    threads : int
        How many threads share the work on a row of several segments.
    """
    out = np.empty(rows.shape, rows.dtype)  # whatever the order of the rows in memory
    dots = np.where(norms.any(axis=1), dots, 0.0)
    along, across = lengths * dots, lengths * np.sqrt((1.0 - dots) * (1.0 + dots))
    if norms.shape[1] > 1:
        for i in range(len(rows)):
            lengths_of_parts = float(along[i]), float(across[i])
            _draw_in_segments(out[i], rows[i], norms[i], *lengths_of_parts, rng, threads)
        return out
    aims = _Aims(norms[:, 0], along, across).without_direction(rows.dtype)
    count = BLOCK // rows.shape[1]
    for start in range(0, len(rows), count):
        part = slice(start, start + count)
        _draw_rows(out[part], rows[part], aims[part], rng)
    return out


def draw_on_device(
    rows: Array, norms: Array, dots: Floats, lengths: Floats, generator: Any
) -> Array:
    """Do what :func:`draw` does for tensors on an accelerator, with its own generator.

    Rows are not cut: there is no cache to keep. `norms` has shape ``(n,)``, on the device or not.
    Nothing waits for the device, except in few dimensions, where a row may have to be drawn again.
    """
    torch = sys.modules["torch"]

    def tensor(numbers: Any) -> Array:
        return torch.as_tensor(numbers, dtype=rows.dtype).to(rows.device, non_blocking=True)

    norms = tensor(norms)
    has_direction = norms > 0
    safe = torch.where(has_direction, norms, 1.0)
    along = torch.where(has_direction, tensor(lengths * dots), 0.0)
    across = torch.where(
        has_direction,
        tensor(lengths * np.sqrt((1.0 - dots) * (1.0 + dots))),
        tensor(lengths),
    )
    out = torch.empty_like(rows)
    while True:
        out.normal_(generator=generator)
        inner, square = _split_off(TorchRows, out, rows, safe)
        # Not "all above 0": NaN would be drawn again for ever.
        if rows.shape[1] > _FEW or not bool((square <= 0).any()):
            break
    _mix(TorchRows, out, rows, safe, inner, square, along, across)
    return out


# ---------------------------------------------------------------------- the mathematics
def _split_off(
    xp: Any, noise: Array, rows: Array, norms: Array, squares: Any = None
) -> tuple[Array, Array]:
    """Return the component of the noise along each row, and the squared length of the rest.

    `squares` are those of the whole, where they are known. In few dimensions the component is also
    taken out of `noise`, down to what rounding leaves.
    """
    if noise.shape[1] <= _FEW:
        squares = None
        xp.combine(noise, norms / norms, rows, -xp.dots(noise, rows) / norms**2)
    inner = xp.dots(noise, rows) / norms
    return inner, (xp.dots(noise, noise) if squares is None else squares) - inner**2


def _mix(
    xp: Any,
    noise: Array,
    rows: Array,
    norms: Array,
    inner: Array,
    square: Array,
    along: Array,
    across: Array,
) -> None:
    """Turn noise into `along` times a row's direction plus `across` times that of the rest."""
    on_noise = across / square**0.5
    xp.combine(noise, on_noise, rows, (along - on_noise * inner) / norms)


# ---------------------------------------------------------------------- on the host
def sample_chi_squares(freedom: Floats, rng: KeystreamGenerator) -> Floats:
    """Draw chi-square numbers of the given degrees of freedom, all of them at least 2.

    Exact, by the rejection method of Marsaglia and Tsang (ACM TOMS 26, 2000), doi
    10.1145/358407.358414.
    """
    d = freedom / 2 - 1 / 3
    draws, todo = np.zeros(freedom.size), np.arange(freedom.size)
    while todo.size:
        x, log_u = rng.normal(todo.size), rng.log_uniforms(todo.size)
        root = 1.0 + x / np.sqrt(9.0 * d[todo])
        cube = np.maximum(root, 0.0) ** 3
        with np.errstate(divide="ignore"):
            accepted = log_u < x * x / 2 + d[todo] * (1.0 - cube + np.log(cube))
        draws[todo[accepted]] = 2.0 * (d[todo] * cube)[accepted]
        todo = todo[~accepted]
    return draws


@dataclass(frozen=True)
class _Aims:
    """For each row its norm, and the lengths to give to the parts along and across it."""

    norms: Floats
    along: Floats
    across: Floats

    def __getitem__(self, part: slice) -> _Aims:
        return _Aims(self.norms[part], self.along[part], self.across[part])

    def without_direction(self, dtype: Any) -> _Aims:
        """Leave the direction to chance where a row is zero, or a segment nothing beside others.

        There the norm becomes 1.
        """
        # The squares in a norm below this have lost digits.
        has_direction = self.norms > 1e2 * float(np.finfo(dtype).tiny) ** 0.5
        return _Aims(
            np.where(has_direction, self.norms, 1.0),
            np.where(has_direction, self.along, 0.0),
            np.where(has_direction, self.across, np.hypot(self.along, self.across)),
        )


def _draw_rows(out: FloatArray, rows: FloatArray, aims: _Aims, rng: KeystreamGenerator) -> None:
    """Draw rows that fit into a block together."""
    while True:
        total = rng.fill_normal(out.reshape(-1))
        inner, square = _split_off(
            NumPyRows, out, rows, aims.norms, total if len(rows) == 1 else None
        )
        if not np.any(square <= 0):  # as above
            break
    _mix(NumPyRows, out, rows, aims.norms, inner, square, aims.along, aims.across)


def _draw_in_segments(
    out: FloatArray,
    row: FloatArray,
    norms: Floats,
    along: float,
    across: float,
    rng: KeystreamGenerator,
    threads: int,
) -> None:
    bounds = _bounds(row.size)
    total = float(np.sqrt(norms @ norms))
    share = norms / total if total > 0 else norms
    components = rng.normal(len(bounds))
    for _ in range(2):  # twice is enough to lose nothing where the two nearly agree
        components -= (components @ share) * share
    squares = sample_chi_squares(np.array([high - low - 1.0 for low, high in bounds]), rng)
    unit = across / float(np.sqrt(components @ components + squares.sum()))
    aims = _Aims(norms, along * share + unit * components, unit * np.sqrt(squares))
    aims = aims.without_direction(row.dtype)

    def draw_segment(segment: tuple[int, KeystreamGenerator]) -> None:
        i, stream = segment
        low, high = bounds[i]
        _draw_rows(out[None, low:high], row[None, low:high], aims[i : i + 1], stream)

    # Each segment has a stream of its own, so that it may be drawn by any thread.
    _map(draw_segment, list(enumerate(rng.spawn(len(bounds)))), threads)


def _bounds(dim: int) -> list[tuple[int, int]]:
    """Return where the segments of a vector start and end: at even places, and almost evenly."""
    count = -(-dim // BLOCK)
    starts = [i * (dim // 2) // count * 2 for i in range(count)]
    return list(zip(starts, [*starts[1:], dim], strict=True))


def _map(function: Callable[[Any], Any], items: list[Any], threads: int) -> list[Any]:
    if threads == 1 or len(items) == 1:
        return [function(item) for item in items]
    futures = [_pool(process(), threads).submit(function, item) for item in items]
    wait(futures)  # or, after an error, some would go on with the caller's arrays
    return [future.result() for future in futures]


@lru_cache(maxsize=4)
def _pool(_process: tuple[int, int], threads: int) -> ThreadPoolExecutor:
    """Return threads that stay, with their scratch memory; a forked process has its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="flwr-sdp")
