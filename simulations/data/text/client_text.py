"""What clients wrote, ready to be trained on, and what others wrote, to evaluate with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulations.data.partition import Partition
from simulations.data.text.corpus import Corpus
from simulations.data.text.held_out import held_out_users
from simulations.data.text.partition import sentence_partition
from simulations.data.text.sentences import Sentences
from simulations.data.text.sources import load_corpus
from simulations.data.text.vocabulary import Tokens
from simulations.tasks.task import TaskSettings

DATA = ("shakespeare", "reddit", "text")
"""Texts by user; the first is the default."""

HELD_OUT = 0.1
"""Share of the users who are no clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientText:
    """The text of a run.

    Attributes
    ----------
    sentences : Sentences
        Of all users who can be clients.
    partition : Partition
        Which of them a client has.
    held_out : Sentences
        Of the other users.
    vocabulary : Tokens
        What they are written in; public.
    """

    sentences: Sentences
    partition: Partition
    held_out: Sentences
    vocabulary: Tokens

    @classmethod
    def of(cls, settings: TaskSettings, corpus: Corpus, vocabulary: Tokens) -> ClientText:
        """Return a corpus as a run deals it out; the seed says who is held out.

        Raises
        ------
        ValueError
            Naming the key of the run config that is out of range.
        """
        clients, others = held_out_users(corpus, HELD_OUT, settings.seed)
        length = settings.model.sequence_length
        return cls(
            sentences=Sentences(corpus=clients, vocabulary=vocabulary, length=length),
            partition=sentence_partition(settings, clients),
            held_out=Sentences(corpus=others, vocabulary=vocabulary, length=length),
            vocabulary=vocabulary,
        )


def load_users(settings: TaskSettings) -> Corpus:
    """Return the corpus that a run names.

    Of comments by very many authors only so many are read as the run has clients.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        See :func:`~simulations.data.text.sources.load_corpus`.
    """
    data = settings.data
    name = data.one_of(DATA)
    max_users = None
    if name == "reddit" and settings.partition == "natural":
        max_users = math.ceil(settings.num_clients / (1.0 - HELD_OUT)) + 1
    return load_corpus(name, data_dir=data.folder, download=data.download, max_users=max_users)
