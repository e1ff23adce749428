"""The paper's two image tasks: with their stand-ins, from files, and with wrong paths."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from simulations.data import files
from simulations.data.sources import _FASHION_MNIST
from simulations.tasks import DataSettings, LocalTraining, TaskSettings, load_task
from tests.messages import flat
from tests.simulations.data import writers

STAND_INS = [
    pytest.param(
        "mnist",
        "",
        "fashion-mnist",
        3_274_634,
        marks=pytest.mark.skipif(
            not (_FASHION_MNIST.installed or Path()).is_dir(),
            reason="needs the Debian package dataset-fashion-mnist",
        ),
    ),
    ("mnist", "digits-28", "digits-28", 3_274_634),
    ("cifar10", "", "synthetic-cifar", 1_068_298),
]


def settings(**changes):
    return TaskSettings(
        **{
            "num_clients": 100,
            "seed": 1,
            "partition": "fresh",
            "examples_per_client": 8,
            "training": LocalTraining(steps=1, learning_rate=0.1),
            **changes,
        }
    )


@pytest.mark.parametrize(("name", "data", "data_name", "dim"), STAND_INS)
def test_a_client_takes_a_step_on_the_stand_in(name, data, data_name, dim):
    """The loss of its own images falls, the same on a second try and differently elsewhere."""
    task = load_task(name, settings(data=DataSettings(name=data)))
    assert task.data_name == data_name
    model = task.initial_model()
    start = flat(model)
    assert start.size == dim
    moved = flat(task.local_update(model, client=3, server_round=1)) - start
    again = flat(task.local_update(model, client=3, server_round=1)) - start
    later = flat(task.local_update(model, client=3, server_round=2)) - start
    other = flat(task.local_update(model, client=4, server_round=1)) - start
    assert 1e-4 < np.linalg.norm(moved) < 5.0
    np.testing.assert_array_equal(moved, again)
    assert np.any(moved != later)
    assert np.any(moved != other)


@pytest.mark.parametrize(("name", "data"), [("mnist", "mnist"), ("cifar10", "cifar10")])
def test_real_files_are_trained_on_and_evaluated(name, data, tmp_path):
    """A handful of images in the true formats."""
    write = writers.write_idx if name == "mnist" else writers.write_cifar
    write(tmp_path)
    task = load_task(name, settings(data=DataSettings(name=data, folder=tmp_path)))
    assert task.data_name == data
    model = task.local_update(task.initial_model(), client=0, server_round=1)
    scores = task.evaluate(model)
    assert 0.0 <= scores["accuracy"] <= 1.0
    assert scores["loss"] > 0.0


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_training_fits_a_few_images(name, tmp_path):
    """All of a client's 8 images, after 40 steps."""
    task = load_task(
        name,
        settings(
            data=DataSettings(name={"mnist": "digits-28", "cifar10": "synthetic-cifar"}[name]),
            partition="sampled",
            training=LocalTraining(steps=40, learning_rate=0.001, optimizer="adam"),
        ),
    )
    model = task.local_update(task.initial_model(), client=0, server_round=1)
    chosen = task._partition.examples(0, 1)
    network = task._network.become(model).eval()
    with torch.no_grad():
        scores = network(task._train.inputs(chosen, None))
    assert int((scores.argmax(dim=1) == task._train.labels[chosen]).sum()) >= 7


@pytest.mark.parametrize(
    ("name", "data", "file"),
    [
        ("mnist", "", "train-images-idx3-ubyte"),
        ("mnist", "fashion-mnist", "train-images-idx3-ubyte"),
        ("mnist", "mnist", "train-images-idx3-ubyte"),
        ("cifar10", "cifar10", "data_batch_1"),
    ],
)
def test_a_wrong_path_fails_at_once_and_names_the_file(name, data, file, tmp_path):
    start = time.monotonic()
    with pytest.raises(
        FileNotFoundError, match=rf"{tmp_path}/nowhere/.*{file} is missing.*set data"
    ):
        load_task(name, settings(data=DataSettings(name=data, folder=tmp_path / "nowhere")))
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize(
    ("name", "data"),
    [("digits", ""), ("mnist", "digits-28"), ("cifar10", ""), ("cifar10", "synthetic-cifar")],
)
def test_a_path_that_would_not_be_read_is_refused(name, data, tmp_path):
    with pytest.raises(ValueError, match=rf"data-dir must be empty .*'{tmp_path}'"):
        load_task(name, settings(data=DataSettings(name=data, folder=tmp_path)))


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_without_files_the_fix_is_said(data, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FETCHED", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"set data-dir to .* download = true"):
        load_task(data, settings(data=DataSettings(name=data)))


@pytest.mark.parametrize(("name", "data"), [("mnist", "cifar10"), ("cifar10", "mnist")])
def test_data_of_another_format_is_refused(name, data):
    with pytest.raises(ValueError, match=f"data must be one of .*; got '{data}'"):
        load_task(name, settings(data=DataSettings(name=data)))


def test_unknown_task_lists_those_there_are():
    with pytest.raises(
        ValueError, match=r"task must be one of cifar10, digits, flickr, .*mnist.*; got 'numbers'"
    ):
        load_task("numbers", settings())


def test_a_task_is_loaded_once_for_equal_settings():
    first, again = (load_task("digits", settings()) for _ in range(2))
    assert first is again
    assert load_task("digits", settings(seed=2)) is not first
