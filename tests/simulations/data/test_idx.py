"""Files of MNIST's format: read as they are, and refused by name if they are anything else."""

import gzip
import re

import numpy as np
import pytest

from simulations.data import idx
from tests.simulations.data import writers

IMAGES, LABELS = idx.FILES[:2]


@pytest.mark.parametrize("compressed", [False, True])
def test_images_and_labels_come_back(tmp_path, compressed):
    train_images, train_labels, test_images, test_labels = writers.write_idx(
        tmp_path, compressed=compressed
    )
    images = idx.read_images(tmp_path, "some")
    assert images.name == "some"
    for read, written in (
        (images.train_images, train_images),
        (images.train_labels, train_labels),
        (images.test_images, test_images),
        (images.test_labels, test_labels),
    ):
        np.testing.assert_array_equal(read, written)
    assert images.train_images.dtype == np.uint8
    assert images.train_labels.dtype == np.int64


def good(shape=(3, 28, 28)):
    return writers.idx(np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x08", "begins with something else"),
        (b"\x00\x00\x0d\x03" + good()[4:], "0000080[3].*begins with something else"),
        (b"\x00\x00\x08\x01" + good()[4:], "3 dimension.*begins with something else"),
        (b"PK\x03\x04" + good()[4:], "begins with something else"),
        (good()[:10], "ends after 10 bytes"),
        (good()[:-1], "must have as many bytes of data.*has fewer"),
        (good() + b"\x00", "must have as many bytes of data.*has more"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "dimensions say; it has fewer"),
        (good((3, 28, 27)), r"images of 28x28; its dimensions are \(3, 28, 27\)"),
        (good((0, 28, 28)), r"its dimensions are \(0, 28, 28\)"),
        (good((4, 28, 28)), "a label for each of the 4 images; it has 3"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_other_files_are_refused_by_name(tmp_path, data, message, compressed):
    writers.write_idx(tmp_path, train=3, compressed=compressed)
    path = tmp_path / (f"{IMAGES}.gz" if compressed else IMAGES)
    path.write_bytes(gzip.compress(data) if compressed else data)
    named = re.escape(str(tmp_path / (LABELS if "label" in message else IMAGES)))
    with pytest.raises(ValueError, match=f"{named}.*{message}"):
        idx.read_images(tmp_path, "some")


def test_labels_are_classes(tmp_path):
    writers.write_idx(tmp_path, train=3)
    (tmp_path / LABELS).write_bytes(writers.idx(np.array([0, 10, 3], np.uint8)))
    with pytest.raises(ValueError, match=rf"{LABELS} must have labels below 10$"):
        idx.read_images(tmp_path, "some")


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-12], lambda data: b"no gzip", lambda data: data[:20] + b"\xff" * 40],
)
def test_broken_compression_is_refused_by_name(tmp_path, damage):
    writers.write_idx(tmp_path, compressed=True)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"{IMAGES}.gz is not a whole gzip file"):
        idx.read_images(tmp_path, "some")
