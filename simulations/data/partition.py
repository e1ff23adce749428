"""Which examples of the training set a client holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate, seeded_generator
from simulations.data.dirichlet import dirichlet
from simulations.data.drawing import Indices, permutation, sample
from simulations.tasks.task import TaskSettings

PARTITIONS = ("deal", "fresh", "sampled", "dirichlet", "natural")
"""Their names in a run config."""


class Partition(Protocol):
    """Says which examples are a client's; the same for the same arguments, in every process."""

    def examples(self, client: int, server_round: int) -> Indices:
        """Return the indices of the client's examples in a round."""
        ...


def partition(settings: TaskSettings, labels: NDArray[np.int64], *, shuffled: bool) -> Partition:
    """Return the partition that a run asks for.

    Parameters
    ----------
    settings : TaskSettings
        What the run says.
    labels : ndarray
        Of the training set.
    shuffled : bool
        Whether the training set is in a random order already, so that it is dealt as it lies.

    Raises
    ------
    ValueError
        Naming the key of the run config that is out of range.
    """
    kind = _validate.choice("partition", settings.partition, PARTITIONS)
    seed, count, clients = settings.seed, len(labels), settings.num_clients
    if kind == "deal":
        order = np.arange(count)
        if not shuffled:
            order = permutation(count, seeded_generator(seed, "deal"))
        return Deal(order, clients)
    if kind == "natural":
        raise ValueError(
            "partition = 'natural' wants data with users; 'deal', 'fresh', 'sampled' and "
            "'dirichlet' take any"
        )
    if kind == "dirichlet":
        return Dirichlet(labels, clients, settings.dirichlet_alpha, seed)
    size = settings.examples_per_client
    if size is None:
        raise ValueError(
            f"examples-per-client must say how many examples a client has, for partition = {kind!r}"
        )
    size = _validate.integer("examples-per-client", size, minimum=1, maximum=count)
    return Drawn(
        count=count, size=size, num_clients=clients, seed=seed, every_round=kind == "fresh"
    )


class Deal:
    """The training set dealt out: each example to one client, as many to each as to the others.

    Parameters
    ----------
    order : ndarray
        The indices, in the order in which they are dealt.
    num_clients : int
        At most one client for each example.
    """

    def __init__(self, order: Indices, num_clients: int) -> None:
        if num_clients > len(order):
            raise ValueError(
                f"num-clients must be <= {len(order)} for partition = 'deal', an example a client; "
                f"got {num_clients} ('sampled' and 'fresh' let clients share examples)"
            )
        self._order = order
        self._num_clients = num_clients

    def examples(self, client: int, server_round: int) -> Indices:
        """Return the client's share, in every round the same."""
        return self._order[_checked(client, self._num_clients) :: self._num_clients]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Examples drawn for each client from all, without replacement; clients can share some.

    Nothing is kept of the population: a million clients can stand on a small data set. Anew in each
    round, it is the paper's way: "In each round, we randomly sample B sets of m images" (Bhowmick
    et al., arXiv:1812.00984v2, section "Fitting deep models tabula rasa").

    Attributes
    ----------
    count : int
        Examples in the training set.
    size : int
        Examples of a client.
    num_clients, seed : int
        The run's.
    every_round : bool
        Whether a client draws anew in each round, or once.
    """

    count: int
    size: int
    num_clients: int
    seed: int
    every_round: bool

    def examples(self, client: int, server_round: int) -> Indices:
        """Return what the client draws."""
        client = _checked(client, self.num_clients)
        key = ("fresh", server_round, client) if self.every_round else ("sampled", client)
        return sample(self.count, self.size, seeded_generator(self.seed, *key))


class Dirichlet:
    """Clients with different shares of the classes, down to none; each example to one client.

    The examples of each class are split by proportions from the symmetric Dirichlet law: at a large
    concentration all clients are alike, at a small one few clients have most of a class. **A client
    may hold nothing.**

    Parameters
    ----------
    labels : ndarray
        Of the training set.
    num_clients : int
        The population.
    alpha : float
        The concentration, > 0.
    seed : int
        The run's.
    """

    def __init__(
        self, labels: NDArray[np.int64], num_clients: int, alpha: float, seed: int
    ) -> None:
        alpha = _validate.number("dirichlet-alpha", alpha, above=0.0)
        self._num_clients = num_clients
        self._classes: list[tuple[Indices, Indices]] = []
        for label in np.unique(labels):
            rng = seeded_generator(seed, "dirichlet", int(label))
            members = np.flatnonzero(labels == label)
            ends = dirichlet(alpha, num_clients, rng).cumsum() * len(members)
            # Rounded up or down at random, all by one draw: no client is favoured, and a share is
            # right in expectation even where it is a fraction of an example.
            cuts = np.minimum(np.floor(ends + rng.uniform()), len(members)).astype(np.intp)
            cuts[-1] = len(members)
            order = members[permutation(len(members), rng)]
            self._classes.append((order, np.concatenate([[0], cuts])))

    def examples(self, client: int, server_round: int) -> Indices:
        """Return the client's examples, in every round the same."""
        client = _checked(client, self._num_clients)
        parts = [order[cuts[client] : cuts[client + 1]] for order, cuts in self._classes]
        return np.concatenate(parts)


def _checked(client: int, num_clients: int) -> int:
    return _validate.integer("client", client, minimum=0, maximum=num_clients - 1)
