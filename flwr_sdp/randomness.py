"""One keystream generator: secure when keyed by the operating system, reproducible when seeded.

A differential-privacy guarantee assumes that the noise cannot be guessed. The state of an ordinary
generator can be solved from its output, so the only randomness in this library is the keystream
of AES-256 in counter mode (from ``cryptography``), turned into uniforms, exact Bernoullis and
normals. The secure and the seeded generator are the same algorithm under two kinds of key.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from flwr_sdp import _validate

FloatArray = NDArray[np.floating[Any]]

BLOCK = 524_288
"""Coordinates drawn and processed at a time.

A block and its keystream stay in the last cache, and each step takes long enough for threads, which
take turns between steps, not to wait for each other.
"""

_ZEROS = memoryview(bytes(1 << 20))
_FROM_ZERO = modes.CTR(bytes(16))
# The cipher wants room for one more of its blocks, less a byte, behind what it writes.
_SLACK = 15


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def process() -> tuple[int, int]:
    """Return what tells this process from those it was forked from, even if an id is used again."""
    return os.getpid(), _forks


class _Format:
    """A floating-point type: its words, and the constants of :meth:`KeystreamGenerator._pairs`.

    Constants are arrays without dimensions, which NumPy takes fastest.
    """

    def __init__(self, real: Any, sine: tuple[float, ...]) -> None:
        """Take the coefficients of P, lowest first.

        sqrt(2) sin(pi y / 4) = y P(y^2) on [-1, 1], P the minimax polynomial in relative terms, to
        less than a rounding. In z = shrink * y it is z Q(z^2) with 1 as the leading coefficient of
        Q, an operation less.
        """
        self.real = real
        self.bits = bits = 8 * int(np.dtype(real).itemsize)
        self.signed, self.word = np.dtype(f"i{bits // 8}"), np.dtype(f"u{bits // 8}")
        shrink = -(abs(sine[-1]) ** (1.0 / (2 * len(sine) - 1)))
        self.top = np.array(2 ** (bits - 1), self.word)
        self.size = np.array(2 ** (bits - 1) - 1, self.word)
        self.coarse = np.array(2 ** (bits // 2 - 5), self.word)
        self.near_one = np.array(2 ** (bits - 1) - 2 ** (bits - 10), self.word)
        self.unit = np.array(2.0 ** (1 - bits), real)
        self.shrink = np.array(shrink * 2.0 ** (1 - bits), real)
        self.sine = [
            np.array(c / shrink ** (2 * k + 1), real) for k, c in reversed([*enumerate(sine[:-1])])
        ]
        self.longest = 1e7 if bits == 32 else 1e13
        self.one, self.two, self.minus_two = (np.array(x, real) for x in (1.0, 2.0, -2.0))

    @classmethod
    def of(cls, out: FloatArray) -> _Format:
        """Return the format of an array that normals can fill."""
        form = _FORMATS.get(out.dtype.type)
        if form is None or not out.dtype.isnative:
            raise TypeError(f"normals come as float32 or float64, in native order; got {out.dtype}")
        if out.ndim != 1 or not out.flags.c_contiguous:
            raise TypeError("normals fill a contiguous array of one dimension")
        return form


_FORMATS: dict[Any, _Format] = {
    np.float32: _Format(
        np.float32,
        (
            1.1107207309428545,
            -0.11419128578241460,
            0.0035213932185153316,
            -5.0841617156283274e-05,
        ),
    ),
    np.float64: _Format(
        np.float64,
        (
            1.1107207345395916,
            -0.11419139843742873,
            0.0035219497768268542,
            -5.1726564014518959e-05,
            4.4316035039502422e-07,
            -2.4851231304453898e-09,
            9.8261708461996538e-12,
            -2.8602913286150498e-14,
        ),
    ),
}


class KeystreamGenerator:
    """Random numbers from an AES-256-CTR keystream.

    Make one with :func:`secure_generator` or :func:`seeded_generator`. A generator belongs to the
    process that made it: after a fork, a secure generator takes a new key in the child and a
    seeded one refuses to go on, so that two processes never share a stream. For the same reason
    it can be neither copied nor pickled.

    Not safe to share between threads; make one per thread instead, which is cheap.
    """

    def __init__(self, key: bytes, *, secure: bool) -> None:
        self._secure = secure
        self._rekey(key)

    @property
    def is_secure(self) -> bool:
        """Whether the key was declared to come from the operating system, as guarantees need."""
        return self._secure

    # ------------------------------------------------------------------ bits
    def bits(self, count: int) -> NDArray[np.uint64]:
        """Return `count` independent uniform 64-bit words (the keystream, little endian)."""
        return self._keystream(np.empty(8 * count + _SLACK, dtype=np.uint8), count)

    def _keystream(self, buffer: NDArray[np.uint8], count: int) -> NDArray[np.uint64]:
        """Write `count` words to `buffer`, which has room for them and the slack, and view them."""
        if process() != self._process:
            self._after_fork()
        memory = buffer.data
        for start in range(0, 8 * count, len(_ZEROS)):
            stop = min(start + len(_ZEROS), 8 * count)
            self._encryptor.update_into(_ZEROS[: stop - start], memory[start : stop + _SLACK])
        return buffer[: 8 * count].view("<u8")

    def spawn(self, count: int) -> list[KeystreamGenerator]:
        """Return `count` generators of independent streams, each keyed by 256 bits of this one."""
        keys = self.bits(4 * count).tobytes()
        return [
            KeystreamGenerator(keys[start : start + 32], secure=self._secure)
            for start in range(0, len(keys), 32)
        ]

    # ------------------------------------------------------------------ uniforms
    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Return uniform numbers in the open interval (0, 1), odd multiples of 2**-53."""
        return ((self.bits(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def log_uniforms(self, count: int) -> NDArray[np.float64]:
        """Return log U for U uniform in (0, 1], exact however small U turns out to be."""
        high = self.bits(count)
        exponent = np.zeros(count)
        while (zero := high == 0).any():
            high[zero] = self.bits(int(np.count_nonzero(zero)))
            exponent[zero] += 64.0
        # 64 more bits below the leading word: the relative error is that of the rounding.
        fraction = high * 2.0**-64 + (self.bits(count) + 0.5) * 2.0**-128
        logs: NDArray[np.float64] = np.log(fraction) - exponent * math.log(2.0)
        return logs

    def bernoullis(self, log_odds: float, count: int) -> NDArray[np.bool_]:
        """Return booleans, each True with probability ``1 / (1 + exp(-log_odds))``.

        The rarer side is compared in logarithms, so its probability is right to double precision
        even at log-odds in the thousands, where the probability itself has rounded to 1.
        """
        rare = -abs(log_odds) - math.log1p(math.exp(-abs(log_odds)))
        is_rare = self.log_uniforms(count) < rare
        return is_rare if log_odds < 0 else ~is_rare

    def integers(self, high: int, count: int) -> NDArray[np.uint64]:
        """Return uniform integers in ``range(high)``, for ``1 <= high <= 2**63``."""
        top = np.uint64(2**64 - 1 - 2**64 % high)
        words = self.bits(count)
        # The words above `top` would favour the small numbers.
        while (over := words > top).any():
            words[over] = self.bits(int(np.count_nonzero(over)))
        return words % np.uint64(high)

    def uniform(self) -> float:
        """Return one of :meth:`uniforms`."""
        return float(self.uniforms(1)[0])

    def log_uniform(self) -> float:
        """Return one of :meth:`log_uniforms`."""
        return float(self.log_uniforms(1)[0])

    def bernoulli(self, log_odds: float) -> bool:
        """Return one of :meth:`bernoullis`."""
        return bool(self.bernoullis(log_odds, 1)[0])

    # ------------------------------------------------------------------ normals
    def normal(self, count: int, dtype: Any = np.float64) -> NDArray[Any]:
        """Return `count` standard normal numbers in a new array."""
        out: NDArray[Any] = np.empty(count, dtype=dtype)
        self.fill_normal(out)
        return out

    def fill_normal(self, out: FloatArray) -> None:
        """Fill a contiguous 1-D array of float32 or float64 with standard normal numbers.

        Box-Muller, block by block: first the cosines of all pairs, then their sines. Radius and
        angle take as many random bits as a number of `out` has. A radius far in the tail takes 64
        bits more, so that the tail has its resolution there and reaches 11 standard deviations.
        """
        form, even = _Format.of(out), out.size - out.size % 2
        for start in range(0, even, BLOCK):
            block = out[start : min(start + BLOCK, even)]
            _stretch(block, self._pairs(block, form), form.minus_two)
        if even < out.size:
            out[-1] = self.normal(2, out.dtype)[0]

    def fill_sphere(self, out: FloatArray, radius: float) -> None:
        """Fill all of an array but its last number with a point of a sphere, uniformly.

        It is a normal vector divided by its length, which is known before the numbers are, and so
        costs nothing. The last number becomes 0: it takes the sine of the last pair that an odd
        count of numbers has no room for.

        Parameters
        ----------
        out : ndarray
            As for :meth:`fill_normal`, of 2 to ``BLOCK + 1`` numbers.
        radius : float
            Of the sphere in ``out.size - 1`` dimensions; from 1e-10 to 1e7 in float32, which holds
            the squares, and to 1e13 in float64.
        """
        form = _Format.of(out)
        if not 2 <= out.size <= BLOCK + 1:
            raise ValueError(f"out must have 2 to {BLOCK + 1} numbers; got {out.size}")
        if not 1e-10 <= radius <= form.longest:
            raise ValueError(f"radius must be from 1e-10 to {form.longest:g}; got {radius!r}")
        pairs, total = out.size // 2, 0.0
        while not total > 0.0:
            logs = self._pairs(out[: 2 * pairs], form)
            if out.size % 2:
                total = -_sum(logs)
            else:  # of the last pair only the cosine is kept
                total = -_sum(logs[:-1]) - float(logs[-1]) * float(out[pairs - 1]) ** 2
        _stretch(out[: 2 * pairs], logs, np.array(-radius * radius / total, form.real))
        out[-1] = 0.0

    def _pairs(self, out: NDArray[Any], form: _Format) -> NDArray[Any]:
        """Write the cosines of random angles, then their sines; return the log u of their radii.

        The angle is pi y / 2 for y in [-1, 1), plus pi where the sign of the cosine is flipped, by
        the lowest bit of the word of y, and with that of the sine both are random. With
        t = sqrt(2) sin(pi y / 4) the cosine is 1 - t^2 and the sine t sqrt(2 - t^2), both well
        conditioned; a polynomial for t costs a fraction of a library's sine and cosine.

        What is returned is memory that the thread keeps (see :func:`scratch`).
        """
        count = out.size // 2
        spare = 16 // out.itemsize
        room = scratch(form.real, 3 * count + spare)
        buffer, t = room[: 2 * count + spare].view(np.uint8), room[2 * count + spare :]
        words = self._keystream(buffer, count * form.bits // 32).view(form.word)
        sizes, angles, y, square = words[:count], words[count:], out[:count], out[count:]
        np.copyto(y, angles.view(form.signed), casting="unsafe")
        np.multiply(y, form.shrink, y)
        np.multiply(y, y, square)
        np.add(square, form.sine[0], t)
        for coefficient in form.sine[1:]:
            np.multiply(t, square, t)
            np.add(t, coefficient, t)
        np.multiply(t, y, t)
        np.multiply(t, t, square)
        np.subtract(form.one, square, y)
        np.multiply(angles, form.top, angles)  # the lowest bit becomes the highest, the rest 0
        bits = y.view(form.word)
        np.bitwise_xor(bits, angles, bits)
        np.subtract(form.two, square, square)
        np.sqrt(square, square)
        np.multiply(square, t, square)
        np.bitwise_and(sizes, form.size, sizes)
        self._log_uniforms(sizes, t, form)
        return t

    def _log_uniforms(self, sizes: NDArray[Any], out: NDArray[Any], form: _Format) -> None:
        """Write log u for u = size / 2^(bits - 1).

        Where a size is so small that u would be coarse, 64 random bits say where it lies between
        this size and the next. Where u is so large that it would be rounded to a coarse 1 - u, the
        logarithm is that of 1 - u.
        """
        np.copyto(out, sizes.view(form.signed), casting="unsafe")
        np.multiply(out, form.unit, out)
        if sizes.min() < form.coarse:
            rare = np.flatnonzero(sizes < form.coarse)
            fraction = (self.bits(rare.size) + 0.5) * 2.0**-64
            out[rare] = (sizes[rare] + fraction) * 2.0 ** (1 - form.bits)
        np.log(out, out)
        large = np.flatnonzero(sizes >= form.near_one)
        out[large] = np.log1p((form.top - sizes[large]) * -(2.0 ** (1 - form.bits)))

    # ------------------------------------------------------------------ one process, one stream
    def _rekey(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), _FROM_ZERO).encryptor()
        self._process = process()

    def _after_fork(self) -> None:
        if not self._secure:
            raise RuntimeError(
                "a seeded generator was carried into a forked process, where it would repeat its "
                "parent's stream: call seeded_generator(seed, ..., index) in each process"
            )
        self._rekey(os.urandom(32))

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would repeat the stream."""
        raise TypeError(
            "a KeystreamGenerator can be neither copied nor pickled, its copy would repeat the "
            "stream: make a new one where it is needed"
        )


PIECE = 4096
"""Numbers added up at a time.

Longer sums lose digits in float32, and BLAS brings its threads to those above 10,000, which wait
for each other wherever more processes than cores run.
"""


def _sum(numbers: NDArray[Any]) -> float:
    """Add up in pieces; NumPy's own sum of a whole, which loses no digits, takes twice as long."""
    whole = numbers.size - numbers.size % PIECE
    total = float(np.add.reduce(numbers[whole:], dtype=np.float64))
    if whole:
        pieces = np.einsum("ij->i", numbers[:whole].reshape(-1, PIECE))
        total += float(np.add.reduce(pieces, dtype=np.float64))
    return total


def _stretch(out: NDArray[Any], logs: NDArray[Any], factor: NDArray[Any]) -> None:
    """Multiply the points of the unit circle in `out` by radii, the roots of `factor` log u."""
    np.multiply(logs, factor, logs)
    np.sqrt(logs, logs)
    cosines, sines = out[: logs.size], out[logs.size :]
    np.multiply(cosines, logs, cosines)
    np.multiply(sines, logs, sines)


_HUGE_PAGE = 1 << 21
_local = threading.local()


def scratch(dtype: Any, count: int) -> NDArray[Any]:
    """Return an array that the thread keeps, and that its next block of normals overwrites.

    A new array of a block's size is given back to the system when freed, and every page of the
    next one faults: that costs more than the arithmetic.
    """
    size = np.dtype(dtype).itemsize * count
    memory: NDArray[np.uint8] | None = getattr(_local, "memory", None)
    if memory is None or memory.size < size:
        # NumPy asks for huge pages from 4 MiB on; they start at multiples of their size.
        spare = _HUGE_PAGE if size >= _HUGE_PAGE else 0
        _local.memory = memory = None  # before there is more
        memory = np.empty(size + spare, dtype=np.uint8)
        memory = memory[-memory.ctypes.data % _HUGE_PAGE if spare else 0 :]
        _local.memory = memory
    return memory[:size].view(dtype)


def secure_generator() -> KeystreamGenerator:
    """Return a generator whose key comes from the operating system.

    The generator to use wherever a privacy guarantee is to hold.
    """
    return KeystreamGenerator(os.urandom(32), secure=True)


def seeded_generator(seed: int, *key: int | str) -> KeystreamGenerator:
    """Return a reproducible generator: the same `seed` and `key`, the same stream.

    For simulation only. Whoever knows the seed can subtract the noise, so a seeded generator
    voids every privacy guarantee.

    Parameters
    ----------
    seed : int
        Any integer.
    *key : int or str
        What the stream is for, e.g. ``"cohort", server_round``. Different keys give independent
        streams.
    """
    digest = hashlib.sha256(b"flwr-sdp seeded stream")
    for part in (seed, *key):
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise ValueError(f"a seed or key must be an int or a str; got {_validate.shown(part)}")
        text = str(part).encode()
        # Tagged and length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    return KeystreamGenerator(digest.digest(), secure=False)


def as_generator(rng: Any) -> KeystreamGenerator:
    """Return a keystream generator for whatever a caller may pass as `rng`.

    ``None`` gives a secure generator. A generator of NumPy or torch provides the key of a new
    stream, and moves on; it is for simulation, since its own state can be recovered, and a forked
    process repeats it.
    """
    if rng is None:
        return secure_generator()
    if isinstance(rng, KeystreamGenerator):
        return rng
    if isinstance(rng, np.random.Generator):
        return KeystreamGenerator(rng.bytes(32), secure=False)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(rng, torch.Generator):
        # The state lies on the host even for a generator of a device: nothing waits for it.
        digest = hashlib.sha256(b"flwr-sdp torch stream" + rng.get_state().numpy().tobytes())
        torch.empty(1, device=rng.device).uniform_(generator=rng)
        return KeystreamGenerator(digest.digest(), secure=False)
    raise TypeError(
        "rng must be a generator of flwr_sdp, a numpy.random.Generator, a torch.Generator or None; "
        f"got {type(rng).__name__}"
    )
