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
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]

BLOCK = 32_768
"""Coordinates drawn and processed at a time: a block and its keystream stay in the L2 cache."""

_ZEROS = bytes(1 << 20)
# The cipher wants room for one more of its blocks, less a byte, behind what it writes.
_SLACK = 15
_TWO_PI = 2.0 * math.pi

# 2 sin(pi y / 4) = y P(y^2) on [-1, 1]: the minimax polynomial, to 3.2e-9 relative.
_SINE = tuple(
    np.float32(c)
    for c in (
        1.5707963216389399,
        -0.16149086451350651,
        0.0049800009706591716,
        -7.1900293438017035e-5,
    )
)


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
        self._memory = np.empty(0, dtype=np.uint8)
        self._rekey(key)

    @property
    def is_secure(self) -> bool:
        """Whether the key came from the operating system, and so no guarantee is void."""
        return self._secure

    # ------------------------------------------------------------------ bits
    def bits(self, count: int) -> NDArray[np.uint64]:
        """Return `count` independent uniform 64-bit words (the keystream, little endian)."""
        return self._keystream(np.empty(8 * count + _SLACK, dtype=np.uint8), count)

    def _keystream(self, buffer: NDArray[np.uint8], count: int) -> NDArray[np.uint64]:
        """Write `count` words to `buffer`, which has room for them and the slack, and view them."""
        if os.getpid() != self._pid:
            self._after_fork()
        for start in range(0, 8 * count, len(_ZEROS)):
            stop = min(start + len(_ZEROS), 8 * count)
            self._encryptor.update_into(
                memoryview(_ZEROS)[: stop - start], buffer.data[start : stop + _SLACK]
            )
        return buffer[: 8 * count].view("<u8")

    def _word(self) -> int:
        return int(self.bits(1)[0])

    # ------------------------------------------------------------------ scalars
    def uniform(self) -> float:
        """Return a uniform number in the open interval (0, 1), an odd multiple of 2**-53."""
        return ((self._word() >> 12) + 0.5) * 2.0**-52

    def log_uniform(self) -> float:
        """Return log U for U uniform in (0, 1], exact however small U turns out to be."""
        exponent = 0
        high = self._word()
        while high == 0:
            exponent += 64
            high = self._word()
        # 64 more bits below the leading word: the relative error is that of the rounding.
        mantissa = high + (self._word() + 0.5) * 2.0**-64
        return math.log(mantissa) - (64 + exponent) * math.log(2.0)

    def bernoulli(self, log_odds: float) -> bool:
        """Return True with probability ``1 / (1 + exp(-log_odds))``.

        The rarer side is compared in logarithms, so its probability is right to double precision
        even at log-odds in the thousands, where the probability itself has rounded to 1.
        """
        rare = -abs(log_odds) - math.log1p(math.exp(-abs(log_odds)))
        is_rare = self.log_uniform() < rare
        return is_rare if log_odds < 0 else not is_rare

    def integer(self, high: int) -> int:
        """Return a uniform integer in ``range(high)``, for ``1 <= high <= 2**64``."""
        limit = 2**64 - 2**64 % high
        while True:
            word = self._word()
            if word < limit:
                return word % high

    def normal_scalar(self) -> float:
        """Return one standard normal number."""
        radius = math.sqrt(-2.0 * self.log_uniform())
        return radius * math.cos(_TWO_PI * self.uniform())

    # ------------------------------------------------------------------ arrays
    def fill_normal(self, out: FloatArray) -> None:
        """Fill a contiguous 1-D array of float32 or float64 with standard normal numbers.

        Box-Muller, block by block. Each radius takes 64 random bits, so that the tails reach 9
        standard deviations; each angle takes 32 (float32) or 64 (float64).
        """
        fills: dict[Any, Callable[[NDArray[Any]], None]] = {
            np.float32: self._fill_float32,
            np.float64: self._fill_float64,
        }
        fill = fills.get(out.dtype.type)
        if fill is None:
            raise TypeError(f"normals come as float32 or float64; got {out.dtype}")
        for start in range(0, out.size, BLOCK):
            fill(out[start : start + BLOCK])

    def normal(self, size: int, dtype: Any = np.float64) -> FloatArray:
        """Return `size` standard normal numbers in a new array."""
        out: FloatArray = np.empty(size, dtype=dtype)
        self.fill_normal(out)
        return out

    def _fill_float32(self, out: NDArray[np.float32]) -> None:
        """Fill one block: first the cosines of all pairs, then the sines.

        The angle is pi y / 2 for y in [-1, 1), plus pi when the radius is negative; with
        t = 2 sin(pi y / 4), its cosine is 1 - t^2/2 and its sine t sqrt(1 - t^2/4), both well
        conditioned. A polynomial for t costs half of a library's sine and cosine.
        """
        pairs = (out.size + 1) // 2
        buffer, (radius, y, square, work) = self._workspace(np.float32, pairs)
        words = self._keystream(buffer, pairs + (pairs + 1) // 2)
        turn = words[pairs:].view("<u4")[:pairs]
        _radius(words[:pairs], radius)
        # The last bit of the angle's word is the sign of the radius.
        sign = work.view(np.uint32)
        np.left_shift(turn, np.uint32(31), out=sign)
        bits = radius.view(np.uint32)
        bits |= sign
        np.copyto(y, turn.view("<i4"), casting="unsafe")
        y *= np.float32(2.0**-31)
        np.multiply(y, y, out=square)
        np.multiply(square, _SINE[-1], out=work)
        for coefficient in _SINE[-2:0:-1]:
            work += coefficient
            work *= square
        work += _SINE[0]
        work *= y
        np.multiply(work, work, out=square)
        cosines, sines = out[:pairs], out[pairs:]
        np.multiply(square, np.float32(-0.5), out=cosines)
        cosines += np.float32(1.0)
        cosines *= radius
        square *= np.float32(-0.25)
        square += np.float32(1.0)
        np.sqrt(square, out=square)
        square *= work
        np.multiply(square[: sines.size], radius[: sines.size], out=sines)

    def _fill_float64(self, out: NDArray[np.float64]) -> None:
        """Fill one block: first the cosines of all pairs, then the sines."""
        pairs = (out.size + 1) // 2
        buffer, (radius, angle, turned, _) = self._workspace(np.float64, pairs)
        words = self._keystream(buffer, 2 * pairs)
        _radius(words[:pairs], radius)
        np.copyto(angle, words[pairs:], casting="unsafe")
        angle *= _TWO_PI * 2.0**-64
        cosines, sines = out[:pairs], out[pairs:]
        np.multiply(radius, np.cos(angle, out=turned), out=cosines)
        np.sin(angle, out=turned)
        np.multiply(radius[: sines.size], turned[: sines.size], out=sines)

    def _workspace(self, dtype: type, pairs: int) -> tuple[NDArray[np.uint8], list[NDArray[Any]]]:
        """Return a keystream buffer and four arrays of `pairs`, kept from block to block.

        A new array of a block's size is given back to the system when freed, and every page of the
        next one faults: that costs more than the arithmetic.
        """
        if self._memory.size < 48 * pairs + _SLACK:
            self._memory = np.empty(48 * pairs + _SLACK, dtype=np.uint8)
        size = np.dtype(dtype).itemsize * pairs
        arrays: list[NDArray[Any]] = [
            self._memory[i * size : (i + 1) * size].view(dtype) for i in range(4)
        ]
        return self._memory[4 * size :], arrays

    # ------------------------------------------------------------------ one process, one stream
    def _rekey(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._pid = os.getpid()

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


def _radius(words: NDArray[np.uint64], out: NDArray[Any]) -> None:
    """Write sqrt(-2 log u) for u = (word + 1/2) / 2^64, which is never 0."""
    real = out.dtype.type
    np.copyto(out, words, casting="unsafe")
    out += real(0.5)
    out *= real(2.0**-64)
    np.log(out, out=out)
    out *= real(-2.0)
    np.sqrt(out, out=out)


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


def as_generator(rng: KeystreamGenerator | np.random.Generator | None) -> KeystreamGenerator:
    """Return a keystream generator for whatever a caller may pass as `rng`.

    ``None`` gives a secure generator. A NumPy generator provides the key of a new stream, and so
    moves on by 32 bytes; it is for simulation, since its own state can be recovered.
    """
    if rng is None:
        return secure_generator()
    if isinstance(rng, KeystreamGenerator):
        return rng
    if isinstance(rng, np.random.Generator):
        return KeystreamGenerator(rng.bytes(32), secure=False)
    raise TypeError(
        "rng must be a generator of flwr_sdp, a numpy.random.Generator or None; "
        f"got {type(rng).__name__}"
    )
