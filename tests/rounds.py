"""Rounds of the strategy without a network, for tests."""

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)
from flwr.serverapp.strategy import FedAvg

from flwr_sdp import seeded_generator
from flwr_sdp.strategies import ClipAndNoise
from tests.messages import record

RHO = 2.0


def vector_model(dim=4):
    return record({"w": np.zeros(dim)})


def mixed_model():
    return record(
        {
            "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
            "steps": np.array([3, 4], np.int64),
            "mask": np.array([True, False]),
            "b": np.array(0.5, np.float64),
        }
    )


def inner(kind=FedAvg, **options):
    return kind(fraction_evaluate=0.0, **options)


def make(strategy=None, **options):
    """Return a strategy without noise; `options` say what a test is about."""
    settings = {
        "clip_norm": RHO,
        "noise_multiplier": 0.0,
        "sampling_rate": 1.0,
        "rng": seeded_generator(0),
        "seed": 0,
    }
    return ClipAndNoise(strategy or inner(), **(settings | options))


def ask(strategy, grid, model, server_round=1):
    return list(strategy.configure_train(server_round, model, ConfigRecord(), grid))


def play(strategy, grid, model, answer, server_round=1):
    """Run one round; `answer(index, message)` replies, None for no reply."""
    messages = ask(strategy, grid, model, server_round)
    replies = [answer(index, message) for index, message in enumerate(messages)]
    replies = [reply for reply in replies if reply is not None]
    return strategy.aggregate_train(server_round, replies)


class Ledger:
    """An accountant that writes down what it is charged; its epsilon is the number of charges."""

    def __init__(self, population):
        self.config = PrivacyConfig(
            target_delta=1e-5,
            population_size=population,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.POISSON,
        )
        self.charges = []

    @property
    def num_releases(self):
        return len(self.charges)

    def compose(self, event, count=1):
        self.charges += [event] * count

    def get_privacy_spent(self, delta=None):
        return PrivacySpent(
            epsilon=float(len(self.charges)),
            delta=delta or self.config.target_delta,
            num_releases=len(self.charges),
            accounting_method="ledger",
        )

    def would_exceed(self, event, max_epsilon=None, count=1):
        return len(self.charges) + count > max_epsilon


def unit_update(dim=4, length=1.0):
    return np.eye(dim)[0] * length
