"""Refitting a pretrained ResNet-50 v2: what is sent, what is frozen, and where it comes from."""

import json
import re

import numpy as np
import pytest
import torch

from simulations.data import sources
from simulations.data.synthetic import synthetic_flickr, synthetic_imagenet
from simulations.models import examples
from simulations.models.resnet50_v2 import ResNet50V2
from simulations.models.torch_model import seeded
from simulations.models.weights import load_weights, save_weights
from simulations.pretraining.settings import PretrainSettings
from simulations.tasks import DataSettings, LocalTraining, ModelSettings, TaskSettings, load_task
from simulations.tasks.flickr import pretrain
from tests.messages import flat, numpy_dict
from tests.simulations.data import writers

REFITTED = {"convolution.weight", "convolution.bias", "scores.weight", "scores.bias"}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few images: a trunk sees hundreds a second, and no more."""
    monkeypatch.setitem(sources._MADE, "synthetic-flickr", lambda: synthetic_flickr(600, 40))
    monkeypatch.setitem(sources._MADE, "synthetic-imagenet", lambda: synthetic_imagenet(600, 40))
    monkeypatch.setattr(examples, "_AT_ONCE", 8)
    load_task.cache_clear()
    yield
    load_task.cache_clear()


def settings(weights=None, **changes):
    return TaskSettings(
        **{
            "num_clients": 50,
            "seed": 1,
            "partition": "fresh",
            "examples_per_client": 8,
            "training": LocalTraining(steps=2, learning_rate=0.5),
            "model": ModelSettings(weights=weights),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Return a folder of weights that are unlike those of any seed here."""
    folder = tmp_path_factory.mktemp("weights")
    network = seeded(lambda: ResNet50V2(12), 99)
    with torch.no_grad():
        network.top.norm.running_mean.fill_(-0.25)
    save_weights(network.state_dict(), folder, {"data": "photographs"})
    return folder


# ------------------------------------------------------------------ what is sent
def test_the_model_has_the_size_of_the_papers(weights):
    for folder in (None, weights):
        model = load_task("flickr", settings(folder)).initial_model()
        assert set(model) == REFITTED
        assert flat(model).size == 1_255_524


def test_figures_say_what_the_model_has_seen(weights):
    assert load_task("flickr", settings()).data_name == "synthetic-flickr, untrained backbone"
    assert (
        load_task("flickr", settings(weights)).data_name
        == "synthetic-flickr, pretrained on photographs"
    )


def test_a_refit_starts_from_the_weights_and_a_new_softmax(weights):
    """The convolution is that of the file for all seeds, the softmax the seed's for all files."""
    state, _ = load_weights(weights)
    first, other = (
        numpy_dict(load_task("flickr", settings(weights, seed=seed)).initial_model())
        for seed in (1, 2)
    )
    for name in ("convolution.weight", "convolution.bias"):
        np.testing.assert_array_equal(first[name], state[f"top.{name}"].numpy())
        np.testing.assert_array_equal(first[name], other[name])
    assert np.any(first["scores.weight"] != other["scores.weight"])
    again = numpy_dict(load_task("flickr", settings(weights)).initial_model())
    np.testing.assert_array_equal(first["scores.weight"], again["scores.weight"])


# ------------------------------------------------------------------ training and evaluation
def test_a_client_refits_the_same_wherever_it_is_simulated(weights):
    """In a fresh process with nothing computed yet, and after others; differently elsewhere."""
    task = load_task("flickr", settings(weights))
    model = task.initial_model()
    for client in (5, 6):
        task.local_update(model, client=client, server_round=1)
    updates = [
        flat(task.local_update(model, client=client, server_round=server_round))
        for client, server_round in ((3, 1), (3, 1), (4, 1), (3, 2))
    ]
    load_task.cache_clear()
    alone = load_task("flickr", settings(weights))
    moved = flat(alone.local_update(model, client=3, server_round=1))
    np.testing.assert_array_equal(updates[0], updates[1])
    np.testing.assert_array_equal(updates[0], moved)
    assert np.any(updates[0] != updates[2])
    assert np.any(updates[0] != updates[3])
    assert np.linalg.norm(moved - flat(model)) > 1e-3


def test_update_is_that_of_the_whole_network(weights):
    """All of it in one piece, with the normalisation in evaluation mode, step by step."""
    task = load_task("flickr", settings(weights))
    model = task.initial_model()
    found = numpy_dict(task.local_update(model, client=3, server_round=1))
    state, _ = load_weights(weights)
    network = ResNet50V2(100).eval()
    state |= {f"top.{name}": torch.from_numpy(value) for name, value in numpy_dict(model).items()}
    network.load_state_dict(state)
    chosen = task._partition.examples(3, 1)
    images = synthetic_flickr(600, 1)
    inputs = torch.from_numpy(images.train_images[chosen].transpose(0, 3, 1, 2) / 127.5 - 1).float()
    labels = torch.from_numpy(images.train_labels[chosen])
    refitted = [network.get_parameter(f"top.{name}") for name in sorted(REFITTED)]
    optimizer = torch.optim.SGD(refitted, lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    for name, value in found.items():
        expected = network.get_parameter(f"top.{name}").detach().numpy()
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-5)


