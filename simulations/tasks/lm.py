"""The next word of what users write; a transformer, of which adapters or the head are trained.

The task ``reddit`` with a model of today. Pretrained here, it is a small one of the Llama family on
the words of the public text. `weights` may also be a folder of any causal language model of
`transformers`, or ``hub:NAME`` with ``download = true``; these come with a tokenizer. What is
trained and sent, ``trained-part`` says: low-rank adapters, the head, or all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

from flwr_sdp import _validate
from simulations.data.text.client_text import ClientText, load_users
from simulations.data.text.public_vocabulary import public_vocabulary
from simulations.data.text.sources import load_corpus
from simulations.data.text.subwords import Subwords
from simulations.data.text.vocabulary import FILE, Tokens, Vocabulary
from simulations.models.device import device
from simulations.models.language_modelling import LanguageModelling
from simulations.models.torch_model import seeded
from simulations.models.transformer import (
    TRAINED_PARTS,
    Transformer,
    freeze_but,
    load_tokenizer,
    pretrained,
    untrained,
)
from simulations.models.weights import refuse_sizes
from simulations.pretraining.language import PUBLIC_DATA, pretrain_language, public_sentences
from simulations.pretraining.settings import PretrainSettings
from simulations.tasks.task import TaskSettings


def task(settings: TaskSettings) -> LanguageModelling:
    """Return the task."""
    model = settings.model
    part = _validate.choice("trained-part", model.trained_part or TRAINED_PARTS[0], TRAINED_PARTS)
    corpus = load_users(settings)
    vocabulary: Tokens
    make: Callable[[], Transformer]
    if model.weights is None:
        vocabulary = public_vocabulary(load_corpus(PUBLIC_DATA[0]), model.vocabulary_size)
        make = partial(untrained, len(vocabulary), model.width, model.sequence_length)
        past = "untrained transformer"
    else:
        refuse_sizes(model)
        network = pretrained(model.weights, download=settings.data.download)
        vocabulary = _tokens(model.weights)
        make = partial(deepcopy, network)
        past = f"transformer of {model.weights.name}"
        if isinstance(vocabulary, Subwords):
            corpus = vocabulary.split(corpus)
    return LanguageModelling(
        settings,
        f"{corpus.name}, {past}, {part} trained",
        text=ClientText.of(settings, corpus, vocabulary),
        build=lambda: freeze_but(make(), part, model.adapter_rank),
    )


def _tokens(weights: Path) -> Tokens:
    """Return the vocabulary beside weights of our own, or the tokenizer of others."""
    file = weights / FILE
    return Vocabulary.load(file) if file.is_file() else Subwords(load_tokenizer(weights))


def pretrain(settings: PretrainSettings, output: Path) -> None:
    """Train a small transformer on public text; weights and vocabulary go to `output`."""
    sentences = public_sentences(settings)
    width, length = settings.model.width, settings.model.sequence_length
    make = partial(untrained, len(sentences.vocabulary), width, length)
    network = seeded(make, settings.seed).to(device())
    pretrain_language(network, sentences, settings, output)
    sentences.vocabulary.save_in(output)
    network.model.save_pretrained(output)
