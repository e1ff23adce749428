"""Whole users held out for evaluation."""

from __future__ import annotations

import numpy as np

from flwr_sdp import _validate, seeded_generator
from simulations.data.drawing import permutation
from simulations.data.text.corpus import Corpus


def held_out_users(corpus: Corpus, share: float, seed: int) -> tuple[Corpus, Corpus]:
    """Return a corpus without some users, and these users' alone, for evaluation.

    A user is held out whole: sentences of one user are alike, so that others of a user who was
    trained on would say nothing about new users.

    Parameters
    ----------
    corpus : Corpus
        Of two users or more.
    share : float
        Of the users, in (0, 1); at least one is held out and at least one is left.
    seed : int
        The run's; it says which.
    """
    share = _validate.number("share", share, above=0.0, below=1.0)
    count = len(corpus.users)
    if count < 2:
        raise ValueError(f"users must be 2 or more, to hold one out of {corpus.name}; got {count}")
    order = permutation(count, seeded_generator(seed, "held-out-users"))
    held_out = min(max(1, round(share * count)), count - 1)
    return (
        corpus.of_users(np.sort(order[held_out:])),
        corpus.of_users(np.sort(order[:held_out])),
    )
