"""Models whose numbers are numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import npy
from flwr_sdp.released import Selection


def require_finite(
    model: Mapping[str, npy.SentArray], selection: Selection, origin: str = "the strategy was given"
) -> None:
    """Raise ``ValueError`` naming the first array that is trained and is not finite.

    A device's report on such an array is not finite either, and its budget is spent. Arrays that
    are not released may be anything: no report has them in it, they stay as they are, and a mask
    of minus infinity is what its model needs.
    """
    for name in selection.released(npy.formats_of(model)):
        numbers = npy.read_array(name, model[name])
        if numbers.size and not _is_finite(numbers):
            raise ValueError(
                f"arrays that are trained must be finite, but {origin} {name!r} with infinities "
                "or NaN in it: nobody is asked for reports that would be lost. Begin with a finite "
                "model, or keep the array out (trainable, excluded) if it is no weight"
            )


def _is_finite(numbers: NDArray[Any]) -> bool:
    """Return it without the memory of an array of answers."""
    with np.errstate(invalid="ignore"):
        return math.isfinite(numbers.min()) and math.isfinite(numbers.max())
