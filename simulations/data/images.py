"""A data set of labelled images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Images to train on, and others that no client holds.

    Attributes
    ----------
    name : str
        What figures call the data.
    train_images, test_images : ndarray
        ``(n, height, width)``, or ``(n, height, width, 3)`` for colours.
    train_labels, test_labels : ndarray
        ``(n,)``, from 0 to 9.
    """

    name: str
    train_images: Pixels
    train_labels: Labels
    test_images: Pixels
    test_labels: Labels
