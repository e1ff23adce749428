"""IDX, the format of MNIST and Fashion-MNIST, plain or compressed by gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from simulations.data.images import Images, Labels, Pixels

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The files of a data set, each of this name or with ``.gz`` behind it."""

_UNSIGNED_BYTES = 8
_SIDE = 28
_CLASSES = 10


def find(folder: Path, name: str) -> Path | None:
    """Return the file of that name in `folder`, plain or compressed."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_images(folder: Path, name: str) -> Images:
    """Return the data set in `folder`, which figures call `name`.

    Raises
    ------
    ValueError
        If a file is not what its name says; the message names it.
    """
    paths = [find(folder, file) or folder / file for file in FILES]
    train_images, train_labels = _read_pair(paths[0], paths[1])
    test_images, test_labels = _read_pair(paths[2], paths[3])
    return Images(
        name=name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def read(path: Path, dims: int) -> Pixels:
    """Return the array of unsigned bytes in an IDX file of so many dimensions.

    Raises
    ------
    ValueError
        If the file is anything else, shorter or longer than it says, or not whole.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        data = None
    if data is None:  # raised here, not to carry an error that quotes the file
        raise ValueError(f"{path} is not a whole gzip file")
    start = 4 + 4 * dims
    magic = bytes((0, 0, _UNSIGNED_BYTES, dims))
    if data[:4] != magic:
        raise ValueError(
            f"{path} must be an IDX file of unsigned bytes in {dims} dimension(s), which begins "
            f"with {magic.hex()}; it begins with {'something else' if data else 'nothing'}"
        )
    if len(data) < start:
        raise ValueError(f"{path} is not whole: it ends after {len(data)} bytes")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", count=dims, offset=4))
    if len(data) - start != math.prod(shape):
        raise ValueError(
            f"{path} must have as many bytes of data as its dimensions say; it has "
            f"{'more' if len(data) - start > math.prod(shape) else 'fewer'}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _read_pair(images_path: Path, labels_path: Path) -> tuple[Pixels, Labels]:
    images, labels = read(images_path, 3), read(labels_path, 1)
    if images.shape[1:] != (_SIDE, _SIDE) or not len(images):
        raise ValueError(
            f"{images_path} must hold images of {_SIDE}x{_SIDE}; its dimensions are {images.shape}"
        )
    if len(labels) != len(images):
        raise ValueError(
            f"{labels_path} must have a label for each of the {len(images)} images; "
            f"it has {len(labels)}"
        )
    if labels.max() >= _CLASSES:
        raise ValueError(f"{labels_path} must have labels below {_CLASSES}")
    return images, labels.astype(np.int64)
