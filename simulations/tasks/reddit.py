"""The next word of what users write; a word-level LSTM, d = 13,352,875.

The last experiment of Bhowmick et al., arXiv:1812.00984v2, section "Pretrained models": a model
that was pretrained on public text is refitted on what people write. Its settings: 200 clients a
round, each with 1,000 sentences, 10 local gradient steps, 200 rounds; epsilon_1 of 10000, 2500, 500
or 100 and epsilon_2 = 10 with r_max = 5; rho = 100. It used Wikipedia, and the comments on Reddit
of November 2017, which are read from a data-dir. By default the users are speakers of Shakespeare's
histories, and the public text is two comedies.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

import torch

from simulations.data.text.client_text import ClientText, load_users
from simulations.data.text.public_vocabulary import public_vocabulary
from simulations.data.text.sources import load_corpus
from simulations.data.text.vocabulary import FILE, Vocabulary
from simulations.models.device import device
from simulations.models.language_modelling import LanguageModelling
from simulations.models.torch_model import seeded
from simulations.models.weights import fill, load_weights, refuse_sizes, save_weights
from simulations.models.word_lstm import TOKENS, WIDTH, WordLSTM
from simulations.pretraining.language import PUBLIC_DATA, pretrain_language, public_sentences
from simulations.pretraining.settings import PretrainSettings
from simulations.tasks.task import TaskSettings


def task(settings: TaskSettings) -> LanguageModelling:
    """Return the task."""
    corpus = load_users(settings)
    folder = settings.model.weights
    if folder is None:
        vocabulary = public_vocabulary(load_corpus(PUBLIC_DATA[0]), settings.model.vocabulary_size)
        width = settings.model.width or WIDTH
        build = partial(WordLSTM, len(vocabulary), width)
        past = "untrained"
    else:
        refuse_sizes(settings.model)
        network, vocabulary, past = _pretrained(folder)
        width = network.width
        build = partial(deepcopy, network)
    return LanguageModelling(
        settings,
        f"{corpus.name}, {_size(len(vocabulary), width)}, {past}",
        text=ClientText.of(settings, corpus, vocabulary),
        build=build,
    )


def pretrain(settings: PretrainSettings, output: Path) -> None:
    """Train the network on public text; weights and vocabulary go to `output`."""
    sentences = public_sentences(settings)
    width = settings.model.width or WIDTH
    make = partial(WordLSTM, len(sentences.vocabulary), width)
    network = seeded(make, settings.seed).to(device())
    best = pretrain_language(network, sentences, settings, output)
    sentences.vocabulary.save_in(output)
    facts = {"network": "word LSTM", "width": width, "data": sentences.corpus.name, **best}
    save_weights(network.state_dict(), output, facts)


def _pretrained(folder: Path) -> tuple[WordLSTM, Vocabulary, str]:
    """Return the network in a folder, its vocabulary, and where they come from."""
    state, facts = load_weights(folder)
    vocabulary = Vocabulary.load(folder / FILE)
    # As wide as it was made; what else does not fit, `fill` says.
    width = state.get("lstm.weight_hh_l0", torch.empty(0, WIDTH)).shape[-1]
    network = WordLSTM(len(vocabulary), width)
    fill(network, state, folder)
    return network, vocabulary, f"pretrained on {facts.get('data', folder.name)}"


def _size(tokens: int, width: int) -> str:
    name = f"word LSTM of {width} units and {tokens:,} tokens"
    return name if (tokens, width) == (TOKENS, WIDTH) else f"smaller {name}"
