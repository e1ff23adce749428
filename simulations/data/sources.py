"""The data sets, by name. Nothing is fetched from a network unless the run says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr_sdp import _validate
from simulations.data import cifar, idx, image_folder
from simulations.data.digits import enlarged_digits
from simulations.data.files import FileSet
from simulations.data.images import Images
from simulations.data.synthetic import synthetic_cifar, synthetic_flickr, synthetic_imagenet

_MNIST = FileSet(
    data="mnist",
    files=idx.FILES,
    find=idx.find,
    below="MNIST/raw",
    torchvision="MNIST",
)
_FASHION_MNIST = FileSet(
    data="fashion-mnist",
    files=idx.FILES,
    find=idx.find,
    below="FashionMNIST/raw",
    torchvision="FashionMNIST",
    installed=Path("/usr/share/datasets/fashion-mnist"),
    package="dataset-fashion-mnist",
)
_CIFAR10 = FileSet(
    data="cifar10",
    files=cifar.FILES,
    find=cifar.find,
    below="cifar-10-batches-py",
    torchvision="CIFAR10",
)

_READ: dict[str, tuple[FileSet, Callable[[Path, str], Images]]] = {
    "mnist": (_MNIST, idx.read_images),
    "fashion-mnist": (_FASHION_MNIST, idx.read_images),
    "cifar10": (_CIFAR10, cifar.read_images),
}
_MADE: dict[str, Callable[[], Images]] = {
    "digits-28": enlarged_digits,
    "synthetic-cifar": synthetic_cifar,
    "synthetic-imagenet": synthetic_imagenet,
    "synthetic-flickr": synthetic_flickr,
}

_WITH_FILES = (*_READ, image_folder.NAME)

DATA = (*_WITH_FILES, *_MADE)
"""Names of the data sets."""


def load_images(
    name: str,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    seed: int = 0,
    side: int = image_folder.SIDE,
) -> Images:
    """Return a data set.

    Parameters
    ----------
    name : str
        One of `DATA`.
    data_dir : Path, optional
        The folder of its files; without it they are looked for where the package of the operating
        system puts them, and where they were fetched to.
    download : bool
        Whether files that are missing are fetched, by torchvision.
    seed : int
        From it the images of an image folder are drawn. The other data sets come with a split.
    side : int
        Pixels along an axis that the images of an image folder are brought to.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing, or not what it should be; the message names the file and what to do.
    """
    _validate.choice("data", name, DATA)
    if name in _MADE:
        refuse_data_dir(name, data_dir)
        return _MADE[name]()
    if name == image_folder.NAME:
        if data_dir is None:
            raise ValueError(
                f"data-dir must say which folder, for data = {name!r}: one that has a folder of "
                "images for each class (there is nothing to download)"
            )
        return image_folder.read_images(data_dir.expanduser(), seed=seed, side=side)
    files, read = _READ[name]
    return read(files.folder(data_dir, download=download), name)


def refuse_data_dir(name: str, data_dir: Path | None) -> None:
    """Raise ``ValueError`` if files are named for data that has none: they would not be used."""
    if data_dir is not None:
        raise ValueError(
            f"data-dir must be empty for data = {name!r}, which has no files; got "
            f"{str(data_dir)!r} (data = {', '.join(map(repr, _WITH_FILES))} are read from files)"
        )
