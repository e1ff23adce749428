"""Small files in the formats of the data sets, written byte by byte."""

import gzip
import pickle
import struct

import numpy as np
from PIL import Image


def idx(array):
    """Return an array of bytes as an IDX file has it."""
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


def images_of(count, shape, seed=0):
    rng = np.random.default_rng([seed, count])
    return rng.integers(256, size=(count, *shape), dtype=np.uint8), np.arange(count) % 10


def write_idx(folder, *, compressed=False, train=12, test=5):
    """Write a data set of MNIST's format; return its four arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = []
    for name, count in (("train", train), ("t10k", test)):
        images, labels = images_of(count, (28, 28))
        for kind, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            data = idx(array)
            if compressed:
                (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))
            else:
                (folder / f"{name}-{kind}-ubyte").write_bytes(data)
        arrays += [images, labels]
    return arrays


# ------------------------------------------------------------------ CIFAR-10
def rows_of(images):
    """Return images as rows of a red, a green and a blue plane."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def python2_batch(rows, labels):
    """Return a batch as Python 2 pickled it, with texts that are bytes: the published files."""
    count, width = rows.shape

    def text(value):
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value):
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + b"(" + text(b"u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    array += b"(" + number(0) + b"t" + text(b"b") + b"tR"
    array += b"(" + number(1) + b"(" + number(count) + number(width) + b"t" + dtype
    array += b"\x89" + text(bytes(rows)) + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    names = b"](" + b"".join(text(b"image_%d.png" % place) for place in range(count)) + b"e"
    entries = text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + listed
    entries += text(b"data") + array + text(b"filenames") + names
    return b"\x80\x02}(" + entries + b"u."


def python3_batch(rows, labels, *, protocol=2, keys=str):
    """Return a batch as Python 3 pickles it."""
    facts = {"data": rows, "labels": [int(label) for label in labels], "batch_label": "one"}
    entries = {keys(name): value for name, value in facts.items()}
    return pickle.dumps(entries, protocol=protocol)


def write_cifar(folder, batch=python2_batch, count=4):
    """Write a data set of CIFAR-10's format; return the images and labels of each file."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    written = []
    for seed, name in enumerate(names):
        images, labels = images_of(count, (32, 32, 3), seed)
        (folder / name).write_bytes(batch(rows_of(images), labels))
        written.append((images, labels))
    return written


# ------------------------------------------------------------------ folders of images
def write_image_folder(folder, *, classes=3, count=4, side=40, ending="png"):
    """Write a folder of images for each class, each class of a colour of its own."""
    for label in range(classes):
        place = folder / f"class-{label}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            rng = np.random.default_rng([label, number])
            pixels = rng.integers(0, 60, size=(side, side + number, 3), dtype=np.uint8)
            pixels[:, :, label % 3] += np.uint8(190)
            Image.fromarray(pixels).save(place / f"image-{number}.{ending}")
