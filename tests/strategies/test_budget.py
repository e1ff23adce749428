"""What a limit on epsilon lets through, round by round, against epsilon composed afresh."""

import math
import random
from functools import cache

import pytest
from flwr.serverapp import RdpAccountant
from flwr.serverapp.exception import PrivacyBudgetExhausted

from flwr_sdp.strategies import (
    BestAccountant,
    PldAccountant,
    fixed_size_accountant,
    fixed_size_event,
    poisson_accountant,
    poisson_event,
)
from flwr_sdp.strategies.budget import Budget
from tests.messages import FakeGrid, private_reply
from tests.rounds import make, play, vector_model
from tests.statistics_helpers import assert_detects

SETTINGS = 200
MOST_ROUNDS = 10


def releases(seed):
    """Return a configuration, an event to repeat and one that went before.

    One seed in 16 has Poisson cohorts, of four kinds in all: a new kind costs 0.1 s.
    """
    poisson = seed % 16 == 0
    draw = random.Random(seed % 64 if poisson else seed)  # noqa: S311 - a reproducible grid
    population, noise = round(10 ** draw.uniform(0.5, 6)), 10 ** draw.uniform(-0.3, 1)
    delta = 10 ** draw.uniform(-12, -2)
    if poisson:
        rates = [10 ** draw.uniform(-3, -0.3) for _ in range(2)]
        events = [
            poisson_event(noise_multiplier=noise, sampling_rate=rate, population=population)
            for rate in rates
        ]
        return poisson_accountant(population=population, delta=delta).config, *events
    events = [
        fixed_size_event(noise_multiplier=noise * factor, cohort_size=1, population=population)
        for factor in (1.0, draw.uniform(0.5, 2.0))
    ]
    return fixed_size_accountant(population=population, delta=delta).config, *events


@cache
def afresh(seed, before, rounds):
    """Return epsilon of so many rounds, by an accountant that has seen nothing else."""
    return started(PldAccountant, seed, before, rounds).get_epsilon(releases(seed)[0].target_delta)


def started(kind, seed, before, rounds=0):
    """Return an accountant that has been charged."""
    config, event, other = releases(seed)
    accountant = kind(config)
    for release, count in ((other, before), (event, rounds)):
        if count:
            accountant.compose(release, count)
    return accountant


def limits():
    """Return, for every seed, what went before and a limit: that of some rounds, or beside it."""
    for seed in range(SETTINGS):
        draw = random.Random(-1 - seed)  # noqa: S311
        before, rounds = draw.choice([0, 0, 3]), draw.randint(1, 8 if seed % 16 else 4)
        off = draw.choice([0.0, 1e-9, -1e-9, 1e-4, -1e-4, 0.009, -0.009, draw.uniform(-0.5, 0.5)])
        yield seed, before, afresh(seed, before, rounds) * (1.0 + off)


def check_stop(kind):
    """Every round that is allowed keeps within the limit, and the first refused would not."""
    for seed, before, limit in limits():
        accountant, budget, rounds = started(kind, seed, before), Budget(), 0
        event = releases(seed)[1]
        try:
            while rounds < MOST_ROUNDS:
                budget.spend(accountant, event, limit)
                accountant.compose(event)
                rounds += 1
                assert afresh(seed, before, rounds) <= limit
        except PrivacyBudgetExhausted:
            assert afresh(seed, before, rounds + 1) > limit


def check_answers(kind):
    """The same for every count that may be asked for, in any order: answers are remembered."""
    for seed, before, limit in limits():
        accountant, event = started(kind, seed, before), releases(seed)[1]
        counts = [*range(1, 9 if seed % 16 else 6)]
        random.Random(seed).shuffle(counts)  # noqa: S311
        for count in counts:
            exceeds = accountant.would_exceed(event, limit, count)
            assert exceeds is (afresh(seed, before, count) > limit)


class OneLate(PldAccountant):
    """The mutant that lets the least count through that is known to exceed, as `>` would."""

    def would_exceed(self, event, max_epsilon=None, count=1):
        others = dict(self._counts)
        release = self._release(event)
        wanted = others.pop(release, 0) + count
        known = self._limits.get((release, max_epsilon, frozenset(others.items())), (0, math.inf))
        return super().would_exceed(event, max_epsilon, count) and wanted != known[1]


class PercentLate(PldAccountant):
    """The mutant whose limit is 1% late."""

    def would_exceed(self, event, max_epsilon=None, count=1):
        return super().would_exceed(event, 1.01 * max_epsilon, count)


class Early(PldAccountant):
    """The mutant that stops 0.01% early."""

    def would_exceed(self, event, max_epsilon=None, count=1):
        return super().would_exceed(event, max_epsilon / 1.0001, count)


@pytest.mark.parametrize("check", [check_stop, check_answers])
def test_what_is_allowed_is_what_fits(check):
    """200 settings of sampling, rate, noise, N, delta and limit, most within 1% of attainable."""
    check(PldAccountant)
    for mutant in (OneLate, PercentLate, Early):
        assert_detects(check, mutant)


@pytest.mark.parametrize(
    ("kind", "limit", "rate"),
    [(BestAccountant, 5.0, 1.0), (BestAccountant, 1.5, 0.26), (RdpAccountant, 2.0, 0.26)],
)
def test_a_strategy_trains_as_long_as_it_fits(kind, limit, rate):
    """The epsilon that a run ends with keeps within the limit, and one round more would not."""
    config = poisson_accountant(population=20, delta=1e-5).config
    accountant, grid = kind(config), FakeGrid(range(20))
    strategy = make(
        noise_multiplier=2.0,
        sampling_rate=rate,
        accountant=accountant,
        max_epsilon=limit,
    )
    for rounds in range(50):
        try:
            play(strategy, grid, vector_model(), lambda _, m: private_reply(m), rounds + 1)
        except PrivacyBudgetExhausted:
            break
    assert 2 <= rounds == accountant.num_releases
    for count, exceeds in ((rounds, False), (rounds + 1, True)):
        fresh = kind(config)
        event = poisson_event(
            noise_multiplier=strategy.noise_multiplier, sampling_rate=rate, population=20
        )
        fresh.compose(event, count)
        assert (fresh.get_epsilon(1e-5) > limit) is exceeds
