"""Models whose numbers are numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from flwr_sdp import npy


def require_finite(
    model: Mapping[str, npy.SentArray], trained: Collection[str], origin: str, consequence: str
) -> None:
    """Raise ``ValueError`` naming the first array with NaN, or that is trained and not finite.

    A report on a model with NaN, wherever it is, is lost: it would spend a device's budget for
    nothing. An array that is not trained stays as it is, and no report has it in it. It may be
    infinite: a mask of minus infinity is what its model needs.

    Parameters
    ----------
    model : mapping
        The arrays; those that are not floating-point numbers are passed over.
    trained : collection of str
        Names of those that are trained, tied ones included.
    origin : str
        Where the arrays come from.
    consequence : str
        What becomes of the round, and what to do.
    """
    for name, (dtype, _) in npy.formats_of(model).items():
        if not npy.is_float(dtype) or npy.is_finite(model[name]):
            continue
        if name in trained:
            what, found = "arrays that are trained must be finite", "infinities or NaN"
        elif np.isnan(npy.read_array(name, model[name])).any():
            what, found = "arrays must be free of NaN, trained or not", "NaN"
        else:
            continue
        raise ValueError(f"{what}, but {origin} {name!r} with {found} in it: {consequence}")
