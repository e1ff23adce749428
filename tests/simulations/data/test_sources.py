"""Data sets by name: where they are looked for, what a missing one says, and no network."""

import re
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from simulations.data import files
from simulations.data.digits import digits
from simulations.data.sources import _FASHION_MNIST, DATA, load_images
from tests.simulations.data import writers

FIRST_FILE = {
    "mnist": "train-images-idx3-ubyte",
    "fashion-mnist": "train-images-idx3-ubyte",
    "cifar10": "data_batch_1",
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    """Nobody may open a connection; nothing was fetched before."""

    def refuse(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(files, "FETCHED", tmp_path / "fetched")


# ------------------------------------------------------------------ those that are made
def test_unknown_data_lists_those_there_are():
    with pytest.raises(ValueError, match=r"data must be one of 'mnist', .*; got 'emnist'"):
        load_images("emnist")


def test_enlarged_digits_are_digits():
    """The same split in every run; the middle of an image shrinks to the digit it was."""
    images = load_images("digits-28")
    assert images.name == "digits-28"
    assert images.train_images.shape == (1497, 28, 28)
    assert images.test_images.shape == (300, 28, 28)
    assert images.train_images.dtype == np.uint8
    assert images.train_images.max() > 240
    assert not images.train_images[:, :4].any()
    again = load_images("digits-28")
    np.testing.assert_array_equal(images.train_images, again.train_images)
    small, labels = digits()
    middle = images.train_images[:, 4:24, 4:24].astype(float)
    shrunk = middle.reshape(-1, 4, 5, 4, 5).mean(axis=(2, 4)).reshape(len(middle), -1)
    blocks = small.astype(float).reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(len(small), -1)
    distances = np.abs(shrunk[:100, None] / 255 - blocks[None] / 16).max(axis=2)
    assert distances.min(axis=1).max() < 0.12
    assert (labels[distances.argmin(axis=1)] == images.train_labels[:100]).mean() > 0.98


@pytest.mark.parametrize(
    "name", ["digits-28", "synthetic-cifar", "synthetic-flickr", "synthetic-imagenet"]
)
def test_a_folder_for_data_without_files_is_refused(name, tmp_path):
    message = rf"data-dir must be empty for data = '{name}'.*'{re.escape(str(tmp_path))}'"
    with pytest.raises(ValueError, match=message):
        load_images(name, data_dir=tmp_path)


# ------------------------------------------------------------------ those that are read
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("below", ["", "{}/raw"])
@pytest.mark.parametrize("compressed", [False, True])
def test_files_are_found_in_a_folder(name, below, compressed, tmp_path):
    folder = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name]
    train, *_ = writers.write_idx(tmp_path / below.format(folder), compressed=compressed)
    images = load_images(name, data_dir=tmp_path)
    assert images.name == name
    np.testing.assert_array_equal(images.train_images, train)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_batches_are_found_in_a_folder(below, tmp_path):
    written = writers.write_cifar(tmp_path / below)
    images = load_images("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(images.test_images, written[5][0])


def test_an_image_folder_is_read_from_its_seed(tmp_path):
    writers.write_image_folder(tmp_path, count=9, side=8)
    first, again, other = (
        load_images("image-folder", data_dir=tmp_path, seed=seed) for seed in (1, 1, 2)
    )
    assert first.train_images.paths == again.train_images.paths != other.train_images.paths
    assert first.train_images[np.array([0])].shape == (1, 224, 224, 3)


def test_an_image_folder_has_to_be_named():
    with pytest.raises(ValueError, match=r"data-dir must say which folder, .*'image-folder'"):
        load_images("image-folder")


def test_an_image_folder_is_not_fetched(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is missing.*nothing to download"):
        load_images("image-folder", data_dir=tmp_path / "nowhere", download=True)


def test_without_a_folder_what_was_fetched_is_found(tmp_path):
    writers.write_idx(tmp_path / "fetched" / "MNIST" / "raw")
    assert len(load_images("mnist").train_images) == 12


@pytest.mark.skipif(
    not (_FASHION_MNIST.installed or Path()).is_dir(),
    reason="needs the Debian package dataset-fashion-mnist",
)
def test_installed_fashion_mnist_is_found():
    images = load_images("fashion-mnist")
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    np.testing.assert_array_equal(np.bincount(images.train_labels), 6000)
    np.testing.assert_array_equal(np.bincount(images.test_labels), 1000)


@pytest.mark.parametrize("name", FIRST_FILE)
def test_a_wrong_folder_names_the_file_and_the_fix_at_once(name, tmp_path):
    folder = tmp_path / "nowhere"
    start = time.monotonic()
    with pytest.raises(FileNotFoundError) as raised:
        load_images(name, data_dir=folder)
    assert time.monotonic() - start < 1.0
    text = str(raised.value)
    assert text.startswith(str(folder))
    assert f"{FIRST_FILE[name]} is missing, for data = '{name}'" in text
    assert "set data-dir" in text
    assert "download = true" in text
    assert ("apt-get install dataset-fashion-mnist" in text) == (name == "fashion-mnist")


def test_one_missing_file_of_four_is_named(tmp_path):
    writers.write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/t10k-labels-idx1-ubyte is missing"):
        load_images("mnist", data_dir=tmp_path)


def test_a_file_in_place_of_the_folder_is_a_missing_file(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.touch()
    with pytest.raises(FileNotFoundError, match=rf"{path}/.* is missing"):
        load_images("mnist", data_dir=path)


# ------------------------------------------------------------------ fetching
class FakeTorchvision:
    """Writes the files that torchvision would fetch, and remembers having been asked."""

    def __init__(self):
        self.calls = []
        self.datasets = SimpleNamespace(
            MNIST=self.fetcher("MNIST/raw", writers.write_idx),
            FashionMNIST=self.fetcher("FashionMNIST/raw", writers.write_idx),
            CIFAR10=self.fetcher("cifar-10-batches-py", writers.write_cifar),
        )

    def fetcher(self, below, write):
        def fetch(root, *, train, download):
            self.calls.append((root, below, download))
            write(Path(root) / below)

        return fetch


@pytest.fixture
def torchvision(monkeypatch):
    fake = FakeTorchvision()
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    return fake


@pytest.mark.parametrize("name", FIRST_FILE)
def test_files_are_fetched_when_asked(name, tmp_path, torchvision):
    images = load_images(name, data_dir=tmp_path, download=True)
    assert len(images.train_images)
    ((root, _, download),) = torchvision.calls
    assert root == str(tmp_path)
    assert download is True


def test_files_are_fetched_to_the_usual_place(tmp_path, torchvision):
    load_images("mnist", download=True)
    assert torchvision.calls == [(str(tmp_path / "fetched"), "MNIST/raw", True)]
    load_images("mnist", download=False)


@pytest.mark.parametrize("name", FIRST_FILE)
def test_nothing_is_fetched_unasked(name, tmp_path, torchvision):
    with pytest.raises(FileNotFoundError):
        load_images(name, data_dir=tmp_path)
    assert not torchvision.calls


def test_nothing_is_fetched_that_is_there(tmp_path, torchvision):
    writers.write_idx(tmp_path)
    load_images("mnist", data_dir=tmp_path, download=True)
    assert not torchvision.calls


def test_a_broken_file_is_not_fetched_again(tmp_path, torchvision):
    writers.write_idx(tmp_path)
    (tmp_path / FIRST_FILE["mnist"]).write_bytes(b"broken")
    with pytest.raises(ValueError, match="must be an IDX file"):
        load_images("mnist", data_dir=tmp_path, download=True)
    assert not torchvision.calls


def test_fetching_without_torchvision_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"torchvision: pip install 'flwr-sdp\[tasks\]'"):
        load_images("mnist", data_dir=tmp_path, download=True)


def test_every_name_is_made_or_read():
    assert set(DATA) == {
        "mnist",
        "fashion-mnist",
        "cifar10",
        "image-folder",
        "digits-28",
        "synthetic-cifar",
        "synthetic-imagenet",
        "synthetic-flickr",
    }
