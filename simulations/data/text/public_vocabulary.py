"""The vocabulary of public text."""

from __future__ import annotations

import numpy as np

from simulations.data.text.corpus import Corpus
from simulations.data.text.vocabulary import Vocabulary

WORDS = 25_000
"""Words of the paper's vocabulary."""


def public_vocabulary(corpus: Corpus, size: int | None) -> Vocabulary:
    """Return the vocabulary of a public corpus.

    Parameters
    ----------
    corpus : Corpus
        Public text.
    size : int or None
        How many words; None for as many as the paper's, or all if there are fewer.

    Raises
    ------
    ValueError
        If the corpus has fewer.
    """
    if size is None:
        size = min(WORDS, int(np.count_nonzero(corpus.word_counts())))
    return Vocabulary.from_corpus(corpus, size)
