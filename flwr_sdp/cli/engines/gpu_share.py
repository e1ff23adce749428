"""Shares of a GPU, as Flower counts clients by them and as Ray gives them out.

Flower rounds a share to single precision, and starts ``int(gpus / share)`` clients on a machine.
Ray cuts it after four decimals, and gives out parts of one GPU, never of two. Where Flower starts
more than Ray has room for, those that are left over wait for ever, and the run with them.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

SMALLEST = 0.0001
"""The smallest share that Ray knows."""

_MILLION = 1_000_000


def share_for(clients: int) -> float:
    """Return the share with which `clients` fit on a GPU, and not one more: 1 / clients, cut."""
    return math.floor(_MILLION / clients) / _MILLION


def not_above(share: float) -> float:
    """Return the largest number of single precision that is at most `share`.

    0.2 in single precision is a little more than 0.2: Flower would fit four clients on a GPU.
    """
    single = _single(share)
    if single <= share:
        return single
    (bits,) = struct.unpack("<i", struct.pack("<f", share))
    (below,) = struct.unpack("<f", struct.pack("<i", bits - 1))
    return float(below)


def started(gpus: int, share: float) -> int:
    """Return how many clients Flower starts on a machine with `gpus` GPUs."""
    return int(gpus / not_above(share))


def room(gpus: int, share: float) -> int:
    """Return how many clients Ray has room for there."""
    if share >= 1:
        return int(gpus / share)
    parts = math.floor(Fraction(not_above(share)) * 10_000)
    return gpus * (10_000 // parts)


def _single(number: float) -> float:
    (single,) = struct.unpack("<f", struct.pack("<f", number))
    return float(single)
