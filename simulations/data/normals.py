"""Normal numbers for synthetic images, which stay what they are when the library draws otherwise.

Figures in the documentation were made of these images. So their noise has an algorithm of its own,
written plainly, and takes only the words of the keystream from the library.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator

_BLOCK = 524_288
_COARSE = 2**15


def normals(count: int, rng: KeystreamGenerator) -> NDArray[np.float32]:
    """Return an even number of standard normal numbers.

    Box-Muller in blocks: radii, with a sign, from the first half of a block's 32-bit words, angles
    within half a circle from the second; the cosines of all pairs, then their sines. A radius far
    in the tail takes another 64 bits.
    """
    out = np.empty(count, np.float32)
    for start in range(0, count, _BLOCK):
        block = out[start : start + _BLOCK]
        pairs = block.size // 2
        words, turns = np.split(rng.bits(pairs).view(np.uint32), 2)
        sizes = words & np.uint32(2**31 - 1)
        uniform = (sizes + 0.5) * 2.0**-31
        rare = np.flatnonzero(sizes < _COARSE)
        uniform[rare] = (sizes[rare] + (rng.bits(rare.size) + 0.5) * 2.0**-64) * 2.0**-31
        radii = np.where(words >> np.uint32(31), -1.0, 1.0) * np.sqrt(-2.0 * np.log(uniform))
        angles = np.pi / 2 * (turns.view(np.int32) * 2.0**-31)
        block[:pairs] = radii * np.cos(angles)
        block[pairs:] = radii * np.sin(angles)
    return out
