"""Which examples a client holds."""

import math
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from flwr_sdp import seeded_generator
from simulations.data.drawing import permutation, sample
from simulations.data.partition import PARTITIONS, partition
from simulations.tasks import LocalTraining, TaskSettings
from tests.statistics_helpers import (
    assert_counts,
    assert_detects,
    assert_frequency,
    assert_mean_close,
)

KINDS = [kind for kind in PARTITIONS if kind != "natural"]  # which is of users, and not of labels
LABELS = np.arange(1000) % 10
SETTINGS = TaskSettings(
    num_clients=20,
    seed=1,
    examples_per_client=30,
    training=LocalTraining(steps=1, learning_rate=0.1),
)


def make(labels=LABELS, *, shuffled=False, **changes):
    return partition(replace(SETTINGS, **changes), labels, shuffled=shuffled)


def shares(made, num_clients=20, server_round=1):
    return [made.examples(client, server_round) for client in range(num_clients)]


# ------------------------------------------------------------------ all of them
@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_repeatable_and_depend_on_the_seed(kind):
    first, again, other = (shares(make(partition=kind, seed=seed)) for seed in (1, 1, 2))
    assert [one.tolist() for one in first] == [same.tolist() for same in again]
    assert [one.tolist() for one in first] != [different.tolist() for different in other]


@pytest.mark.parametrize("kind", KINDS)
def test_only_fresh_examples_change_from_round_to_round(kind):
    made = make(partition=kind)
    one, other = (np.concatenate(shares(made, server_round=number)) for number in (1, 2))
    assert np.array_equal(one, other) == (kind != "fresh")


@pytest.mark.parametrize("kind", KINDS)
def test_indices_are_of_the_training_set_and_differ(kind):
    for indices in shares(make(partition=kind)):
        assert len(set(indices.tolist())) == len(indices)
        assert not len(indices) or 0 <= indices.min() <= indices.max() < 1000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", [-1, 20, True, 1.0])
def test_a_client_outside_the_population_is_refused(kind, client):
    with pytest.raises(ValueError, match="client must be an integer >= 0 and <= 19; got"):
        make(partition=kind).examples(client, 1)


@pytest.mark.parametrize("kind", ["deal", "dirichlet"])
@pytest.mark.parametrize("num_clients", [1, 7, 1000])
def test_every_example_is_dealt_once(kind, num_clients):
    made = make(partition=kind, num_clients=num_clients)
    everything = np.concatenate(shares(made, num_clients))
    np.testing.assert_array_equal(np.sort(everything), np.arange(1000))


@pytest.mark.parametrize("kind", ["fresh", "sampled"])
@pytest.mark.parametrize("size", [1, 30, 499, 501, 1000])
def test_clients_draw_as_many_as_they_should(kind, size):
    made = make(partition=kind, examples_per_client=size, num_clients=3)
    assert [len(indices) for indices in shares(made, 3)] == [size] * 3


