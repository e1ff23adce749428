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
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]

BLOCK = 524_288
"""Coordinates drawn and processed at a time.

A block and its keystream stay in the last cache, and each step takes long enough for threads, which
take turns between steps, not to wait for each other.
"""

_ZEROS = bytes(1 << 20)
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


@dataclass(frozen=True)
class _Format:
    """A floating-point type, the integers as wide as it, and the sine to its precision.

    sqrt(2) sin(pi y / 4) = y P(y^2) on [-1, 1], P the minimax polynomial in relative terms, lowest
    coefficient first: to 3.2e-9 for float32 and 1.9e-21 for float64.
    """

    real: Any
    signed: Any
    sine: tuple[float, ...]

    @property
    def bits(self) -> int:
        return 8 * int(np.dtype(self.real).itemsize)


_FORMATS: dict[Any, _Format] = {
    np.float32: _Format(
        np.float32,
        np.int32,
        (
            1.1107207309428545,
            -0.11419128578241460,
            0.0035213932185153316,
            -5.0841617156283274e-05,
        ),
    ),
    np.float64: _Format(
        np.float64,
        np.int64,
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
        for start in range(0, 8 * count, len(_ZEROS)):
            stop = min(start + len(_ZEROS), 8 * count)
            self._encryptor.update_into(
                memoryview(_ZEROS)[: stop - start], buffer.data[start : stop + _SLACK]
            )
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

    def fill_normal(self, out: FloatArray) -> float:
        """Fill a contiguous 1-D array of float32 or float64 with standard normal numbers.

        Returns the sum of their squares, which is that of half as many squared radii.

        Box-Muller, block by block: first the cosines of all pairs, then their sines. Radius and
        angle take as many random bits as a number of `out` has. A radius far in the tail takes 64
        bits more, so that the tail has its resolution there and reaches 11 standard deviations.
        """
        form = _FORMATS.get(out.dtype.type)
        if form is None or not out.dtype.isnative:
            raise TypeError(f"normals come as float32 or float64, in native order; got {out.dtype}")
        if out.ndim != 1 or not out.flags.c_contiguous:
            raise TypeError("normals fill a contiguous array of one dimension")
        even, square = out.size - out.size % 2, 0.0
        for start in range(0, even, BLOCK):
            square += self._fill(out[start : min(start + BLOCK, even)], form)
        if even < out.size:
            out[-1] = self.normal(2, out.dtype)[0]
            square += float(out[-1]) ** 2
        return square

    def _fill(self, out: NDArray[Any], form: _Format) -> float:
        """Fill one block, and return the sum of squares.

        The angle is pi y / 2 for y in [-1, 1), plus pi when the radius is negative. With
        t = sqrt(2) sin(pi y / 4) its cosine is 1 - t^2 and its sine t sqrt(2 - t^2), both well
        conditioned; a polynomial for t costs a fraction of a library's sine and cosine.
        """
        real, pairs = form.real, out.size // 2
        room = scratch(real, 4 * pairs + _SLACK)
        square, t, buffer = room[:pairs], room[pairs : 2 * pairs], room[2 * pairs :]
        words = self._keystream(buffer.view(np.uint8), pairs * form.bits // 32).view(form.signed)
        y, radius = out[:pairs], out[pairs:]  # where cosines and sines will be
        total = self._radii(words[:pairs], radius, t.view(form.signed), form)
        np.copyto(y, words[pairs:], casting="unsafe")
        y *= real(2.0 ** (1 - form.bits))
        np.multiply(y, y, out=square)
        np.multiply(square, real(form.sine[-1]), out=t)
        for coefficient in form.sine[-2:0:-1]:
            t += real(coefficient)
            t *= square
        t += real(form.sine[0])
        t *= y
        np.multiply(t, t, out=square)
        np.subtract(real(1.0), square, out=y)
        y *= radius
        np.subtract(real(2.0), square, out=square)
        np.sqrt(square, out=square)
        square *= t
        radius *= square
        return total

    def _radii(
        self, words: NDArray[Any], out: NDArray[Any], size: NDArray[Any], form: _Format
    ) -> float:
        """Write sqrt(-2 log u), of either sign, for u = (|word| + 1/2) / 2^(bits - 1).

        Returns the sum of squares.

        |word| is all of the word but its sign bit, which becomes that of the radius. Where it is
        so small that u would be coarse, 64 random bits take the place of the 1/2. `size` is
        overwritten.
        """
        real, width = form.real, form.bits - 1
        np.bitwise_and(words, form.signed(2**width - 1), out=size)
        np.copyto(out, size, casting="unsafe")
        out += real(0.5)
        out *= real(2.0**-width)
        coarse = form.signed(2 ** (form.bits // 2 - 1))
        if size.min(initial=coarse) < coarse:
            rare = np.flatnonzero(size < coarse)
            fraction = (self.bits(rare.size) + 0.5) * 2.0**-64
            out[rare] = (size[rare] + fraction) * 2.0**-width
        np.log(out, out=out)
        out *= real(-2.0)
        total = _sum(out)
        np.sqrt(out, out=out)
        # Words and sizes differ in the sign bit alone.
        np.bitwise_xor(words, size, out=size)
        bits = out.view(form.signed)
        bits |= size
        return total

    # ------------------------------------------------------------------ one process, one stream
    def _rekey(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
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


def _sum(numbers: NDArray[Any]) -> float:
    """Add up in pieces: longer sums lose digits in float32, and NumPy's own takes twice as long."""
    whole = numbers.size - numbers.size % 4096
    pieces = np.einsum("ij->i", numbers[:whole].reshape(-1, 4096))
    return float(pieces.sum(dtype=np.float64)) + float(numbers[whole:].sum(dtype=np.float64))


_local = threading.local()


def scratch(dtype: Any, count: int) -> NDArray[Any]:
    """Return an array that the thread keeps, and that its next block of normals overwrites.

    A new array of a block's size is given back to the system when freed, and every page of the
    next one faults: that costs more than the arithmetic.
    """
    size = np.dtype(dtype).itemsize * count
    memory: NDArray[np.uint8] | None = getattr(_local, "memory", None)
    if memory is None or memory.size < size:
        memory = _local.memory = np.empty(size, dtype=np.uint8)
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
            raise ValueError(f"a seed or key must be an int or a str; got {part!r}")
        text = str(part).encode()
        # Tagged and length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    return KeystreamGenerator(digest.digest(), secure=False)


def as_generator(rng: Any) -> KeystreamGenerator:
    """Return a keystream generator for whatever a caller may pass as `rng`.

    ``None`` gives a secure generator. A generator of NumPy or torch provides the key of a new
    stream, and moves on; it is for simulation, since its own state can be recovered.
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
