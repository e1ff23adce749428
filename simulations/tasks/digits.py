"""Handwritten digits: scikit-learn's 1,797 real 8x8 images; a 64-128-10 network, d = 9,610."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.partition import deal, permutation
from simulations.models.mlp import mlp
from simulations.models.torch_model import dump, load, seeded

HELD_OUT = 300
"""Images that no client holds, for the server's evaluation."""


class Digits:
    """The digits, dealt to clients in a random order; see :class:`simulations.tasks.task.Task`."""

    def __init__(self, *, seed: int, num_clients: int) -> None:
        images, labels = _images()
        if num_clients > len(images) - HELD_OUT:
            raise ValueError(
                f"num-clients must be <= {len(images) - HELD_OUT} for the digits task, one image "
                f"a client; got {num_clients}"
            )
        order = permutation(len(images), seeded_generator(seed, "digits", "split"))
        held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
        self._seed = seed
        self._test = _tensors(images, labels, held_out)
        self._clients = [_tensors(images, labels, share) for share in deal(rest, num_clients)]

    def initial_model(self) -> ArrayRecord:
        """Return the untrained network."""
        return dump(seeded(_network, self._seed))

    def local_update(
        self, model: ArrayRecord, *, partition: int, steps: int, learning_rate: float
    ) -> ArrayRecord:
        """Return the network after full-batch gradient steps on one client's images."""
        images, labels = self._clients[partition]
        network = load(_network(), model)
        optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return dump(network)

    def evaluate(self, model: ArrayRecord) -> dict[str, float]:
        """Return accuracy and loss on the held-out images."""
        images, labels = self._test
        network = load(_network(), model)
        with torch.no_grad():
            scores = network(images)
        return {
            "accuracy": int((scores.argmax(dim=1) == labels).sum()) / len(labels),
            "loss": float(nn.functional.cross_entropy(scores, labels)),
        }


@lru_cache(maxsize=4)
def task(*, seed: int, num_clients: int) -> Digits:
    """Return the task; a worker that serves many clients loads the data once."""
    return Digits(seed=seed, num_clients=num_clients)


def _network() -> nn.Module:
    return mlp(64, 128, 10)


def _images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)


def _tensors(
    images: NDArray[np.float32], labels: NDArray[np.int64], indices: NDArray[np.intp]
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(images[indices]), torch.from_numpy(labels[indices])