def test_scores_are_those_of_the_whole_network(weights):
    task = load_task("flickr", settings(weights))
    model = task.local_update(task.initial_model(), client=0, server_round=1)
    found = task.evaluate(model)
    assert task.metrics == ("top-5-accuracy",)
    assert set(found) == {"accuracy", "loss", "top-5-accuracy"}
    state, _ = load_weights(weights)
    state |= {f"top.{name}": torch.from_numpy(value) for name, value in numpy_dict(model).items()}
    network = ResNet50V2(100).eval()
    network.load_state_dict(state)
    images = synthetic_flickr(1, 40)
    inputs = torch.from_numpy(images.test_images.transpose(0, 3, 1, 2) / 127.5 - 1).float()
    labels = torch.from_numpy(images.test_labels)
    with torch.no_grad():
        scores = network(inputs)
    loss = float(torch.nn.functional.cross_entropy(scores, labels))
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    best = scores.topk(5, dim=1).indices
    assert found["top-5-accuracy"] == pytest.approx(
        float((best == labels[:, None]).any(dim=1).double().mean())
    )


def test_frozen_layers_are_used_and_stay_as_they_are(weights):
    """A mean of the frozen normalisation decides the scores, before and after training."""
    task = load_task("flickr", settings(weights))
    model = task.initial_model()
    before = task.evaluate(model)
    task.local_update(model, client=0, server_round=1)
    assert task.evaluate(model) == before
    assert float(task._network.become(model).norm.running_mean.max()) == -0.25


def test_refitting_lowers_the_loss_of_a_clients_images(weights):
    training = LocalTraining(steps=20, learning_rate=0.001, optimizer="adam")
    task = load_task("flickr", settings(weights, partition="sampled", training=training))
    chosen = task._partition.examples(0, 1)

    def loss(model):
        network = task._network.become(model).eval()
        with torch.no_grad():
            scores = network(task._train.inputs(chosen, None))
            return float(torch.nn.functional.cross_entropy(scores, task._train.labels[chosen]))

    model = task.initial_model()
    after = loss(task.local_update(model, client=0, server_round=1))
    assert after < 0.6 * loss(model)


def test_images_of_a_folder_are_refitted_on(tmp_path):
    """Real files, of as many classes as there are, in the size that the run asks for."""
    folder = tmp_path / "pictures"
    writers.write_image_folder(folder, count=5, ending="jpg")
    task = load_task(
        "flickr",
        settings(
            data=DataSettings(name="image-folder", folder=folder, image_size=64),
            examples_per_client=4,
        ),
    )
    assert task._train.inputs(np.arange(1), None).shape == (1, 2560, 2, 2)  # 64 / 32 places
    assert task.data_name == "image-folder pictures, untrained backbone"
    model = task.initial_model()
    assert model["scores.weight"].shape == (3, 2048)
    moved = task.local_update(model, client=0, server_round=1)
    assert np.any(flat(moved) != flat(model))
    assert task.evaluate(moved)["top-5-accuracy"] == 1.0


# ------------------------------------------------------------------ pretraining
def test_pretrained_weights_are_what_a_refit_starts_from(tmp_path):
    """The whole network learns, and is left with facts about it."""
    folder = tmp_path / "weights"
    config = {"task": "flickr", "steps": 2, "batch-size": 8, "evaluate-every": 1}
    pretrain(PretrainSettings.from_config(config), folder)
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["data"] == "synthetic-imagenet"
    assert facts["classes"] == 100
    assert 0.0 <= facts["accuracy"] <= facts["top-5-accuracy"] <= 1.0
    state, _ = load_weights(folder)
    start = seeded(lambda: ResNet50V2(100), 0).state_dict()
    assert all(
        not torch.equal(start[name], tensor)
        for name, tensor in state.items()
        if name.endswith(("weight", "running_mean"))
    )
    task = load_task("flickr", settings(folder))
    assert task.data_name == "synthetic-flickr, pretrained on synthetic-imagenet"
    np.testing.assert_array_equal(
        task.initial_model()["convolution.weight"].numpy(), state["top.convolution.weight"].numpy()
    )


# ------------------------------------------------------------------ what is refused
def test_weights_of_another_layout_are_refused(tmp_path):
    state = ResNet50V2(3).state_dict()
    state["trunk.stem.0.weight"] = torch.zeros(64, 3, 3, 3)
    save_weights(state, tmp_path, {})
    with pytest.raises(
        ValueError, match=r"not of this network: 'trunk.stem.0.weight' has the shape"
    ):
        load_task("flickr", settings(tmp_path))
    save_weights({"lstm.weight": torch.zeros(3)}, tmp_path, {})
    with pytest.raises(ValueError, match=r"not of this network: only the file has 'lstm.weight'"):
        load_task("flickr", settings(tmp_path))


def test_weights_that_are_missing_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(str(tmp_path))}/.* is missing"):
        load_task("flickr", settings(tmp_path / "nowhere"))


def test_there_is_no_download(tmp_path):
    message = r"download must be false for task = 'flickr'"
    pretraining = PretrainSettings.from_config({"task": "flickr", "steps": 1, "download": True})
    with pytest.raises(ValueError, match=message):
        load_task("flickr", settings(data=DataSettings(download=True)))
    with pytest.raises(ValueError, match=message):
        pretrain(pretraining, tmp_path)


def test_data_of_another_task_is_refused(tmp_path):
    config = {"task": "flickr", "steps": 1, "data": "synthetic-flickr"}
    pretraining = PretrainSettings.from_config(config)
    with pytest.raises(ValueError, match=r"data must be one of 'synthetic-flickr', 'image-folder'"):
        load_task("flickr", settings(data=DataSettings(name="mnist")))
    with pytest.raises(ValueError, match=r"data must be one of 'synthetic-imagenet'"):
        pretrain(pretraining, tmp_path)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(str(tmp_path))}/nowhere is missing"):
        load_task(
            "flickr", settings(data=DataSettings(name="image-folder", folder=tmp_path / "nowhere"))
        )
