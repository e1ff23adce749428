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
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]

BLOCK = 32_768
"""Coordinates drawn and processed at a time: a block and its keystream stay in the L2 cache."""

_ZEROS = bytes(1 << 20)
_TWO_PI = 2.0 * math.pi


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
        """Whether the key came from the operating system, and so no guarantee is void."""
        return self._secure

    # ------------------------------------------------------------------ bits
    def bits(self, count: int) -> NDArray[np.uint64]:
        """Return `count` independent uniform 64-bit words (the keystream, little endian)."""
        if os.getpid() != self._pid:
            self._after_fork()
        size = 8 * count
        buffer = bytearray(size + 15)  # update_into wants room for one more cipher block
        for start in range(0, size, len(_ZEROS)):
            stop = min(start + len(_ZEROS), size)
            view = memoryview(buffer)[start : stop + 15]
            self._encryptor.update_into(memoryview(_ZEROS)[: stop - start], view)
        return np.frombuffer(buffer, dtype="<u8", count=count)

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

        Box-Muller, block by block: 64 random bits go into each radius, so that the tails reach
        9 standard deviations, and 32 (float32) or 64 (float64) into each angle.
        """
        for start in range(0, out.size, BLOCK):
            self._fill_block(out[start : start + BLOCK])

    def normal(self, size: int, dtype: Any = np.float64) -> FloatArray:
        """Return `size` standard normal numbers in a new array."""
        out: FloatArray = np.empty(size, dtype=dtype)
        self.fill_normal(out)
        return out

    def _fill_block(self, out: FloatArray) -> None:
        pairs = (out.size + 1) // 2
        dtype = out.dtype.type
        if dtype is np.float32:
            words = self.bits(pairs + (pairs + 1) // 2)
            angle_words: NDArray[Any] = words[pairs:].view("<u4")[:pairs]
            angle_unit = _TWO_PI * 2.0**-32
        elif dtype is np.float64:
            words = self.bits(2 * pairs)
            angle_words = words[pairs:]
            angle_unit = _TWO_PI * 2.0**-64
        else:
            raise TypeError(f"normals come as float32 or float64; got {out.dtype}")
        radius = words[:pairs].astype(dtype)
        radius += dtype(0.5)
        radius *= dtype(2.0**-64)
        np.log(radius, out=radius)
        radius *= dtype(-2.0)
        np.sqrt(radius, out=radius)
        angle = angle_words.astype(dtype)
        angle *= dtype(angle_unit)
        np.multiply(radius, np.cos(angle), out=out[:pairs])
        np.multiply(radius[: out.size - pairs], np.sin(angle[: out.size - pairs]), out=out[pairs:])

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