# ------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "dirichlecht"}, "partition must be one of 'deal', .*; got 'dirichlecht'"),
        ({"num_clients": 1001}, "num-clients must be <= 1000 for partition = 'deal'.*got 1001"),
        ({"partition": "fresh", "examples_per_client": None}, "examples-per-client must say"),
        ({"partition": "sampled", "examples_per_client": None}, "examples-per-client must say"),
        ({"partition": "fresh", "examples_per_client": 1001}, "examples-per-client .*got 1001"),
        ({"partition": "sampled", "examples_per_client": 0}, "examples-per-client .*got 0"),
        ({"partition": "dirichlet", "dirichlet_alpha": 0.0}, "dirichlet-alpha .* > 0; got 0.0"),
        ({"partition": "dirichlet", "dirichlet_alpha": math.nan}, "dirichlet-alpha .*got nan"),
        ({"partition": "dirichlet", "dirichlet_alpha": math.inf}, "dirichlet-alpha .*got inf"),
    ],
)
def test_mistakes_are_named_by_the_keys_of_the_run_config(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


# ------------------------------------------------------------------ dealing
def test_every_order_is_as_likely():
    """3,000 orders of 4, 24 kinds, chi-square: false alarms at 5.7e-7. The mutant rotates."""
    rng = seeded_generator(0)
    orders = Counter(tuple(permutation(4, rng).tolist()) for _ in range(3000))
    assert len(orders) == 24
    assert_counts(list(orders.values()), np.full(24, 1 / 24))
    rotations = [orders[order] if order[0] < order[-1] else 0 for order in orders]
    assert_detects(assert_counts, rotations, np.full(24, 1 / 24))


def test_order_holds_every_index_once():
    assert sorted(permutation(1000, seeded_generator(1)).tolist()) == list(range(1000))


def test_a_set_in_random_order_is_dealt_as_it_lies():
    made = make(shuffled=True)
    for client, one in enumerate(shares(made)):
        np.testing.assert_array_equal(one, np.arange(1000)[client::20])


def test_a_set_that_is_sorted_is_dealt_in_a_random_order():
    """Otherwise each of 10 clients would have one class."""
    made = make(np.arange(1000) % 10, num_clients=10)
    assert all(len(np.unique(LABELS[indices])) == 10 for indices in shares(made, 10))


# ------------------------------------------------------------------ drawing
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_set_is_as_likely(size):
    """4,000 sets out of 7, chi-square: false alarms at 5.7e-7. The mutant likes low numbers."""
    rng = seeded_generator(3, size)
    kinds = math.comb(7, size)
    sets = Counter(tuple(sorted(sample(7, size, rng).tolist())) for _ in range(4000))
    assert len(sets) == kinds
    assert_counts([sets[key] for key in sorted(sets)], np.full(kinds, 1 / kinds))
    biased = [round(sets[key] * (1.2 if 0 in key else 0.9)) for key in sorted(sets)]
    assert_detects(assert_counts, biased, np.full(kinds, 1 / kinds))


@pytest.mark.parametrize("kind", ["fresh", "sampled"])
def test_clients_draw_independently(kind):
    """How many two neighbours share is hypergeometric: mean m^2/n; the mutant shares one more.

    400 pairs of 30 out of 1,000: the mean of 0.9 has a standard error of 0.045.
    """
    made = make(partition=kind, num_clients=800)
    drawn = shares(made, 800)
    common = np.array(
        [len(np.intersect1d(drawn[i], drawn[i + 1])) for i in range(0, 800, 2)], dtype=float
    )
    mean = 30 * 30 / 1000
    variance = mean * (1 - 0.03) * 970 / 999
    assert_mean_close(common, mean, variance=variance)
    assert_detects(lambda x: assert_mean_close(x, mean, variance=variance), common + 1.0)


def test_rounds_and_clients_are_different_streams():
    made = make(partition="fresh", num_clients=30)
    seen = {made.examples(c, r).tobytes() for c in range(30) for r in range(30)}
    assert len(seen) == 900


def test_a_million_clients_cost_nothing():
    """No table of the population: it would be 8 MB at the least."""
    labels = np.zeros(1000, np.int64)
    tracemalloc.start()
    made = make(labels, partition="sampled", num_clients=10**6)
    assert len(made.examples(10**6 - 1, 1)) == 30
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


# ------------------------------------------------------------------ label skew
def shares_of_a_class(alpha, *, num_clients=8, examples=20_000, seeds=60):
    """Return each client's share of a class, in runs of different seeds: ``(seeds, clients)``."""
    labels = np.zeros(examples, np.int64)
    return np.array(
        [
            [len(x) / examples for x in shares(made, num_clients)]
            for made in (
                make(
                    labels,
                    partition="dirichlet",
                    dirichlet_alpha=alpha,
                    num_clients=num_clients,
                    seed=seed,
                )
                for seed in range(seeds)
            )
        ]
    )


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_shares_of_a_class_follow_the_dirichlet_law(alpha):
    """Mean, variance and covariance over 300 runs of 8 clients, to 5 standard errors.

    The variance of a share p is (1/K)(1 - 1/K)/(K alpha + 1). Mutants: half and double the alpha.
    """
    found = shares_of_a_class(alpha, seeds=300)
    clients = found.shape[1]

    def check(alpha):
        variance = (clients - 1) / clients**2 / (clients * alpha + 1)
        assert_mean_close(found, 1 / clients, variance=variance)
        # One number for each run: the shares of a run depend on each other.
        squares = ((found - 1 / clients) ** 2).mean(axis=1)
        assert_mean_close(squares, variance)
        products = (found[:, 0] - 1 / clients) * (found[:, 1] - 1 / clients)
        assert_mean_close(products, -variance / (clients - 1))

    check(alpha)
    assert_detects(check, 2 * alpha)
    assert_detects(check, alpha / 2)


def test_classes_are_split_independently():
    """The correlation of a client's shares of two classes, over 300 runs of 6 clients."""
    labels = np.arange(4000) % 2
    pairs = []
    for seed in range(300):
        made = make(labels, partition="dirichlet", num_clients=6, seed=seed)
        count = np.bincount(labels[made.examples(2, 1)], minlength=2) / 2000
        pairs.append(count - 1 / 6)
    products = np.prod(pairs, axis=1)
    assert_mean_close(products, 0.0)
    assert_detects(lambda x: assert_mean_close(x, 0.0), np.square(np.array(pairs)[:, 0]))


def test_few_examples_for_many_clients_favour_nobody():
    """Fractions of an example are rounded at random: all of 300 clients are as likely to get one.

    12 examples to 300 clients in 400 runs; the first and the last client, whom cuts that are
    rounded down would favour, at false alarms of 5.7e-7 each.
    """
    labels = np.zeros(12, np.int64)
    first = last = 0
    for seed in range(400):
        made = make(
            labels, partition="dirichlet", dirichlet_alpha=100.0, num_clients=300, seed=seed
        )
        first += len(made.examples(0, 1))
        last += len(made.examples(299, 1))
    assert_frequency(first, 400, 12 / 300)
    assert_frequency(last, 400, 12 / 300)
    assert_detects(assert_frequency, 400, 400, 12 / 300)


def test_small_alpha_leaves_clients_empty_and_large_alpha_does_not():
    small = [len(x) for x in shares(make(partition="dirichlet", dirichlet_alpha=1e-3))]
    large = [len(x) for x in shares(make(partition="dirichlet", dirichlet_alpha=1e6))]
    assert small.count(0) > 5
    assert sum(small) == sum(large) == 1000
    assert 40 <= min(large) <= max(large) <= 60


def test_ten_thousand_clients_are_quick():
    labels = np.arange(60_000) % 10
    made = make(labels, partition="dirichlet", num_clients=10_000)
    everything = np.concatenate(shares(made, 10_000))
    np.testing.assert_array_equal(np.sort(everything), np.arange(60_000))


def test_uneven_classes_are_split_whole():
    labels = np.array([3] * 7 + [9] * 500 + [0])
    everything = np.concatenate(shares(make(labels, partition="dirichlet")))
    np.testing.assert_array_equal(np.sort(everything), np.arange(508))


def test_marginal_is_a_beta():
    """One client of 5 has a Beta(alpha, 4 alpha) share: where it is below 0.05, in 600 runs."""
    alpha = 0.3
    found = shares_of_a_class(alpha, num_clients=5, examples=5000, seeds=600)[:, 1]
    level = float(special.betainc(alpha, 4 * alpha, 0.05))
    assert_frequency(np.count_nonzero(found < 0.05), 600, level)
    other = float(special.betainc(2 * alpha, 8 * alpha, 0.05))
    assert_detects(assert_frequency, np.count_nonzero(found < 0.05), 600, other)
