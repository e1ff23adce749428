"""What adding a report to a model, in the model's own dtypes, does to the length of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flwr_sdp import npy
from flwr_sdp.released import Selection

# Numbers that are made float64 at a time; OpenBLAS would wake threads for more than 10,000.
_CHUNK = 8_192


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """How much longer than declared a report on a model may be: devices add it up and round.

    Attributes
    ----------
    absolute : float
        What the rounding of the model's own numbers adds.
    relative : float
        What that of the report adds, in units of the report.
    """

    absolute: float
    relative: float

    @classmethod
    def on(cls, model: Mapping[str, npy.SentArray], selection: Selection) -> Rounding:
        """Return the rounding to the dtypes of a model.

        Raises
        ------
        ValueError
            If an array cannot be read, or `selection` does not fit the model.
        """
        formats = npy.formats_of(model)
        square, relative = 0.0, 3e-5  # to this, six standard deviations, a report has its length
        for name in selection.released(formats):
            dtype = formats[name][0]
            numbers = npy.read_array(name, model[name]).reshape(-1)
            length2 = 0.0
            for start in range(0, numbers.size, _CHUNK):
                values = numbers[start : start + _CHUNK].astype(np.float64)
                length2 += float(values @ values)
            square += npy.roundoff(dtype) ** 2 * length2 + npy.smallest(dtype) ** 2 * numbers.size
            relative = max(relative, 2.0 * npy.roundoff(dtype))
        return cls(absolute=math.sqrt(square), relative=relative)

    def of(self, length: float) -> float:
        """Return how long a report of this declared length may be."""
        return length * (1.0 + self.relative) + self.absolute
