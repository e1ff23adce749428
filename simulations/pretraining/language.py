"""Pretraining of a language model on public text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from flwr_sdp import KeystreamGenerator, seeded_generator
from simulations.data.drawing import permutation
from simulations.data.text.public_vocabulary import public_vocabulary
from simulations.data.text.sentences import Sentences
from simulations.data.text.sources import load_corpus
from simulations.models.language_modelling import EVALUATED, evaluate, on_device
from simulations.models.next_word import next_word_loss
from simulations.pretraining.loop import pretrain
from simulations.pretraining.settings import PretrainSettings

PUBLIC_DATA = ("shakespeare-public", "text")
"""Public texts to pretrain on; the first is the default."""

_HELD_OUT = 0.05  # of the sentences


def public_sentences(settings: PretrainSettings) -> Sentences:
    """Return the public text that a pretraining names, with the vocabulary it gives.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        If the text is not there, or has fewer words than the vocabulary is to have.
    """
    data = settings.data
    corpus = load_corpus(data.one_of(PUBLIC_DATA), data_dir=data.folder, download=data.download)
    vocabulary = public_vocabulary(corpus, settings.model.vocabulary_size)
    return Sentences(corpus=corpus, vocabulary=vocabulary, length=settings.model.sequence_length)


def pretrain_language(
    network: nn.Module, sentences: Sentences, settings: PretrainSettings, output: Path
) -> dict[str, float]:
    """Train all of a language model on sentences, and return how good it is on others of them.

    The sentences are public: unlike those of clients, they are held out one by one.
    """
    order = permutation(len(sentences), seeded_generator(settings.seed, "pretraining", "held-out"))
    count = max(1, int(_HELD_OUT * len(order)))
    held_out, rest = np.sort(order[: min(count, EVALUATED)]), order[count:]
    if not len(rest):
        raise ValueError(
            f"data must have several sentences; {settings.data.name!r} has {len(order)}"
        )

    def batch(rng: KeystreamGenerator) -> tuple[torch.Tensor, torch.Tensor]:
        # With replacement, as far as that happens: a batch is a small part of the corpus.
        drawn = rng.integers(len(rest), settings.batch_size).astype(np.intp)
        return on_device(sentences, rest[drawn])

    return pretrain(
        network,
        batch=batch,
        evaluate=lambda: evaluate(network, sentences, held_out),
        loss=next_word_loss,
        settings=settings,
        output=output,
    )
