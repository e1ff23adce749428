"""Batches of CIFAR-10: read from pickles of either Python, and nothing else is run."""

import os
import pickle
import re
import warnings
from functools import partial

import numpy as np
import pytest

from simulations.data import array_pickle, cifar
from tests.simulations.data import writers

BATCHES = {
    "python 2": writers.python2_batch,
    "python 3, protocol 2": writers.python3_batch,
    "python 3, bytes as keys": partial(writers.python3_batch, keys=str.encode),
    "python 3, protocol 4": partial(writers.python3_batch, protocol=4),
    "python 3, protocol 5": partial(writers.python3_batch, protocol=5),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_images_and_labels_come_back(tmp_path, batch):
    written = writers.write_cifar(tmp_path, batch)
    images = cifar.read_images(tmp_path, "some")
    train = written[:5]
    np.testing.assert_array_equal(images.train_images, np.concatenate([i for i, _ in train]))
    np.testing.assert_array_equal(images.train_labels, np.concatenate([y for _, y in train]))
    np.testing.assert_array_equal(images.test_images, written[5][0])
    np.testing.assert_array_equal(images.test_labels, written[5][1])
    assert images.train_images.shape == (20, 32, 32, 3)
    assert images.train_images.dtype == np.uint8


def test_the_written_file_is_what_numpy_reads():
    """The writer of the tests, against pickle itself."""
    images, labels = writers.images_of(3, (32, 32, 3))
    with warnings.catch_warnings(action="ignore"):  # of NumPy, about its own old files
        read = pickle.loads(  # noqa: S301
            writers.python2_batch(writers.rows_of(images), labels), encoding="bytes"
        )
    np.testing.assert_array_equal(read[b"data"], writers.rows_of(images))
    assert read[b"labels"] == [0, 1, 2]


def refused(tmp_path, data, message):
    path = tmp_path / "data_batch_1"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        cifar.read_batch(path)


# ------------------------------------------------------------------ malice
class Calls:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, np.load])
def test_a_call_is_refused_and_not_made(tmp_path, protocol, function):
    witness = tmp_path / "was-here"
    argument = f"touch {witness}" if function is os.system else f"open({str(witness)!r}, 'w')"
    facts = {"data": Calls(function, argument), "labels": [1]}
    refused(tmp_path, pickle.dumps(facts, protocol=protocol), "it asks for something")
    assert not witness.exists()
    pickle.loads(  # noqa: S301
        pickle.dumps(Calls(os.system, f"touch {witness}"), protocol=protocol)
    )
    assert witness.exists()  # it would have been


@pytest.mark.parametrize(
    "name",
    ["builtins\ngetattr", "numpy\nfromfile", "numpy\nndarray.tofile", "copyreg\n_reconstructor",
     "simulations.data.array_pickle\nload", "numpy.core.multiarray\nscalar"],
)  # fmt: skip
def test_any_other_name_is_refused(tmp_path, name):
    refused(tmp_path, b"c" + name.encode() + b"\n.", "it asks for something")


def test_objects_outside_are_refused(tmp_path):
    refused(tmp_path, b"Pid\n.", "objects outside")


def test_arrays_of_objects_are_refused(tmp_path):
    array = np.array([{"a": 1}], dtype=object)
    refused(tmp_path, pickle.dumps({"data": array}, protocol=2), "not of unsigned bytes")


# ------------------------------------------------------------------ mistakes
def facts(**changes):
    images, labels = writers.images_of(3, (32, 32, 3))
    entries = {"data": writers.rows_of(images), "labels": labels.tolist(), **changes}
    return pickle.dumps({k: v for k, v in entries.items() if v is not None}, protocol=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a pickle"),
        (b"\x89PNG", "not a pickle"),
        (facts()[:-200], "not a pickle"),
        (pickle.dumps([1, 2]), "must hold a dictionary; got list"),
        (facts(labels=None), "must have an entry 'labels'; it has 1 others"),
        (facts(data=None), "must have an entry 'data'"),
        (facts(data=[1, 2, 3]), "data must be rows of 3072 unsigned bytes; got .*list"),
        (facts(data=np.zeros((3, 3071), np.uint8)), r"got uint8 \(3, 3071\)"),
        (facts(data=np.zeros((3, 3072), np.int64)), "not of unsigned bytes"),
        (facts(data=np.zeros(3072, np.uint8)), r"got uint8 \(3072,\)"),
        (facts(labels=[1, 2]), "labels must be a list with one for each of 3 images"),
        (facts(labels=[1, 2, 10]), "labels must be from 0 to 9$"),
        (facts(labels=[1, 2, -1]), "labels must be from 0 to 9$"),
        (facts(labels=[1, 2, True]), "labels must be from 0 to 9$"),
        (facts(labels=[1, 2, "3"]), "labels must be from 0 to 9$"),
    ],
)
def test_other_contents_are_refused_by_name(tmp_path, data, message):
    refused(tmp_path, data, message)


def test_a_shape_that_does_not_fit_its_bytes_is_refused(tmp_path):
    images, labels = writers.images_of(3, (32, 32, 3))
    data = writers.python2_batch(writers.rows_of(images), labels)
    width = (3072).to_bytes(4, "little")
    for wrong in (3073, 3071, -3072, 2**31 - 1):
        changed = data.replace(b"J" + width, b"J" + wrong.to_bytes(4, "little", signed=True), 1)
        refused(tmp_path, changed, "an array of a shape")


def test_a_missing_file_is_no_broken_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        array_pickle.load(tmp_path / "nowhere")
