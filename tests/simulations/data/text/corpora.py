"""Small corpora for tests."""

import numpy as np

from simulations.data.text.corpus import Corpus


def split(text):
    """Return the sentences of a text: what full stops divide, words between spaces."""
    for sentence in text.split("."):
        if sentence.split():
            yield sentence.split()


def corpus_of(**texts):
    """Return what users wrote."""
    return Corpus.from_texts("small", ((user, [text]) for user, text in texts.items()), split)


def sized(*sizes):
    """Return a corpus of users with so many sentences, each of one word that nobody else has."""
    count = sum(sizes)
    return Corpus(
        name="sized",
        users=tuple(f"user-{number}" for number in range(len(sizes))),
        words=tuple(f"word-{number}" for number in range(count)),
        tokens=np.arange(count, dtype=np.int32),
        sentence_ends=np.arange(1, count + 1),
        user_ends=np.cumsum(sizes),
    )


def read(corpus):
    """Return the words of each sentence of each user."""
    ends = corpus.sentence_ends
    return {
        user: [
            [corpus.words[t] for t in corpus.tokens[ends[s - 1] if s else 0 : ends[s]]]
            for s in corpus.sentences(number)
        ]
        for number, user in enumerate(corpus.users)
    }
