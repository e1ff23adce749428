"""Arrays of a stream: drawn and sent in single precision, summed in double."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
