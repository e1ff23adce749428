"""Which sentences a client holds."""

from dataclasses import replace

import numpy as np
import pytest

from simulations.data.text.partition import sentence_partition
from simulations.tasks import LocalTraining, TaskSettings
from tests.simulations.data.text.corpora import sized

SIZES = (3, 40, 1, 12, 7, 25)
CORPUS = sized(*SIZES)
USERS = [set(CORPUS.sentences(user).tolist()) for user in range(len(SIZES))]
SETTINGS = TaskSettings(
    num_clients=6,
    seed=1,
    partition="natural",
    training=LocalTraining(steps=1, learning_rate=0.1),
)


def shares(server_round=1, **changes):
    settings = replace(SETTINGS, **changes)
    made = sentence_partition(settings, CORPUS)
    return [made.examples(client, server_round).tolist() for client in range(settings.num_clients)]


# ------------------------------------------------------------------ natural
def test_a_client_is_a_user():
    held = [set(share) for share in shares()]
    assert sorted(held, key=min) == USERS


def test_the_seed_draws_who_is_a_client():
    orders = {tuple(map(len, shares(seed=seed))) for seed in range(30)}
    assert len(orders) > 20
    assert shares() == shares()
    few = {tuple(map(len, shares(seed=seed, num_clients=1))) for seed in range(60)}
    assert few == {(size,) for size in SIZES}


def test_fewer_clients_are_the_first_of_more():
    assert shares(num_clients=3) == shares()[:3]


def test_who_has_more_than_a_round_takes_draws_anew():
    first, second = shares(1, examples_per_client=10), shares(2, examples_per_client=10)
    everything = shares()
    assert [len(share) for share in first] == [min(len(share), 10) for share in everything]
    for one, other, whole in zip(first, second, everything, strict=True):
        assert set(one) <= set(whole)
        assert len(set(one)) == len(one)
        assert (sorted(one) == sorted(other)) == (len(whole) <= 10)
    assert shares(1, examples_per_client=10) == first


def test_without_a_size_all_rounds_are_alike():
    assert shares(1) == shares(2)


def test_more_clients_than_users():
    message = r"num-clients must be <= 6 for partition = 'natural', the users of sized .* got 7"
    with pytest.raises(ValueError, match=message):
        shares(num_clients=7)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_sizes_out_of_range(size):
    with pytest.raises(ValueError, match="examples-per-client must be an integer >= 1; got"):
        shares(examples_per_client=size)


@pytest.mark.parametrize("client", [-1, 6, True])
def test_a_client_outside_the_population(client):
    made = sentence_partition(SETTINGS, CORPUS)
    with pytest.raises(ValueError, match="client must be an integer >= 0 and <= 5; got"):
        made.examples(client, 1)


# ------------------------------------------------------------------ without users
def test_sentences_are_dealt_out():
    held = np.concatenate(shares(partition="deal"))
    np.testing.assert_array_equal(np.sort(held), np.arange(sum(SIZES)))
    assert not np.array_equal(held, np.arange(sum(SIZES)))


@pytest.mark.parametrize(("kind", "changes"), [("fresh", True), ("sampled", False)])
def test_sentences_are_drawn(kind, changes):
    first, second = (shares(number, partition=kind, examples_per_client=20) for number in (1, 2))
    assert [len(set(share)) for share in first] == [20] * 6
    assert (first != second) == changes


@pytest.mark.parametrize("kind", ["fresh", "sampled"])
def test_drawing_needs_a_size(kind):
    with pytest.raises(ValueError, match="examples-per-client must say how many"):
        shares(partition=kind)


def test_sentences_have_no_classes():
    with pytest.raises(ValueError, match=r"partition must be 'natural', .*; got 'dirichlet'"):
        shares(partition="dirichlet")
