"""Classifying images: what the tasks have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.images import Images, Labels, Pixels
from simulations.data.partition import partition
from simulations.data.preparation import Prepare
from simulations.models.device import device
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
    """

    def __init__(
        self,
        settings: TaskSettings,
        images: Images,
        *,
        build: Callable[[], nn.Module],
        prepare: Prepare,
        shuffled: bool = False,
    ) -> None:
        self.data_name = images.name
        self._seed = settings.seed
        self._training = settings.training
        self._build = build
        self._prepare = prepare
        self._partition = partition(settings, images.train_labels, shuffled=shuffled)
        self._train = _Examples(images.train_images, images.train_labels)
        self._test = _Examples(images.test_images, images.test_labels)
        self._network = SharedNetwork(build)

    def initial_model(self) -> ArrayRecord:
        """Return the untrained network; the seed decides its weights."""
        return dump(seeded(self._build, self._seed))

    def local_update(self, model: ArrayRecord, *, client: int, server_round: int) -> ArrayRecord:
        """Return `model` after local training on one client's images; as it is without any."""
        indices = self._partition.examples(client, server_round)
        if not len(indices):
            return model
        rng = seeded_generator(self._seed, "training", server_round, client)
        images, labels = self._train.taken(indices)
        network = self._network.become(model)
        train(network, self._prepare(images, rng), labels, self._training, rng)
        return dump(network)

    def evaluate(self, model: ArrayRecord) -> dict[str, float]:
        """Return accuracy and loss on the images that no client holds."""
        network = self._network.become(model).eval()
        correct, loss = 0, 0.0
        with torch.no_grad():
            for images, labels in self._test.batches(_EVALUATED_AT_ONCE):
                scores = network(self._prepare(images, None))
                correct += int((scores.argmax(dim=1) == labels).sum())
                loss += len(labels) * float(nn.functional.cross_entropy(scores, labels))
        count = len(self._test.labels)
        return {"accuracy": correct / count, "loss": loss / count}


class _Examples:
    """Images and labels on the device: bytes, which are a quarter of what a network takes."""

    def __init__(self, images: Pixels, labels: Labels) -> None:
        self.images = torch.from_numpy(images.copy()).to(device())
        self.labels = torch.from_numpy(labels.copy()).to(device())

    def taken(self, indices: NDArray[np.intp]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return those at `indices`."""
        chosen = torch.from_numpy(indices).to(self.images.device)
        return self.images[chosen], self.labels[chosen]

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield all of them in order."""
        return zip(torch.split(self.images, size), torch.split(self.labels, size), strict=True)
