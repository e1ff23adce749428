r"""Drawing a vector at a given angle to another one, exactly and in one pass.

A vector of length L at the dot product t with the unit vector u, and otherwise uniformly random, is
:math:`L t u + L\sqrt{1-t^2} h` with h uniform on the unit sphere orthogonal to u. If u were the
last axis, h would be a normal vector g of the other coordinates, divided by its length. So that is
what is drawn, and then turned by the reflection that takes the last axis to u or to -u, whichever
is further away (Householder). With c the last coordinate of u, :math:`x = L\sqrt{1-t^2}\,g/|g|` and
i the dot product of (x, 0) and u, what comes out is

.. math:: (x, 0) + (L t - k) u - (0, \operatorname{sign}(c) k), \quad k = i / (1 + |c|):

one dot product and one sum, well conditioned wherever u points.

The length of a long g is known when most of it has left the cache. So long vectors are cut into
segments, and how h spreads over them is drawn first. In segment b, let :math:`s_b` be the norm of
u. The components of a normal vector along the segments of u form the normal vector a, here without
its component along s; the squared lengths of what remains of each segment are independent
chi-square numbers :math:`\chi_b`, of one degree less than the segment has coordinates. With
:math:`T^2 = |a|^2 + \sum\chi_b`, the segment of h has the component :math:`a_b / T` along its
segment of u and is in all other directions uniformly random with length :math:`\sqrt{\chi_b} / T`.
Each segment is thus drawn like a short vector of its own.

What comes out is rounded to a grid that depends on L and the dimension. The numbers that normals
can be in floating point lie on lattices of their own. They would show where u is 0, and whoever
guesses all of u could take it away from the output and see whether a lattice is left (Mironov, CCS
2012, doi 10.1145/2382196.2382264, for the Laplace mechanism).

The work is the same whatever is drawn, and for whatever vector, so that the time tells neither. A
zero vector, which has no direction, is taken for the last axis.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp.arrays import Array, NumPyRow, NumPyRows, TorchRows
from flwr_sdp.randomness import BLOCK, FloatArray, KeystreamGenerator, process, scratch

Floats = NDArray[np.float64]

WIDE = 65_536
"""float32 vectors of so many coordinates at most are drawn in float64, and then rounded.

