"""No text quotes what was to be privatized: Flower sends that of an error to the server.

Every public call that is given data is made to fail with data of two kinds of digits. All that the
two failures say, down to their causes, notes, warnings and log records, must be the same.
"""

import io
import itertools
import logging
import pickle
import traceback
import warnings
from array import array
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from flwr_sdp import (
    PrivUnit,
    PrivUnitInfinity,
    ScalarDP,
    ScalarRelDP,
    SeparatedBudget,
    SeparatedMechanism,
    npy,
    seeded_generator,
)
from flwr_sdp.clients import privatize_update
from flwr_sdp.clients.update import UpdateLayout
from flwr_sdp.released import Selection
from simulations.data import array_pickle, cifar, idx, image_folder
from simulations.data.text.comments import read_comments
from simulations.data.text.text_files import lines
from simulations.data.text.vocabulary import Vocabulary

torch = pytest.importorskip("torch")

SECRETS = (0.7310585786300049, 0.88079707797788)
DIGITS = ("731", "880", "881")
DIM = 10
BUDGET = SeparatedBudget(epsilon_direction=1.0, epsilon_magnitude=1.0)


def vector(secret, *values):
    """Return a vector of the secret, in which the last coordinates are others."""
    array = np.full(DIM, secret)
    array[DIM - len(values) :] = values
    return array


ARRAYS = {
    "not a unit": vector,
    "beyond the cube": lambda s: vector(s, 1.0 + s, -2.0 - s),
    "NaN": lambda s: vector(s, np.nan),
    "infinite": lambda s: vector(s, np.inf, -np.inf),
    "huge": lambda s: vector(s) * 1e300,
    "float32": lambda s: vector(s, np.nan).astype(np.float32),
    "long doubles": lambda s: vector(s).astype(np.longdouble) * np.longdouble("1e4000"),
    "rows": lambda s: np.stack([vector(s), vector(s, np.nan)]),
    "shape": lambda s: vector(s).reshape(1, 1, DIM),
    "complex": lambda s: vector(s).astype(complex),
    "objects": lambda s: vector(s).astype(object),
    "masked": lambda s: np.ma.masked_array(vector(s), mask=vector(s) > 2.0),
    "texts": lambda s: vector(s).astype(str),
    "texts of any length": lambda s: np.array([repr(s)] * DIM),
    "bytes": lambda s: np.array([repr(s).encode()] * DIM),
    "fields": lambda s: np.zeros(DIM, dtype=[(f"x{s}", float)]),
    "scalar": lambda s: np.array(s),
    "tensor": lambda s: torch.tensor(vector(s, np.nan)),
    "complex tensor": lambda s: torch.tensor(vector(s)).to(torch.complex64),
    "sparse tensor": lambda s: torch.tensor(vector(s)).to_sparse(),
}
CONTAINERS = {
    "list": lambda s: [s] * DIM,
    "list of arrays": lambda s: [vector(s)],
    "tuple": lambda s: (s, s),
    "dict": lambda s: {"weight": s},
    "dict of arrays": lambda s: {"weight": vector(s)},
    "set": lambda s: {s},
    "bytes": lambda s: repr(s).encode(),
    "array of Python": lambda s: array("d", [s] * DIM),
    "long text": lambda s: repr([s] * DIM),
}
OTHERS = {
    **CONTAINERS,
    "text": repr,
    "complex": lambda s: complex(s, s),
    "decimal": lambda s: Decimal(repr(s)),
    "negative": lambda s: -s,
    "fraction": lambda s: Fraction(repr(s)) * 10**400,
    "integer": lambda s: int(repr(s)[2:]) * 10**400,
    "negative integer": lambda s: -int(repr(s)[2:]),
}

DIRECTION, CUBE = PrivUnit.from_epsilon(DIM, 1.0), PrivUnitInfinity.from_epsilon(DIM, 1.0)
SCALAR, RELATIVE = ScalarDP.from_epsilon(1.0, 1.0), ScalarRelDP.from_epsilon(1.0, 1.0)
PRODUCT = SeparatedMechanism(direction=DIRECTION, magnitude=SCALAR)


def update_of(data):
    return privatize_update(data, budget=BUDGET, max_norm=1.0)


