"""A data set of labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


class StoredPixels(Protocol):
    """Images that do not fit memory, and are read when they are asked for."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, indices: NDArray[np.intp], /) -> Pixels:
        """Return those at `indices`, as an array would."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """Images to train on, and others that no client holds.

    Attributes
    ----------
    name : str
        What figures call the data.
    train_images, test_images : ndarray or StoredPixels
        ``(n, height, width)``, or ``(n, height, width, 3)`` for colours.
    train_labels, test_labels : ndarray
        ``(n,)``, from 0.
    """

    name: str
    train_images: Pixels | StoredPixels
    train_labels: Labels
    test_images: Pixels | StoredPixels
    test_labels: Labels

    @property
    def classes(self) -> int:
        """How many classes there are: one more than the largest label."""
        return 1 + int(max(self.train_labels.max(), self.test_labels.max()))
