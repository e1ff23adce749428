"""Images of 100 classes; the last layers of a pretrained ResNet-50 v2 are refitted, d = 1,255,524.

The first experiment of Bhowmick et al., arXiv:1812.00984v2, section "Pretrained models". Its
settings: 100 clients a round, each with 128 images, 15 local gradient steps; epsilon_1 of 5000,
500, 100 or 50 and epsilon_2 = 10 with r_max = 10. It refitted a network for ImageNet on images of
Flickr, which are read from an image folder. By default both are synthetic, of other classes each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from flwr_sdp import KeystreamGenerator
from simulations.data import image_folder
from simulations.data.images import Images
from simulations.data.preparation import colours
from simulations.data.sources import load_images
from simulations.models.classification import Classification, scores
from simulations.models.device import device
from simulations.models.examples import ImageExamples
from simulations.models.resnet50_v2 import ResNet50V2, Top, Trunk
from simulations.models.torch_model import seeded
from simulations.models.weights import fill, load_weights, save_weights
from simulations.pretraining import loop
from simulations.pretraining.settings import PretrainSettings
from simulations.tasks.task import TaskSettings

DATA = ("synthetic-flickr", image_folder.NAME)
"""Data sets to refit on; the first is the default."""

PRETRAINING_DATA = ("synthetic-imagenet", image_folder.NAME)
"""Data sets to pretrain on; the first is the default."""

_GUESSES = 5  # the paper's accuracy counts the best five


def task(settings: TaskSettings) -> Classification:
    """Return the task."""
    images = _images(settings, DATA)
    folder = settings.model.weights
    if folder is None:
        name = f"{images.name}, untrained backbone"
        trunk, build = seeded(Trunk, settings.seed), partial(_refitted, images.classes)
    else:
        network, data = _pretrained(folder)
        name = f"{images.name}, pretrained on {data}"
        trunk, build = network.trunk, partial(_refitted, images.classes, network.top)
    return Classification(
        settings,
        replace(images, name=name),
        build=build,
        prepare=colours,
        trunk=trunk.to(memory_format=torch.channels_last),
        top=_GUESSES,
    )


def pretrain(settings: PretrainSettings, output: Path) -> None:
    """Train the whole network on other classes; its weights go to `output`."""
    images = _images(settings, PRETRAINING_DATA)
    network = seeded(partial(ResNet50V2, images.classes), settings.seed)
    network = network.to(memory_format=torch.channels_last).to(device())
    train = ImageExamples(images.train_images, images.train_labels, colours)
    test = ImageExamples(images.test_images, images.test_labels, colours)

    def batch(rng: KeystreamGenerator) -> tuple[torch.Tensor, torch.Tensor]:
        indices = rng.integers(len(train.labels), settings.batch_size).astype("int64")
        return train.inputs(indices, rng), train.labels[torch.from_numpy(indices).to(device())]

    best = loop.pretrain(
        network,
        batch=batch,
        evaluate=partial(scores, network, test, top=_GUESSES),
        settings=settings,
        output=output,
    )
    facts = {"network": "ResNet-50 v2", "classes": images.classes, "data": images.name, **best}
    save_weights(network.state_dict(), output, facts)


def _images(settings: TaskSettings | PretrainSettings, names: tuple[str, ...]) -> Images:
    data = settings.data
    name = data.one_of(names)
    if data.download:
        raise ValueError(
            "download must be false for task = 'flickr': no images of Flickr by class are there to "
            f"be fetched (data = {image_folder.NAME!r} and data-dir read those you have)"
        )
    return load_images(name, data_dir=data.folder, seed=settings.seed, side=data.image_size)


def _pretrained(folder: Path) -> tuple[ResNet50V2, str]:
    """Return the network in a folder, and the data that it has seen."""
    state, facts = load_weights(folder)
    # Of as many classes as it was made for. The softmax layer is not used.
    network = ResNet50V2(state.get("top.scores.bias", torch.empty(1)).numel())
    fill(network, state, folder)
    return network, str(facts.get("data", folder.name))


def _refitted(classes: int, pretrained: Top | None = None) -> nn.Module:
    """Return what is refitted: a pretrained convolution, if there is one, and a new softmax."""
    network = Top(classes)
    if pretrained is not None:
        network.convolution.load_state_dict(pretrained.convolution.state_dict())
        network.norm.load_state_dict(pretrained.norm.state_dict())
    return network.fix_norm()