CALLS = {
    "PrivUnit.privatize": DIRECTION.privatize,
    "PrivUnitInfinity.privatize": CUBE.privatize,
    "PrivUnitInfinity.expected_squared_error": CUBE.expected_squared_error,
    "ScalarDP.privatize": SCALAR.privatize,
    "ScalarDP.variance": SCALAR.variance,
    "ScalarRelDP.privatize": RELATIVE.privatize,
    "ScalarRelDP.variance": RELATIVE.variance,
    "ScalarRelDP.mean_squared_error": RELATIVE.mean_squared_error,
    "SeparatedMechanism.privatize": PRODUCT.privatize,
    "SeparatedMechanism.expected_squared_error": PRODUCT.expected_squared_error,
    "privatize_update": update_of,
    "privatize_update, list": lambda data: update_of([np.zeros(3), data]),
    "privatize_update, dict": lambda data: update_of({"weight": np.zeros(3), "bias": data}),
}
# Data in the place of a setting, as when arguments are swapped: the call, and the setting.
SWAPPED = {
    "PrivUnit.from_epsilon, dim": lambda data: PrivUnit.from_epsilon(data, data),
    "PrivUnit, rule": lambda data: PrivUnit.from_epsilon(DIM, 1.0, rule=data),
    "PrivUnitInfinity, epsilon_flip": lambda data: PrivUnitInfinity(
        dim=DIM, agreement_threshold=2, epsilon_flip=data
    ),
    "ScalarDP, max_norm": lambda data: ScalarDP.from_epsilon(1.0, data),
    "ScalarRelDP, accuracy": lambda data: ScalarRelDP.from_epsilon(1.0, 1.0, accuracy=data),
    "SeparatedBudget, epsilon": lambda data: SeparatedBudget.from_total(data),
    "SeparatedMechanism, direction": lambda data: SeparatedMechanism(
        direction=data, magnitude=SCALAR
    ),
    "SeparatedMechanism, magnitude": lambda data: SeparatedMechanism(
        direction=DIRECTION, magnitude=data
    ),
    "SeparatedMechanism.from_budget, budget": lambda data: SeparatedMechanism.from_budget(
        DIM, data, data
    ),
    "privatize_update, budget": lambda data: privatize_update([data], budget=data, max_norm=1.0),
    "privatize_update, max_norm": lambda data: privatize_update(
        [np.zeros(3)], budget=BUDGET, max_norm=data
    ),
    "rng": lambda data: SCALAR.privatize(0.5, data),
    "threads": lambda data: PRODUCT.privatize(np.zeros(DIM), threads=data),
    "seeded_generator, a seed or key": lambda data: seeded_generator(1, data),
    "Selection, trainable": lambda data: Selection(trainable=[data]),
    "Selection, excluded": lambda data: Selection(excluded=["w", data]),
    "Selection, tied": lambda data: Selection(tied=data),
}


def sent(data, dtype="float64"):
    """Return an array as Flower sends it."""
    if isinstance(data, np.ndarray):
        file = io.BytesIO()
        np.save(file, np.asarray(data))
        data = file.getvalue()
    return SimpleNamespace(dtype=dtype, stype="numpy.ndarray", data=data)


def difference(data, dtype="float64"):
    """Take the received model away from a trained one, as the mod does."""
    received = {"weight": sent(np.zeros(DIM))}
    formats = npy.formats_of(received)
    layout = UpdateLayout(
        received=received,
        formats=formats,
        released=("weight",),
        tied={},
        dtype=np.dtype(np.float32),
    )
    return layout.difference({"weight": sent(data, dtype)})


def broken(secret, cut):
    """Return the bytes of an array whose header has the secret in it."""
    text = f"{{'descr': {secret}, 'shape': ({secret},)}}".encode()
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    return header[:cut] if cut > 0 else repr(secret).encode() * 20


def failure(call, make, secret, caplog):
    """Return all texts of a failure, or an empty one if the call does not fail."""
    caplog.clear()
    data, texts = make(secret), ""
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            call(data)
        except Exception as error:
            texts = "\n".join(texts_of(error))
    texts += "\n".join([str(warning.message) for warning in caught] + caplog.messages)
    return texts


def texts_of(error):
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        # Without the lines of the code, and not hidden by `from None`.
        yield from traceback.format_exception_only(error)
        error = error.__cause__ or error.__context__


def check(call, make, caplog):
    first, second = (failure(call, make, secret, caplog) for secret in SECRETS)
    assert first == second
    assert not any(digits in text for digits in DIGITS for text in (first, second))
    return first


@pytest.mark.parametrize("name", CALLS)
def test_data(name, caplog):
    said = [check(CALLS[name], make, caplog) for make in (*ARRAYS.values(), *OTHERS.values())]
    assert sum(map(bool, said)) > len(said) / 2