Rounding errors of float32 would show in one coordinate or another of most outputs.
"""

# A segment of a smaller norm is taken for 0. Beside norms that :func:`draw` takes it is nothing,
# and lengths in units of the grid (to 2^30, 2^53), divided by it, might be no numbers.
_NOTHING = {np.dtype(np.float32): 1e-28, np.dtype(np.float64): 1e-290}

# Bits of a coordinate as long as the vector: well fewer than arithmetic leaves in such a one.
_GRID_BITS = {np.dtype(np.float32): 17, np.dtype(np.float64): 40}

# In more dimensions than these, normal numbers are never all 0.
_FEW = 8


def noise_dtype(dim: int, dtype: Any) -> Any:
    """Return in which dtype vectors of so many coordinates are drawn, and then rounded."""
    return np.float64 if dim <= WIDE else np.dtype(dtype)


def segment_norms(rows: FloatArray, threads: int = 1) -> Floats:
    """Return the norms of the segments of each row, shape ``(n, segments)``.

    None of them over- or underflows, unless the norm itself does.
    """
    bounds = _bounds(rows.shape[1])
    if len(bounds) > 1:
        pieces = [row[None, low:high] for row in rows for low, high in bounds]
    else:
        count = max(BLOCK // rows.shape[1], 1)
        pieces = [rows[start : start + count] for start in range(0, len(rows), count)]
    dtype = noise_dtype(rows.shape[1], rows.dtype)
    norms = _map(lambda piece: _norms(piece, dtype), pieces, threads)
    return np.concatenate([*norms, np.empty(0)]).reshape(len(rows), len(bounds))


def draw(
    rows: FloatArray,
    norms: Floats,
    dots: Floats,
    lengths: Floats,
    rng: KeystreamGenerator,
    threads: int = 1,
) -> FloatArray:
    """Return random vectors of the given lengths at the given dot products with the rows.

    Their coordinates are multiples of :func:`grid_of` the length: all 0 if it is below half of one.

    Parameters
    ----------
    rows : ndarray
        ``(n, dim)``. A zero row stands for the last axis.
    norms : ndarray
        :func:`segment_norms` of the rows; those of whole rows are 0, or from 1e-18 to 1e28
        (float32), from 1e-270 to 1e280 (float64).
    dots, lengths : ndarray
        ``(n,)``. A length may be negative, and is then that of the opposite vector.
    rng : KeystreamGenerator
        The vectors depend on it and not on `threads`.
    threads : int
        How many threads share the work on a row of several segments.
    """
    out = np.empty(rows.shape, rows.dtype)  # whatever the order of the rows in memory
    grids = grid_of(lengths, rows.shape[1], rows.dtype)
    lengths = lengths / grids  # all lengths from here on are in units of the grid
    along, across = _parts(lengths, dots)
    if norms.shape[1] > 1:
        for i in range(len(rows)):
            facts = float(along[i]), float(across[i]), float(grids[i])
            _draw_in_segments(out[i], rows[i], norms[i], *facts, rng, threads)
    else:
        _draw_whole(out, rows, _aims(norms[:, 0], along, across, rows.dtype), grids, rng)
    out[np.abs(lengths) < 0.5] = 0.0  # not -0.0, whose sign may be the row's
    return out


def grid_of(lengths: Floats, dim: int, dtype: Any) -> Floats:
    """Return of what powers of two the coordinates of vectors of these lengths are multiples.

    In float32 2^-17 to 2^-16 of the length. Above 65,536 dimensions, where the length of the output
    would show it, it is finer, so that the usual coordinate keeps 8 bits. In float64 it is 2^-23 of
    that.
    """
    more = max(((dim - 1).bit_length() + 1) // 2 - 8, 0)
    exponents = np.frexp(lengths)[1] - _GRID_BITS[np.dtype(dtype)] - more
    smallest = float(np.finfo(dtype).smallest_subnormal)
    grids: Floats = np.maximum(np.ldexp(1.0, exponents), smallest)
    return grids


def draw_on_device(
    rows: Array, norms: Array, dots: Floats, lengths: Floats, generator: Any
) -> Array:
    """Do what :func:`draw` does for tensors on an accelerator, with its own generator.

    Rows are not cut, there is no cache to keep, nor rounded to a grid: such a generator is not
    secure anyway. `norms` has shape ``(n,)``. They may be on the device if no row is zero. Nothing
    waits for the device, except in few dimensions, where a row may have to be drawn again.
    """
    torch = sys.modules["torch"]

    def tensor(numbers: Any) -> Array:
        return torch.as_tensor(numbers, dtype=rows.dtype).to(rows.device, non_blocking=True)

    along, across = _parts(lengths, dots)
    if isinstance(norms, np.ndarray):
        dtype = str(rows.dtype).removeprefix("torch.")
        factors, along, across, zero = np.ascontiguousarray(_aims(norms, along, across, dtype).T)
    else:
        factors, zero = 1.0 / norms, np.zeros(len(rows))
    factors, along, across, zero = map(tensor, (factors, along, across, zero))
    out = torch.empty_like(rows)
    while True:
        out.normal_(generator=generator)
        out[:, -1] = 0.0
        square = TorchRows.dots(out, out)
        # Not "all above 0": NaN would be drawn again for ever.
        if rows.shape[1] > _FEW or not bool((square <= 0).any()):
            break
    _reflect(TorchRows, out, rows, factors, along, zero, across / square**0.5)
    return out


# ---------------------------------------------------------------------- the mathematics
def _parts(lengths: Floats, dots: Floats) -> tuple[Floats, Floats]:
    """Return the lengths along the row, which may be negative, and across."""
    return lengths * dots, np.abs(lengths) * np.sqrt((1.0 - dots) * (1.0 + dots))


def _aims(norms: Floats, along: Floats, across: Floats, dtype: Any) -> Floats:
    """Return what to aim at for each row, shape ``(n, 4)``.

    What to multiply the row by to make it a unit vector; the lengths to give to what lies along
    it and across; and 1 where it is taken for 0, and the last axis stands in its place, or else -0.
    """
    zero = ~(norms > _NOTHING[np.dtype(dtype)])
    factors = np.where(zero, 0.0, 1.0 / np.where(zero, 1.0, norms))
    # -0.0 is what can be added to a coordinate without a change of its sign.
    return np.stack([factors, along, across, np.where(zero, 1.0, -0.0)], axis=1)


def _reflect(
    xp: Any,
    noise: Array,
    rows: Array,
    factors: Array,
    along: Array,
    zero: Array,
    stretch: Array | None = None,
) -> None:
    """Stretch noise, whose last coordinates are 0, and take the last axis to each row."""
    last = xp.last(rows) * factors + zero
    k = xp.dots(noise, rows) * factors / (1.0 + abs(last))
    if stretch is not None:
        k = k * stretch
    xp.combine(noise, stretch, rows, (along - k) * factors)
    noise[..., -1] += along * zero - xp.copysign(k, k * last)


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


def _norms(rows: FloatArray, dtype: Any) -> Floats:
    """Return the norms of rows that fit into a block; `dtype` is that of the whole rows' noise."""
    scaled = scratch(dtype, rows.size).reshape(rows.shape)
    exponents = np.zeros(len(rows), dtype=np.intc)
    if rows.dtype != dtype:
        np.copyto(scaled, rows)  # float32, for whose squares float64 has room
    else:
        most = 1000 if rows.dtype == np.float64 else 120  # of which both powers are numbers
        peaks = np.maximum(rows.max(axis=1), -rows.min(axis=1))
        exponents = np.clip(np.frexp(peaks)[1], -most, most)
        np.multiply(rows, np.ldexp(rows.dtype.type(1.0), -exponents)[:, None], out=scaled)
    with np.errstate(over="ignore"):
        norms: Floats = np.ldexp(np.sqrt(NumPyRows.dots(scaled, scaled)), exponents)
    return norms


