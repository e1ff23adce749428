"""Models whose numbers are numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from flwr_sdp import npy
from flwr_sdp.released import Selection

_log = logging.getLogger("flwr")


def require_finite(model: Mapping[str, npy.SentArray], names: Iterable[str], origin: str) -> None:
    """Raise ``ValueError`` naming the first array that is trained and is not finite.

    A report on such an array is not finite either: it would spend a device's budget for nothing.
    Arrays that are not released may be anything. No report has them in it, they stay as they are,
    and a mask of minus infinity is what its model needs.

    Parameters
    ----------
    model : mapping
        The arrays.
    names : iterable of str
        Those that are trained, as :meth:`Selection.released` has them.
    origin : str
        Where the arrays come from.
    """
    for name in names:
        if name in model and not npy.is_finite(model[name]):
            raise ValueError(
                f"arrays that are trained must be finite, but {origin} {name!r} with infinities "
                "or NaN in it, and nobody is asked for reports that would be lost: begin with a "
                "finite model, or keep the array out (trainable, excluded) if it is no weight"
            )


def warn_of_nan(model: Mapping[str, npy.SentArray], selection: Selection) -> None:
    """Log which arrays that are not released have NaN in them; no mask needs that."""
    formats = npy.formats_of(model)
    for name in formats.keys() - {*selection.released(formats), *selection.tied}:
        numbers = npy.read_array(name, model[name])
        if npy.is_float(formats[name][0]) and np.isnan(numbers).any():
            _log.warning(
                "array %r is not trained, and is sent with NaN in it: if the model computes with "
                "it, no device has an update to report",
                name,
            )
