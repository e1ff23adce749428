"""Which sentences a client holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flwr_sdp import _validate, seeded_generator
from simulations.data.drawing import Indices, permutation, sample
from simulations.data.partition import Partition, partition
from simulations.data.text.corpus import Corpus
from simulations.tasks.task import TaskSettings


def sentence_partition(settings: TaskSettings, corpus: Corpus) -> Partition:
    """Return the partition that a run asks for.

    Parameters
    ----------
    settings : TaskSettings
        What the run says.
    corpus : Corpus
        Of the clients, without the users who are held out.

    Raises
    ------
    ValueError
        Naming the key of the run config that is out of range.
    """
    if settings.partition == "dirichlet":
        raise ValueError(
            "partition must be 'natural', 'deal', 'fresh' or 'sampled' for sentences, which have "
            "no classes; got 'dirichlet'"
        )
    if settings.partition == "natural":
        return Natural(
            corpus=corpus,
            num_clients=settings.num_clients,
            size=settings.examples_per_client,
            seed=settings.seed,
        )
    # All of one class, which these partitions do not look at.
    return partition(settings, np.zeros(len(corpus), np.int64), shuffled=False)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Natural:
    """A client is a user, and has what the user wrote.

    Attributes
    ----------
    corpus : Corpus
        Of at least as many users as clients.
    num_clients : int
        The population: so many users, drawn from the seed.
    size : int or None
        Sentences of a client in a round, at most; who has more draws anew in each round. None for
        all.
    seed : int
        The run's.
    """

    corpus: Corpus
    num_clients: int
    size: int | None
    seed: int
    _users: Indices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.corpus.users)
        if self.num_clients > count:
            raise ValueError(
                f"num-clients must be <= {count} for partition = 'natural', the users of "
                f"{self.corpus.name} that are not held out; got {self.num_clients} ('deal', "
                "'fresh' and 'sampled' do not ask who wrote a sentence)"
            )
        if self.size is not None:
            _validate.integer("examples-per-client", self.size, minimum=1)
        users = permutation(count, seeded_generator(self.seed, "natural"))
        _validate.store(self, _users=users[: self.num_clients])

    def examples(self, client: int, server_round: int) -> Indices:
        """Return sentences of the client's user."""
        client = _validate.integer("client", client, minimum=0, maximum=self.num_clients - 1)
        sentences = self.corpus.sentences(int(self._users[client]))
        if self.size is None or len(sentences) <= self.size:
            return sentences
        rng = seeded_generator(self.seed, "natural", server_round, client)
        return sentences[sample(len(sentences), self.size, rng)]
