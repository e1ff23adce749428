"""Predicting the next word of users' sentences: what the language tasks have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.drawing import sample
from simulations.data.text.client_text import ClientText
from simulations.data.text.sentences import Sentences
from simulations.models.device import device
from simulations.models.local_training import train
from simulations.models.next_word import next_word_loss, scored
from simulations.models.shared_network import SharedNetwork
from simulations.models.torch_model import dump, seeded
from simulations.tasks.task import TaskSettings

EVALUATED = 2_000
"""Most sentences, of those held out, that are evaluated: the same ones every time."""
_EVALUATED_AT_ONCE = 100
_HIGHEST_LOG = 700.0
"""Beyond it the exponential is no number."""


class LanguageModelling:
    """A model of the next word; see :class:`simulations.tasks.task.Task`.

    As in :class:`~simulations.models.classification.Classification`, one network serves all clients
    of the process, and what is sent is what is trained of it.

    Parameters
    ----------
    settings : TaskSettings
        What the run says.
    name : str
        What figures call data and model.
    text : ClientText
        What clients wrote, and others.
    build : callable
        Makes the network, a :class:`~simulations.models.next_word.NextWord`; what it draws at
        random comes from torch's global generator, which is seeded.
    """

    metrics = ("perplexity",)

    def __init__(
        self,
        settings: TaskSettings,
        name: str,
        *,
        text: ClientText,
        build: Callable[[], nn.Module],
    ) -> None:
        self.data_name = name
        self._seed = settings.seed
        self._training = settings.training
        self._text = text
        held_out = len(text.held_out)
        rng = seeded_generator(settings.seed, "evaluation")
        self._evaluated = np.sort(sample(held_out, min(held_out, EVALUATED), rng))
        self._build: Callable[[], nn.Module] = partial(seeded, build, settings.seed)
        self._network = SharedNetwork(self._build)

    def initial_model(self) -> ArrayRecord:
        """Return what is trained of the network, pretrained or as the seed draws it."""
        return dump(self._build())

    def save(self, folder: Path) -> None:
        """Write the vocabulary: without it nobody knows which word a row of the model is for."""
        self._text.vocabulary.save_in(folder)

    def local_update(self, model: ArrayRecord, *, client: int, server_round: int) -> ArrayRecord:
        """Return `model` after local training on one client's sentences; as it is without any."""
        indices = self._text.partition.examples(client, server_round)
        if not len(indices):
            return model
        rng = seeded_generator(self._seed, "training", server_round, client)
        inputs, targets = on_device(self._text.sentences, indices)
        network = self._network.become(model)
        train(network, inputs, targets, self._training, rng, next_word_loss)
        return dump(network)

    def evaluate(self, model: ArrayRecord) -> dict[str, float]:
        """Return how well next words are predicted of users who are no clients."""
        return evaluate(self._network.become(model), self._text.held_out, self._evaluated)


def evaluate(
    network: nn.Module, sentences: Sentences, indices: NDArray[np.intp]
) -> dict[str, float]:
    """Return metrics of a network on some sentences.

    ``accuracy`` is the share of next tokens, ends of sentences among them, that the best guess
    hits. "Unknown" is never guessed, since nobody would want it as a suggestion, and so a word that
    the vocabulary does not have is always missed. ``loss`` is the average of -log p in nats, where
    "unknown" is a token as others; ``perplexity`` is its exponential.
    """
    network.eval()
    unknown = sentences.vocabulary.unknown
    count, correct, loss = 0, 0, 0.0
    with torch.no_grad():
        for part in np.array_split(indices, -(-len(indices) // _EVALUATED_AT_ONCE)):
            scores, words = scored(network, *on_device(sentences, part))
            loss += float(nn.functional.cross_entropy(scores, words, reduction="sum"))
            if unknown is not None:
                scores[:, unknown] = -math.inf
            correct += int((scores.argmax(dim=1) == words).sum())
            count += len(words)
    return {
        "accuracy": correct / count,
        "loss": loss / count,
        "perplexity": math.exp(min(loss / count, _HIGHEST_LOG)),
    }


def on_device(sentences: Sentences, indices: NDArray[np.intp]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of some sentences where the networks are."""
    inputs, targets = sentences.examples(indices)
    return torch.from_numpy(inputs).to(device()), torch.from_numpy(targets).to(device())
