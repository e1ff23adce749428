"""Classifying images: what the tasks have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.images import Images
from simulations.data.partition import partition
from simulations.data.preparation import Prepare
from simulations.models.device import device
from simulations.models.examples import Examples, FeatureExamples, ImageExamples
from simulations.models.local_training import train
from simulations.models.shared_network import SharedNetwork
from simulations.models.torch_model import dump, seeded
from simulations.tasks.task import TaskSettings

_EVALUATED_AT_ONCE = 500


class Classification:
    """A network that classifies images; see :class:`simulations.tasks.task.Task`.

    The data and one network stay in the process, on the GPU if there is one, and serve all clients
    that are simulated there. Each starts from the model it is given and leaves nothing to the next.

    Parameters
    ----------
    settings : TaskSettings
        What the run says.
    images : Images
        The data.
    build : callable
        Makes the network. Its weights are drawn from torch's global generator, which is seeded.
    prepare : callable
        From images to inputs, see :mod:`simulations.data.preparation`.
    shuffled : bool
        Whether the training set is in a random order of the run already.
    trunk : Module, optional
        Frozen layers below the network, which then takes what they make of an image.
    top : int, optional
        How many guesses ``top-<top>-accuracy`` allows; without it there is no such metric.
    """

    def __init__(
        self,
        settings: TaskSettings,
        images: Images,
        *,
        build: Callable[[], nn.Module],
        prepare: Prepare,
        shuffled: bool = False,
        trunk: nn.Module | None = None,
        top: int | None = None,
    ) -> None:
        self.data_name = images.name
        self.metrics = () if top is None else (f"top-{top}-accuracy",)
        self._seed = settings.seed
        self._training = settings.training
        self._build: Callable[[], nn.Module] = partial(seeded, build, settings.seed)
        self._partition = partition(settings, images.train_labels, shuffled=shuffled)
        self._train: Examples = ImageExamples(images.train_images, images.train_labels, prepare)
        self._test: Examples = ImageExamples(images.test_images, images.test_labels, prepare)
        if trunk is not None:
            trunk = trunk.to(device()).eval()
            self._train = FeatureExamples(self._train, trunk)
            self._test = FeatureExamples(self._test, trunk)
        self._top = top
        self._network = SharedNetwork(self._build)

    def initial_model(self) -> ArrayRecord:
        """Return what is trained of the network, as it is before; the seed decides its weights."""
        return dump(self._build())

    def save(self, folder: Path) -> None:
        """Write nothing: the arrays are all there is to a model."""

    def local_update(self, model: ArrayRecord, *, client: int, server_round: int) -> ArrayRecord:
        """Return `model` after local training on one client's images; as it is without any."""
        indices = self._partition.examples(client, server_round)
        if not len(indices):
            return model
        rng = seeded_generator(self._seed, "training", server_round, client)
        inputs = self._train.inputs(indices, rng)
        labels = self._train.labels[torch.from_numpy(indices).to(inputs.device)]
        network = self._network.become(model)
        train(network, inputs, labels, self._training, rng)
        return dump(network)

    def evaluate(self, model: ArrayRecord) -> dict[str, float]:
        """Return accuracy and loss on the images that no client holds, and `metrics`."""
        return scores(self._network.become(model), self._test, top=self._top)


def scores(network: nn.Module, examples: Examples, *, top: int | None = None) -> dict[str, float]:
    """Return how well a network classifies.

    Parameters
    ----------
    network : Module
        On the device; is put in evaluation mode.
    examples : Examples
        With what to try it.
    top : int, optional
        For ``top-<top>-accuracy``: the share of examples whose class is among the `top` classes of
        the largest scores.
    """
    network.eval()
    count = len(examples.labels)
    correct, near, loss = 0, 0, 0.0
    with torch.no_grad():
        for start in range(0, count, _EVALUATED_AT_ONCE):
            indices = np.arange(start, min(start + _EVALUATED_AT_ONCE, count))
            labels = examples.labels[start : start + len(indices)]
            found = network(examples.inputs(indices, None))
            correct += int((found.argmax(dim=1) == labels).sum())
            loss += len(labels) * float(nn.functional.cross_entropy(found, labels))
            if top is not None:
                guesses = found.topk(min(top, found.shape[1]), dim=1).indices
                near += int((guesses == labels[:, None]).sum())
    result = {"accuracy": correct / count, "loss": loss / count}
    if top is not None:
        result[f"top-{top}-accuracy"] = near / count
    return result
