"""Whole users held out."""

import numpy as np
import pytest

from simulations.data.text.held_out import held_out_users
from tests.simulations.data.text.corpora import read, sized
from tests.statistics_helpers import assert_detects, assert_frequency

CORPUS = sized(*range(1, 101))


def test_every_user_is_whole_on_one_side():
    clients, held_out = held_out_users(CORPUS, 0.2, seed=1)
    assert (len(clients.users), len(held_out.users)) == (80, 20)
    assert not set(clients.users) & set(held_out.users)
    assert read(clients) | read(held_out) == read(CORPUS)


def test_the_seed_says_which():
    first, again, other = (held_out_users(CORPUS, 0.2, seed)[1].users for seed in (1, 1, 2))
    assert first == again != other


def first_or_last(corpus, share, seed):
    """A mutant: those held out lie side by side."""
    start = seed % 2 * 50
    return None, corpus.of_users(np.arange(start, start + 50))


def test_every_pair_of_users_is_parted_as_often_as_chance_says():
    """Users 0 and 1 are on different sides with probability 50/99; 400 seeds, 5 sigma."""

    def check(split):
        sides = [split(CORPUS, 0.5, seed)[1].users for seed in range(400)]
        held = [[f"user-{number}" in users for users in sides] for number in (0, 1)]
        assert_frequency(np.sum(held[0]), 400, 0.5)
        assert_frequency(np.not_equal(*held).sum(), 400, 50 / 99)

    check(held_out_users)
    assert_detects(check, first_or_last)


@pytest.mark.parametrize(("share", "count"), [(1e-9, 1), (1 - 1e-9, 99), (0.125, 12)])
def test_some_are_on_each_side(share, count):
    clients, held_out = held_out_users(CORPUS, share, seed=0)
    assert (len(clients.users), len(held_out.users)) == (100 - count, count)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), "0.5", True])
def test_shares_out_of_range(share):
    with pytest.raises(ValueError, match="share must be a finite number > 0 and < 1; got"):
        held_out_users(CORPUS, share, seed=0)


def test_one_user_cannot_be_divided():
    with pytest.raises(ValueError, match=r"users must be 2 or more.*; got 1"):
        held_out_users(sized(5), 0.5, seed=0)