@pytest.mark.parametrize("name", SWAPPED)
def test_data_in_the_place_of_a_setting(name, caplog):
    """Numbers and short texts are settings, and quoted; the text names which one is wrong."""
    field = name.rpartition(", ")[2]
    for what, make in {**ARRAYS, **CONTAINERS}.items():
        said = check(SWAPPED[name], make, caplog)
        is_setting = what == "long text" and field in ("a seed or key", "trainable", "excluded")
        assert is_setting or said.startswith(f"{field} must "), (what, said)


FILES = {
    "array_pickle, texts": (array_pickle.load, lambda s: pickle.dumps(repr(s))[:-4]),
    "array_pickle, floats": (array_pickle.load, lambda s: pickle.dumps(vector(s))),
    "array_pickle, names": (array_pickle.load, lambda s: f"cos\nname{s}\n.".encode()),
    "array_pickle, dtype": (array_pickle.load, lambda s: f"cnumpy\ndtype\n(V{s}\ntR.".encode()),
    "cifar, keys": (cifar.read_batch, lambda s: pickle.dumps({repr(s): 1, "data": 2})),
    "cifar, data": (cifar.read_batch, lambda s: pickle.dumps({"data": s, "labels": s})),
    "idx, magic": (lambda path: idx.read(path, 1), lambda s: repr(s).encode()[2:] * 9),
    "idx, size": (
        lambda path: idx.read(path, 1),
        lambda s: b"\0\0\x08\x01" + int(s * 1e6).to_bytes(4, "big") + b"1",
    ),
    "idx, gz": (lambda path: idx.read(path, 1), lambda s: repr(s).encode()[2:] * 9),
    "image": (lambda path: image_folder.read_image(path, 8), lambda s: repr(s).encode() * 9),
    "lines": (lambda path: list(lines(path)), lambda s: repr(s).encode() + b"\xff"),
    "lines, gz": (lambda path: list(lines(path)), lambda s: repr(s).encode()[2:] * 9),
    "lines, bz2": (lambda path: list(lines(path)), lambda s: repr(s).encode() * 9),
    "lines, xz": (lambda path: list(lines(path)), lambda s: repr(s).encode() * 9),
    "comments": (lambda path: read_comments([path]), lambda s: repr(s).encode() + b"x"),
    "comments, number": (lambda path: read_comments([path]), lambda s: repr(s).encode() * 999),
    "vocabulary, other": (Vocabulary.load, lambda s: f"{s}\n".encode()),
    "vocabulary, bytes": (Vocabulary.load, lambda s: repr(s).encode() + b"\xff"),
    "vocabulary, space": (Vocabulary.load, lambda s: SPECIAL_LINES + f"{s} {s}\n".encode()),
    "vocabulary, twice": (Vocabulary.load, lambda s: SPECIAL_LINES + f"{s}\n{s}\n".encode()),
    "vocabulary, cut": (Vocabulary.load, lambda s: SPECIAL_LINES + repr(s).encode()),
}
SPECIAL_LINES = b"<s>\n</s>\n<unk>\n"


@pytest.mark.parametrize("name", FILES)
def test_files_of_data(name, caplog, tmp_path):
    """Of a file that cannot be read its path is named, and nothing of what is in it."""
    read, make = FILES[name]
    path = tmp_path / f"data.{name.rpartition(' ')[2]}"

    def load(data):
        path.write_bytes(data)
        read(path)

    assert check(load, make, caplog).startswith(f"{path}")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_what_an_app_replies(dtype, caplog):
    said = [
        check(lambda data: difference(data, dtype), make, caplog)
        for name, make in ARRAYS.items()
        if "tensor" not in name
    ]
    assert sum(map(bool, said)) >= 6
    for read, cut in itertools.product((difference, npy.read), (-1, 7, 9, 20, 10_000)):
        assert check(read, lambda secret, cut=cut: broken(secret, cut), caplog)


def test_the_comparison_has_power(caplog):
    """It sees a value in a text, its norm, its length, and its digits in a cause or a log."""

    def hidden(data):
        try:
            raise KeyError(repr(data))
        except KeyError:
            raise ValueError("no number") from None

    def logged(data):
        logging.getLogger("flwr_sdp.device").warning("got %s", data)
        raise ValueError("no number")

    def said(text):
        def call(data):
            raise ValueError(text(data))

        return call

    texts = [repr, np.linalg.norm, max, lambda data: np.array([repr(float(data[0]))]).dtype]
    for call in (hidden, logged, *map(said, texts)):
        with pytest.raises(AssertionError):
            check(call, lambda secret: vector(secret, 2.0 * secret), caplog)
