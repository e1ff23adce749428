"""A folder with one folder of images for each class: Flickr's, ImageNet's, or your own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from flwr_sdp import KeystreamGenerator, seeded_generator
from simulations.data.drawing import permutation, sample
from simulations.data.images import Images, Pixels

NAME = "image-folder"

ENDINGS = (".jpg", ".jpeg", ".png")
"""Of the files that are read, in any case; others are passed over."""

SIDE = 224  # pixels, of the networks that were trained on ImageNet
_BORDER = 1 / 16  # cut off on each side: what is left of 256 pixels is 224


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Images in files, each decoded whenever it is asked for.

    Attributes
    ----------
    paths : sequence of Path
        The files.
    side : int
        Pixels of an image along an axis: the middle of the file's, made smaller or larger.
    """

    paths: Sequence[Path]
    side: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: NDArray[np.intp], /) -> Pixels:
        """Return colour images ``(n, side, side, 3)``; an error names the file that is broken."""
        images = np.empty((len(indices), self.side, self.side, 3), np.uint8)
        for place, index in enumerate(indices):
            images[place] = read_image(self.paths[index], self.side)
        return images


def read_image(path: Path, side: int) -> Pixels:
    """Return the middle of an image in colours, ``(side, side, 3)``.

    As is usual for ImageNet: the shorter side is brought to 8/7 of `side`, and the middle is cut.

    Raises
    ------
    ValueError
        If it is not a whole image; the message names the file.
    """
    colours, reason = None, ""
    try:
        # Strange metadata, or colours that become one: what counts are the pixels.
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            colours = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = type(error).__name__
    if colours is None:  # raised here, not to carry an error that quotes the file
        raise ValueError(f"{path} is not a whole image: {reason}")
    middle = ImageOps.fit(colours, (side, side), Image.Resampling.BILINEAR, bleed=_BORDER)
    return np.asarray(middle, np.uint8)


def read_images(
    folder: Path, *, seed: int, classes: int = 100, per_class: int = 2000, side: int = SIDE
) -> Images:
    """Return some of the images in a folder, drawn from `seed`; nothing is decoded yet.

    Bhowmick et al., arXiv:1812.00984v2, section "Pretrained models": 100 classes, uniformly at
    random, and 2000 images from each, randomly permuted, of which a tenth is held out.

    Parameters
    ----------
    folder : Path
        Has a folder for each class, with the class's images directly in it.
    seed : int
        From it the classes, the images and the split are drawn.
    classes, per_class : int
        How many to take; all, where there are no more.
    side : int
        Pixels of an image along an axis.

    Raises
    ------
    FileNotFoundError, ValueError
        If the folder or a class has no images; the message names it.
    """
    chosen = _some(_classes(folder), classes, seeded_generator(seed, NAME, "classes"))
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(chosen):
        rng = seeded_generator(seed, NAME, "images", name.name)
        members = _some(_files(name), per_class, rng)
        paths += members
        labels += [label] * len(members)
    if len(paths) < 10:
        raise ValueError(
            f"{folder} must have at least 10 images, to hold out a tenth; got {len(paths)}"
        )
    order = permutation(len(paths), seeded_generator(seed, NAME, "split"))
    held_out, rest = order[: len(order) // 10], order[len(order) // 10 :]
    numbers = np.array(labels, np.int64)
    return Images(
        name=f"{NAME} {folder.resolve().name}",
        train_images=ImageFiles([paths[index] for index in rest], side),
        train_labels=numbers[rest],
        test_images=ImageFiles([paths[index] for index in held_out], side),
        test_labels=numbers[held_out],
    )


def _classes(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is missing, for data = {NAME!r}: set data-dir to a folder that has a folder "
            "of images for each class (there is nothing to download)"
        )
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    if len(found) < 2:
        raise ValueError(
            f"{folder} must have a folder of images for each class, two at least; got {len(found)}"
        )
    return found


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
    if not found:
        raise ValueError(f"{folder} must have images ({', '.join(ENDINGS)}); there are none")
    return found


def _some(paths: list[Path], count: int, rng: KeystreamGenerator) -> list[Path]:
    """Return `count` of them at random, in order; all if there are no more."""
    if count >= len(paths):
        return paths
    return [paths[index] for index in sorted(sample(len(paths), count, rng))]
