"""The "python version" of CIFAR-10: a folder of pickles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from simulations.data.array_pickle import load
from simulations.data.images import Images, Labels, Pixels

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
FILES = (*TRAIN_FILES, TEST_FILE)
"""The files of the data set that are read."""

_SIDE = 32
_BYTES = 3 * _SIDE * _SIDE
_CLASSES = 10


def find(folder: Path, name: str) -> Path | None:
    """Return the file of that name in `folder`."""
    path = folder / name
    return path if path.is_file() else None


def read_images(folder: Path, name: str) -> Images:
    """Return the data set in `folder`, which figures call `name`.

    Raises
    ------
    ValueError
        If a file is not a batch of CIFAR-10; the message names it.
    """
    batches = [read_batch(folder / file) for file in TRAIN_FILES]
    test_images, test_labels = read_batch(folder / TEST_FILE)
    return Images(
        name=name,
        train_images=np.concatenate([images for images, _ in batches]),
        train_labels=np.concatenate([labels for _, labels in batches]),
        test_images=test_images,
        test_labels=test_labels,
    )


def read_batch(path: Path) -> tuple[Pixels, Labels]:
    """Return images ``(n, 32, 32, 3)`` and labels of one file."""
    batch = load(path)
    if not isinstance(batch, dict):
        raise ValueError(f"{path} must hold a dictionary; got {type(batch).__name__}")
    rows, labels = _entry(path, batch, "data"), _entry(path, batch, "labels")
    if (
        not isinstance(rows, np.ndarray)
        or rows.dtype != np.uint8
        or rows.ndim != 2
        or rows.shape[1] != _BYTES
        or not len(rows)
    ):
        found = f"{rows.dtype} {rows.shape}" if isinstance(rows, np.ndarray) else type(rows)
        raise ValueError(f"{path}: data must be rows of {_BYTES} unsigned bytes; got {found}")
    if not isinstance(labels, list) or len(labels) != len(rows):
        raise ValueError(f"{path}: labels must be a list with one for each of {len(rows)} images")
    for label in labels:
        if type(label) is not int or not 0 <= label < _CLASSES:
            raise ValueError(f"{path}: labels must be from 0 to {_CLASSES - 1}")
    # A row is the red, the green and the blue plane.
    images = np.ascontiguousarray(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))
    return images, np.array(labels, np.int64)


def _entry(path: Path, batch: dict[Any, Any], key: str) -> Any:
    """Return an entry; Python 2 wrote the keys as bytes."""
    for written in (key.encode(), key):
        if written in batch:
            return batch[written]
    raise ValueError(f"{path} must have an entry {key!r}; it has {len(batch)} others")
