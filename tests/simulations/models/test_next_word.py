"""Loss and metrics of next words, against NumPy."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from simulations.data.text.corpus import Corpus
from simulations.data.text.sentences import PADDING, Sentences
from simulations.data.text.vocabulary import SPECIAL, UNKNOWN, Vocabulary
from simulations.models.language_modelling import evaluate
from simulations.models.next_word import next_word_loss

WORDS = tuple("abcdefgh")
VOCABULARY = Vocabulary((*SPECIAL, *WORDS[:6]))  # g and h are unknown


class Bigrams(nn.Module):
    """Scores of the next token by the token alone: a table that a test can look things up in."""

    def __init__(self, seed):
        super().__init__()
        size = len(VOCABULARY)
        table = np.random.default_rng(seed).normal(size=(size, size))
        self.table = nn.Parameter(torch.from_numpy(table))

    def hidden(self, inputs):
        return nn.functional.one_hot(inputs, len(VOCABULARY)).double()

    def scores(self, hidden):
        return hidden @ self.table


def sentences(texts, length=32):
    tokens = [WORDS.index(word) for text in texts for word in text]
    ends = np.cumsum([len(text) for text in texts])
    corpus = Corpus(
        name="letters",
        users=("a",),
        words=WORDS,
        tokens=np.array(tokens, np.int32),
        sentence_ends=ends.astype(np.int64),
        user_ends=np.array([len(texts)], np.int64),
    )
    return Sentences(corpus=corpus, vocabulary=VOCABULARY, length=length)


def by_hand(table, texts):
    """Return the number of next tokens, of hits, and the sum of -log p, from the texts."""
    ids = {word: VOCABULARY.tokens.index(word) for word in WORDS[:6]}
    count = hits = 0
    loss = 0.0
    for text in texts:
        row = [0, *(ids.get(word, UNKNOWN) for word in text), 1]
        for now, coming in pairwise(row):
            scores = table[now]
            loss += np.log(np.exp(scores).sum()) - scores[coming]
            guess = max((i for i in range(len(scores)) if i != UNKNOWN), key=lambda i: scores[i])
            count, hits = count + 1, hits + (guess == coming)
    return count, hits, loss


TEXTS = ["abc", "a", "fedcba", "gag", "bh", "cab"] * 9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_metrics_are_those_worked_out_by_hand(seed):
    network = Bigrams(seed)
    scores = evaluate(network, sentences(TEXTS), np.arange(len(TEXTS)))
    count, hits, loss = by_hand(network.table.detach().numpy(), TEXTS)
    assert scores["accuracy"] == pytest.approx(hits / count)
    assert scores["loss"] == pytest.approx(loss / count)
    assert scores["perplexity"] == pytest.approx(np.exp(loss / count))


def test_an_unknown_word_is_never_hit():
    """Not even by a network that is sure of it."""
    network = Bigrams(0)
    with torch.no_grad():
        network.table[:, UNKNOWN] = 50.0
    scores = evaluate(network, sentences(["gg"]), np.arange(1))
    assert scores["accuracy"] in (0.0, 1 / 3)  # the end of the sentence may be guessed


def test_the_loss_of_a_batch_is_the_average_over_its_tokens():
    """What a short sentence is padded with counts nothing, whatever stands there."""
    network, data = Bigrams(1), sentences(TEXTS)
    inputs, targets = map(torch.from_numpy, data.examples(np.arange(len(TEXTS))))
    assert (targets == PADDING).any()
    count, _, loss = by_hand(network.table.detach().numpy(), TEXTS)
    assert next_word_loss(network, inputs, targets).item() == pytest.approx(loss / count)
    inputs[targets == PADDING] = 4
    assert next_word_loss(network, inputs, targets).item() == pytest.approx(loss / count)