def _draw_whole(
    out: FloatArray, rows: FloatArray, aims: Floats, grids: Floats, rng: KeystreamGenerator
) -> None:
    """Draw rows that are not cut: as many together as fit into a block."""
    dim = rows.shape[1]
    dtype = noise_dtype(dim, out.dtype)
    # What is drawn in another dtype is copied twice: fewer at a time, for the copies to be small.
    size = BLOCK if out.dtype == dtype else BLOCK // 4
    count = max(size // dim, 1) if dim <= WIDE else 1
    for start in range(0, len(rows), count):
        part = slice(start, start + count)
        block = rows[part].astype(dtype, copy=False)
        noise = out[part] if out.dtype == dtype else np.empty(block.shape, dtype)
        if len(block) == 1:
            _draw_row(noise[0], block[0], aims[start].tolist(), grids[start], rng)
        else:
            _draw_rows(noise, block, aims[part], grids[part], rng)
        if noise.dtype != out.dtype:
            out[part] = noise


def _draw_row(
    out: FloatArray, row: FloatArray, aim: list[float], grid: float, rng: KeystreamGenerator
) -> None:
    """Draw a row, or a segment of one, that fits into a block."""
    factor, along, across, zero = aim
    rng.fill_sphere(out, max(across, 1e-9))  # where it is less, nothing is left of it on the grid
    _reflect(NumPyRow, out, row, factor, along, zero)
    _round(out, out.dtype.type(grid))


def _draw_rows(
    out: FloatArray, rows: FloatArray, aims: Floats, grids: Floats, rng: KeystreamGenerator
) -> None:
    """Draw rows that fit into a block together."""
    factors, along, across, zero = aims.T
    while True:
        rng.fill_normal(out.reshape(-1))
        out[:, -1] = 0.0
        square = NumPyRows.dots(out, out)
        if not np.any(square <= 0):  # as above
            break
    _reflect(NumPyRows, out, rows, factors, along, zero, across / np.sqrt(square))
    _round(out, grids[:, None])


def _round(out: FloatArray, grid: Any) -> None:
    """Take the nearest multiples of the grid, in which `out` is counted."""
    np.rint(out, out)
    np.multiply(out, grid, out)


def _draw_in_segments(
    out: FloatArray,
    row: FloatArray,
    norms: Floats,
    along: float,
    across: float,
    grid: float,
    rng: KeystreamGenerator,
    threads: int,
) -> None:
    bounds = _bounds(row.size)
    total = float(np.hypot.reduce(norms))
    share = norms / (total or 1.0)
    share[-1] += total == 0.0  # where all of the last axis is
    components = rng.normal(len(bounds))
    for _ in range(2):  # twice is enough to lose nothing where the two nearly agree
        components -= (components @ share) * share
    squares = sample_chi_squares(np.array([high - low - 1.0 for low, high in bounds]), rng)
    unit = across / float(np.sqrt(components @ components + squares.sum()))
    aims = _aims(norms, along * share + unit * components, unit * np.sqrt(squares), row.dtype)

    def draw_segment(segment: tuple[tuple[int, int], list[float], KeystreamGenerator]) -> None:
        (low, high), aim, stream = segment
        _draw_row(out[low:high], row[low:high], aim, grid, stream)

    # Each segment has a stream of its own, so that it may be drawn by any thread.
    segments = zip(bounds, aims.tolist(), rng.spawn(len(bounds)), strict=True)
    _map(draw_segment, list(segments), threads)


def _bounds(dim: int) -> list[tuple[int, int]]:
    """Return where the segments of a vector start and end: at even places, and almost evenly.

    Their number is even, so that two threads have as much to do.
    """
    count = -(-dim // BLOCK)
    count += count % 2 if count > 1 else 0
    starts = [i * (dim // 2) // count * 2 for i in range(count)]
    return list(zip(starts, [*starts[1:], dim], strict=True))


def _map(function: Callable[[Any], Any], items: list[Any], threads: int) -> list[Any]:
    """Return the results of all items, shared by the calling thread and its helpers."""
    results: list[Any] = [None] * len(items)
    todo = deque(enumerate(items))

    def work() -> None:
        while True:
            try:
                i, item = todo.popleft()
            except IndexError:
                return
            try:
                results[i] = function(item)
            except BaseException:
                todo.clear()  # the others do not begin another one
                raise

    helpers = min(threads, len(items)) - 1
    futures: list[Future[None]] = []
    try:
        for _ in range(helpers):
            futures.append(_pool(process(), helpers).submit(work))
        work()
    finally:
        todo.clear()
        wait(futures)  # they hold the caller's arrays
    for future in futures:
        future.result()
    return results


@lru_cache(maxsize=4)
def _pool(_process: tuple[int, int], threads: int) -> ThreadPoolExecutor:
    """Return threads that stay, with their scratch memory; a forked process has its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="flwr-sdp")
