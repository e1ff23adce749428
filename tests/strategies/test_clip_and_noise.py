"""The strategy: what a round does to the model, and what it costs."""

import json
import math
import re
import sys
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant as DirectPldAccountant
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    strategy_utils,
)
from scipy.special import ndtr

from flwr_sdp import SeparatedBudget, SeparatedMechanism, secure_generator, seeded_generator
from flwr_sdp.clients import SeparatedDPMod, protect
from flwr_sdp.strategies import poisson_accountant, poisson_rdp_accountant
from simulations.engine.local_grid import LocalGrid
from tests.messages import (
    MARKS,
    FakeGrid,
    client_app,
    error_reply,
    flat,
    numpy_dict,
    private_reply,
    record,
    reply_with,
    shifted,
)
from tests.rounds import (
    RHO,
    Ledger,
    ask,
    inner,
    make,
    mixed_model,
    play,
    unit_update,
    vector_model,
)
from tests.statistics_helpers import (
    N_SIGMA,
    assert_detects,
    assert_frequency,
    assert_mean_close,
)


@pytest.fixture(autouse=True)
def _no_endless_wait(monkeypatch):
    """A strategy of Flower's that waits for more nodes would wait for ever."""

    def refuse(_seconds):
        raise AssertionError("the inner strategy waits for nodes that never come")

    monkeypatch.setattr(strategy_utils, "sleep", refuse)


# ------------------------------------------------------------------ the noise
DIM = 4000


def steps_of_noise(strategy, rounds=5, update=0.0, answers=True):
    """Return the noise of several rounds on the sum, a row a round."""
    grid, model, rows = FakeGrid(range(40)), vector_model(DIM), []
    for server_round in range(1, rounds + 1):
        arrays, _ = play(
            strategy,
            grid,
            model,
            lambda _i, message: private_reply(message, update) if answers else None,
            server_round,
        )
        rows.append((flat(arrays) - flat(model)) * strategy.expected_cohort)
        model = arrays
    return np.array(rows)


def noisy(noise_multiplier=0.7, **options):
    settings = {"noise_multiplier": noise_multiplier, "sampling_rate": 0.25}
    return make(**(settings | options), accountant=Ledger(40))


def check_noise(noise, expected_std):
    assert_mean_close(noise.ravel(), 0.0, variance=expected_std**2)
    assert_mean_close(noise.ravel() ** 2, expected_std**2, variance=2 * expected_std**4)
    assert noise.std() == pytest.approx(expected_std, rel=0.03)


def check_independent_rounds(noise):
    """Correlations of n pairs of independent numbers have standard error 1 / sqrt(n)."""
    for one, other in pairwise(noise):
        assert abs(np.corrcoef(one, other)[0, 1]) <= N_SIGMA / math.sqrt(DIM)


def test_noise_on_the_sum_is_the_multiplier_times_the_clip_norm():
    """20,000 coordinates: 3% is 6 standard errors, false alarms at 1.2e-6 in all.

    The mutants have 10% more noise, and noise for the cohort in place of the expected one.
    """
    noise = steps_of_noise(noisy())
    check_noise(noise, 0.7 * RHO)
    assert_detects(check_noise, steps_of_noise(noisy(0.77)), 0.7 * RHO)
    assert_detects(check_noise, noise * math.sqrt(8 / 10), 0.7 * RHO)


def test_noise_is_the_same_when_nobody_replies():
    """20,000 coordinates, as above. The mutant stays silent in one round of five."""
    noise = steps_of_noise(noisy(), answers=False)
    check_noise(noise, 0.7 * RHO)
    noise[2] = 0.0
    assert_detects(check_noise, noise, 0.7 * RHO)


def test_secure_noise_has_the_same_law():
    """20,000 coordinates, as above."""
    noise = steps_of_noise(noisy(rng=None))
    check_noise(noise, 0.7 * RHO)
    check_independent_rounds(noise)


def test_noise_over_two_thousand_rounds_of_zero_updates():
    """std of (new - old) x expected cohort is z rho: 20,000 numbers, and 3% is 6 standard errors.

    The mutant has 10% more noise in half of the rounds.
    """
    strategy = make(noise_multiplier=0.7, sampling_rate=0.25, accountant=Ledger(4))
    model = vector_model(10)
    grid, moves = FakeGrid(range(4)), []
    for server_round in range(1, 2001):
        arrays, _ = play(strategy, grid, model, lambda _i, m: private_reply(m), server_round)
        moves.append(flat(arrays) - flat(model))
        model = arrays
    moves = np.array(moves)

    def check(moves):
        assert (moves * strategy.expected_cohort).std() == pytest.approx(0.7 * RHO, rel=0.03)

    check(moves)
    moves[::2] *= 1.1
    assert_detects(check, moves)


def test_noise_of_the_rounds_is_independent():
    """4 pairs of rounds with 4,000 coordinates each; false alarms at 2.3e-6.

    The mutant draws every round from the same stream.
    """
    check_independent_rounds(steps_of_noise(noisy()))
    mutant = [steps_of_noise(noisy(rng=seeded_generator(9)), rounds=1)[0] for _ in range(3)]
    assert_detects(check_independent_rounds, np.array(mutant))


def test_two_runs_by_default_have_different_noise():
    first, second = (steps_of_noise(noisy(rng=None, seed=0), rounds=1) for _ in range(2))
    assert not np.any(first == second)


def test_release_is_unbiased():
    """20,000 coordinates of noise around the sum; false alarms at 5.7e-7. The mutant is 12% off."""
    strategy = noisy(sampling_rate=1.0)
    sums = steps_of_noise(strategy, update=np.full(DIM, 0.02))

    def check(total):
        assert_mean_close(sums.ravel(), total, variance=(0.7 * RHO) ** 2)

    check(40 * 0.02)
    assert_detects(check, 39 * 0.018)


def test_noise_norm_is_reported():
    strategy = noisy()
    noise = steps_of_noise(strategy, rounds=1)
    assert strategy.last_round["noise-norm"] == pytest.approx(0.7 * RHO * math.sqrt(DIM) / 10)
    assert strategy.last_round["mean-norm"] == pytest.approx(np.linalg.norm(noise) / 10)


def test_signal_to_noise_is_estimated_from_what_is_released():
    """A signal three times the noise, in 4,000 coordinates: known to a few percent.

    The noise alone gives less than its own fluctuation, sqrt(sqrt(2 / 4000)) = 0.15, 3 sigma: 0.26.
    """
    # 40 on every coordinate of the sum is 1 on the mean of 40.
    strategy = noisy(sampling_rate=1.0, clip_norm=1e4, noise_multiplier=0.004)
    steps_of_noise(strategy, rounds=1, update=np.full(DIM, 3.0))
    assert strategy.last_round["signal-to-noise"] == pytest.approx(3.0, rel=0.05)
    silent = noisy()
    steps_of_noise(silent, rounds=1)
    assert 0.0 <= silent.last_round["signal-to-noise"] < 0.26
    without = make()
    play(without, FakeGrid(range(2)), vector_model(), lambda _i, m: private_reply(m, 1.0))
    assert "signal-to-noise" not in without.last_round


def test_peak_memory_is_that_of_the_process():
    strategy = make()
    play(strategy, FakeGrid(range(2)), vector_model(), lambda _i, m: private_reply(m))
    before = strategy.last_round["peak-memory-mib"]
    ballast = np.ones(int((before + 50.0) * 2**20), np.uint8)  # more than the peak, by itself
    play(strategy, FakeGrid(range(2)), vector_model(), lambda _i, m: private_reply(m), 2)
    assert before + 50.0 <= strategy.last_round["peak-memory-mib"] <= 2.0 * before + 100.0
    assert ballast[-1] == 1


# ------------------------------------------------------------------ one client moves the sum by rho
@pytest.mark.parametrize("eta", [1.0, 0.5, 3.0])
def test_model_moves_by_the_clipped_sum_over_the_expected_cohort(eta):
    strategy = make(server_learning_rate=eta, sampling_rate=0.5, population=20)
    updates = np.random.default_rng(0).standard_normal((20, 4))
    model = vector_model()
    arrays, metrics = play(
        strategy, FakeGrid(range(20)), model, lambda i, m: private_reply(m, updates[i])
    )
    cohort = metrics["cohort"]
    lengths = np.linalg.norm(updates[:cohort], axis=1, keepdims=True)
    clipped = updates[:cohort] * np.minimum(1.0, RHO / lengths)
    np.testing.assert_allclose(flat(arrays), eta * clipped.sum(axis=0) / 10, rtol=1e-9)
    assert metrics["fraction-projected"] == np.mean(lengths > RHO)
    assert 0 < metrics["fraction-projected"] < 1
    assert metrics["mean-norm"] == pytest.approx(np.linalg.norm(clipped.sum(axis=0)) / 10)


def test_two_replies_of_a_hundred_move_the_model_by_two_hundredths():
    arrays, metrics = play(
        make(server_learning_rate=0.5),
        FakeGrid(range(100)),
        vector_model(),
        lambda i, m: private_reply(m, unit_update(length=RHO)) if i < 2 else None,
    )
    assert (metrics["cohort"], metrics["replies"], metrics["failures"]) == (100, 2, 0)
    assert np.linalg.norm(flat(arrays)) == pytest.approx(2 * RHO / 100 * 0.5)


def test_no_client_weighs_more_than_another():
    def answer(index, message):
        if index == 0:
            return private_reply(message, unit_update(), num_examples=1e6)
        return private_reply(message, -unit_update(), num_examples=1)

    arrays, _ = play(make(), FakeGrid(range(2)), vector_model(), answer)
    np.testing.assert_array_equal(flat(arrays), 0.0)


@pytest.mark.parametrize("num_examples", [0, -5, math.nan, math.inf, 1e300])
def test_claimed_example_counts_do_not_matter(num_examples):
    arrays, metrics = play(
        make(),
        FakeGrid(range(4)),
        vector_model(),
        lambda _i, m: private_reply(m, unit_update(), num_examples=num_examples),
    )
    assert metrics["replies"] == 4
    np.testing.assert_allclose(flat(arrays), unit_update())


@pytest.mark.parametrize("length", [1e3, 1e9, 1e100, 1e200, 1e300])
def test_gigantic_reply_moves_the_model_by_rho_at_most(length):
    def answer(index, message):
        return private_reply(message, unit_update(length=length) if index == 0 else 0.0)

    arrays, metrics = play(make(), FakeGrid(range(10)), vector_model(), answer)
    assert np.linalg.norm(flat(arrays)) <= RHO / 10 * (1 + 1e-12)
    if length <= 1e100:
        assert np.linalg.norm(flat(arrays)) == pytest.approx(RHO / 10)
        assert metrics["fraction-projected"] == 0.1
    else:
        assert metrics["replies"] + metrics["refused"] == 10


@pytest.mark.parametrize("replies", [0, 1, 3, 10])
def test_failures_do_not_change_the_divisor(replies):
    arrays, metrics = play(
        make(),
        FakeGrid(range(10)),
        vector_model(),
        lambda i, m: private_reply(m, unit_update()) if i < replies else error_reply(m),
    )
    assert (metrics["cohort"], metrics["replies"], metrics["failures"]) == (
        10,
        replies,
        10 - replies,
    )
    np.testing.assert_allclose(flat(arrays), unit_update() * replies / 10, rtol=1e-12)


def test_seven_errors_among_a_hundred():
    strategy = make()
    arrays, metrics = play(
        strategy,
        FakeGrid(range(100)),
        vector_model(),
        lambda i, m: private_reply(m, unit_update()) if i >= 7 else error_reply(m, "no disk"),
    )
    np.testing.assert_allclose(flat(arrays), unit_update() * 0.93, rtol=1e-12)
    assert metrics["failures"] == 7
    assert "a client failed: no disk (7x)" in strategy.report().exceptions


def test_divisor_is_the_expected_cohort_when_the_cohort_is_larger():
    """10 nodes joined after the first round: more replies, the same divisor."""
    strategy, grid, model = make(), FakeGrid(range(5)), vector_model()
    play(strategy, grid, model, lambda _i, m: private_reply(m, unit_update()))
    grid.node_ids = list(range(15))
    arrays, metrics = play(strategy, grid, model, lambda _i, m: private_reply(m, unit_update()), 2)
    assert metrics["cohort"] == metrics["replies"] == 15
    assert strategy.expected_cohort == 5
    np.testing.assert_allclose(flat(arrays), unit_update() * 3, rtol=1e-12)


def test_empty_cohort_is_a_step_of_noise():
    strategy = make(noise_multiplier=1.0, sampling_rate=1e-9, accountant=Ledger(1000))
    model = vector_model(1000)
    arrays, metrics = play(strategy, FakeGrid(range(5)), model, None)
    assert (metrics["cohort"], metrics["replies"]) == (0, 0)
    assert np.all(flat(arrays) != flat(model))
    assert strategy.privacy_spent().num_releases == 1
    assert strategy.report().rounds == 1


def test_infinite_clip_norm_clips_nothing():
    arrays, metrics = play(
        make(clip_norm=math.inf),
        FakeGrid(range(2)),
        vector_model(),
        lambda _i, m: private_reply(m, 1e6),
    )
    np.testing.assert_allclose(flat(arrays), 1e6)
    assert metrics["fraction-projected"] == 0.0


# ------------------------------------------------------------------ replies that are refused
def with_arrays(**arrays):
    def make_reply(message):
        reply = private_reply(message)
        reply.content["arrays"] = record(arrays)
        return reply

    return make_reply


def with_marks(marks):
    return lambda message: private_reply(message, unit_update(), marks=marks)


def two_records(message, marks=MARKS):
    reply = private_reply(message, unit_update(), marks=marks)
    reply.content["more"] = vector_model()
    return reply


def no_arrays(message):
    reply = private_reply(message, unit_update())
    del reply.content["arrays"]
    return reply


def no_metrics(message):
    reply = private_reply(message, unit_update())
    del reply.content["metrics"]
    return reply


def nothing_at_all(message):
    return Message(RecordDict(), reply_to=message)


def damaged(**fields):
    def make_reply(message):
        reply = private_reply(message, unit_update())
        for name, value in fields.items():
            setattr(reply.content["arrays"]["w"], name, value)
        return reply

    return make_reply


REFUSED = {
    "other keys": with_arrays(v=np.ones(4)),
    "more keys": with_arrays(w=np.ones(4), v=np.ones(4)),
    "no keys": with_arrays(),
    "other shape": with_arrays(w=np.ones((2, 2))),
    "one number": with_arrays(w=np.ones(())),
    "integers": with_arrays(w=np.ones(4, np.int64)),
    "booleans": with_arrays(w=np.ones(4, bool)),
    "complex": with_arrays(w=np.ones(4, complex)),
    "text": with_arrays(w=np.full(4, "1.0")),
    "NaN": with_arrays(w=np.array([0.0, math.nan, 0.0, 0.0])),
    "inf": with_arrays(w=np.array([0.0, math.inf, 0.0, 0.0])),
    "minus inf": with_arrays(w=np.array([0.0, -math.inf, 0.0, 0.0])),
    "no bytes": damaged(data=b""),
    "damaged bytes": damaged(data=b"not an array"),
    "other serialisation": damaged(stype="pickle"),
    "no mark": with_marks({}),
    "half a mark": with_marks({"ldp-epsilon-direction": 8.0}),
    "zero mark": with_marks(MARKS | {"ldp-epsilon-direction": 0.0}),
    "negative mark": with_marks(MARKS | {"ldp-epsilon-magnitude": -1.0}),
    "infinite mark": with_marks(MARKS | {"ldp-epsilon-magnitude": math.inf}),
    "NaN mark": with_marks(MARKS | {"ldp-epsilon-magnitude": math.nan}),
    "list mark": with_marks(MARKS | {"ldp-epsilon-magnitude": [1.0]}),
    "two ArrayRecords": two_records,
    "no ArrayRecord": no_arrays,
    "no MetricRecord": no_metrics,
    "nothing": nothing_at_all,
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_bad_reply_never_enters_the_sum(name):
    strategy = make()

    def answer(index, message):
        if index == 1:
            return REFUSED[name](message)
        return private_reply(message, 0.5 * unit_update())

    arrays, metrics = play(strategy, FakeGrid(range(4)), vector_model(), answer)
    np.testing.assert_allclose(flat(arrays), 0.5 * unit_update() * 3 / 4, rtol=1e-12)
    assert (metrics["replies"], metrics["refused"], metrics["failures"]) == (3, 1, 0)
    refusals = [text for text in strategy.report().exceptions if "reply was refused" in text]
    assert len(refusals) == 1
    assert refusals[0].endswith("(1x)")


def test_every_reply_refused_is_a_round_of_nobody():
    strategy = make()
    arrays, metrics = play(
        strategy, FakeGrid(range(3)), vector_model(), lambda _i, m: REFUSED["NaN"](m)
    )
    np.testing.assert_array_equal(flat(arrays), 0.0)
    assert (metrics["replies"], metrics["refused"], metrics["fraction-projected"]) == (0, 3, 0.0)


def test_unmarked_replies_are_used_when_they_are_not_required():
    strategy = make(require_local_dp=False)
    arrays, metrics = play(
        strategy,
        FakeGrid(range(2)),
        vector_model(),
        lambda i, m: private_reply(m, unit_update(), marks=None if i else {}),
    )
    np.testing.assert_allclose(flat(arrays), unit_update())
    assert (metrics["replies"], metrics["refused"]) == (2, 0)
    report = strategy.report()
    assert report.local is None
    assert any("1 replies without the mark" in text for text in report.exceptions)


def test_report_states_the_weakest_mark():
    strategy = make()
    marks = [
        {"ldp-epsilon-direction": 8.0, "ldp-epsilon-magnitude": 2.0},
        {"ldp-epsilon-direction": 5.0, "ldp-epsilon-magnitude": 3.0},
    ]
    play(
        strategy,
        FakeGrid(range(2)),
        vector_model(),
        lambda i, m: private_reply(m, marks=marks[i]),
    )
    local = strategy.report().local
    assert (local.epsilon_direction, local.epsilon_magnitude) == (8.0, 3.0)


def test_clients_cannot_flood_the_report():
    strategy = make()
    play(
        strategy,
        FakeGrid(range(200)),
        vector_model(),
        lambda i, m: error_reply(m, f"{i} " + "x" * 10_000),
    )
    exceptions = strategy.report().exceptions
    assert len(exceptions) <= 60
    assert all(len(text) <= 250 for text in exceptions)
    assert any("further exceptions" in text for text in exceptions)


def test_replies_may_come_as_a_generator():
    strategy, grid = make(), FakeGrid(range(3))
    messages = ask(strategy, grid, vector_model())
    arrays, _ = strategy.aggregate_train(
        1, (private_reply(message, unit_update()) for message in messages)
    )
    np.testing.assert_allclose(flat(arrays), unit_update())


# ------------------------------------------------------------------ the cohort
def cohorts(strategy, rounds, nodes=100):
    grid, model = FakeGrid(range(nodes)), vector_model()
    return [
        [message.metadata.dst_node_id for message in ask(strategy, grid, model, server_round)]
        for server_round in range(1, rounds + 1)
    ]


def test_cohorts_are_poisson_draws():
    """300 rounds of 100 nodes: 30,000 draws; false alarms at 5.7e-7 for each of the checks.

    The variance of a sample variance of n sizes is about 2 sigma^4 / n. Mutants: a rate of 0.3, and
    cohorts of one size.
    """
    drawn = cohorts(make(sampling_rate=0.25), 300)
    sizes = np.array([len(cohort) for cohort in drawn])

    def check(sizes):
        assert_frequency(sizes.sum(), 300 * 100, 0.25)
        variance = 100 * 0.25 * 0.75
        error = variance * math.sqrt(2.0 / (len(sizes) - 1)) * 1.01
        assert abs(sizes.var(ddof=1) - variance) <= N_SIGMA * error

    check(sizes)
    mutant = [len(cohort) for cohort in cohorts(make(sampling_rate=0.3), 300)]
    assert_detects(check, np.array(mutant))
    assert_detects(check, np.full(300, 25))


def test_secure_cohorts_have_the_same_rate():
    """10,000 draws; false alarms at 5.7e-7."""
    sizes = [len(cohort) for cohort in cohorts(make(sampling_rate=0.25, seed=None), 100)]
    assert_frequency(sum(sizes), 100 * 100, 0.25)


def test_seeded_cohorts_repeat_from_run_to_run_and_not_from_round_to_round():
    first, again = (cohorts(make(sampling_rate=0.5, seed=4), 5) for _ in range(2))
    assert first == again
    assert len({tuple(cohort) for cohort in first}) == 5
    assert cohorts(make(sampling_rate=0.5, seed=5), 5) != first


def test_default_cohorts_are_not_repeatable():
    first, again = (cohorts(make(sampling_rate=0.5, seed=None), 5) for _ in range(2))
    assert first != again


def test_round_can_be_drawn_again_on_its_own():
    """Round 3 asks whom it asks, whatever was drawn before it."""
    strategy = make(sampling_rate=0.5)
    messages = ask(make(sampling_rate=0.5), FakeGrid(range(100)), vector_model(), 3)
    assert [message.metadata.dst_node_id for message in messages] == cohorts(strategy, 3)[2]


def test_rate_one_asks_everyone():
    assert cohorts(make(), 2, nodes=7) == [list(range(7))] * 2


def test_inner_sample_does_not_change_the_cohort():
    """FedAvg would ask a tenth of the nodes, and at least 3: the cohort is asked all the same."""
    strategy = make(inner(fraction_train=0.1, min_train_nodes=3, min_available_nodes=3))
    assert cohorts(strategy, 2, nodes=9) == [list(range(9))] * 2


class AsksOneNodeSomethingElse(FedAvg):
    """Asks each node in turn, but for one with words of its own, and keeps its messages."""

    def configure_train(self, *args):
        self.messages = list(super().configure_train(*args))
        other = RecordDict({"arrays": vector_model(), "you": MetricRecord({"only": 3})})
        last = self.messages[-1].metadata.dst_node_id
        self.messages[-1] = Message(other, last, "train.other")
        return self.messages


def test_messages_of_the_inner_strategy_serve_where_they_say_the_same():
    strategy = make(inner(AsksOneNodeSomethingElse))
    messages = ask(strategy, FakeGrid(range(50)), vector_model())
    assert [message.metadata.dst_node_id for message in messages] == list(range(50))
    *theirs, other = strategy.strategy.messages
    assert sum(any(message is each for each in theirs) for message in messages) == 49
    assert not any(message is other for message in messages)
    for message in messages:
        assert message.content is theirs[0].content
        assert message.metadata.message_type == "train"


class NeedsTwoReplies(FedAvg):
    def aggregate_train(self, server_round, replies):
        listed = list(replies)
        return super().aggregate_train(server_round, listed) if len(listed) > 1 else (None, None)


def test_inner_strategy_that_does_not_aggregate_one_reply_is_an_error():
    """As a robust aggregator might: the round is charged, and nothing is released."""
    strategy = make(inner(NeedsTwoReplies), noise_multiplier=1.0)
    with pytest.raises(
        ValueError, match="strategy must aggregate a single reply; NeedsTwoReplies did not"
    ):
        play(strategy, FakeGrid(range(3)), vector_model(), lambda _i, m: private_reply(m))
    assert strategy.last_arrays is None
    assert strategy.privacy_spent().num_releases == 1


def test_memory_is_left_out_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    strategy = make()
    play(strategy, FakeGrid(range(3)), vector_model(), lambda _i, m: private_reply(m))
    assert "peak-memory-mib" not in strategy.last_round
    assert strategy.last_round["replies"] == 3


def test_inner_strategy_that_asks_nobody_is_an_error():
    strategy = make(inner(fraction_train=0.0))
    with pytest.raises(ValueError, match="strategy must ask the whole cohort"):
        ask(strategy, FakeGrid(range(3)), vector_model())


def test_messages_carry_what_the_inner_strategy_says():
    (message,) = ask(make(inner(FedProx, proximal_mu=0.25)), FakeGrid([5]), mixed_model(), 3)
    assert message.metadata.message_type == "train"
    assert dict(message.content["config"]) == {"proximal-mu": 0.25, "server-round": 3}
    assert list(message.content["arrays"]) == list(mixed_model())


def test_nodes_that_do_not_come_are_a_timeout():
    strategy = make(min_available_nodes=4, node_timeout=0.05)
    with pytest.raises(TimeoutError, match=r"3 of min_available_nodes=4 .*node_timeout=0.05"):
        ask(strategy, FakeGrid(range(3)), vector_model())


# ------------------------------------------------------------------ fixed-size cohorts
def fixed(cohort_size=10, **options):
    return make(**({"sampling_rate": None, "cohort_size": cohort_size} | options))


def test_fixed_cohorts_have_one_size_and_every_node_the_same_chance():
    """300 rounds of 10 in 40: 12,000 draws, 3,000 of them in; a node's count is binomial.

    False alarms at 2.3e-5 over the 40 nodes. The mutant leaves out the last node.
    """
    drawn = np.zeros((300, 40), dtype=bool)
    for row, cohort in zip(drawn, cohorts(fixed(), 300, nodes=40), strict=True):
        assert len(cohort) == len(set(cohort)) == 10
        assert cohort == sorted(cohort)
        row[cohort] = True

    def check(drawn):
        for column in drawn.T:
            assert_frequency(column.sum(), 300, 0.25)

    check(drawn)
    mutant = drawn.copy()
    mutant[:, -1] = False
    assert_detects(check, mutant)


def test_secure_fixed_cohorts_differ():
    first, again = (cohorts(fixed(seed=None), 5, nodes=40) for _ in range(2))
    assert first != again
    assert cohorts(fixed(seed=3), 5, nodes=40) == cohorts(fixed(seed=3), 5, nodes=40)


def test_divisor_of_a_fixed_cohort_is_its_size_whoever_replies():
    """100 asked, 7 fail."""
    strategy = fixed(100)
    arrays, metrics = play(
        strategy,
        FakeGrid(range(300)),
        vector_model(),
        lambda i, m: private_reply(m, unit_update()) if i >= 7 else error_reply(m),
    )
    assert (metrics["cohort"], metrics["replies"], metrics["failures"]) == (100, 93, 7)
    assert strategy.expected_cohort == 100
    np.testing.assert_allclose(flat(arrays), unit_update() * 0.93, rtol=1e-12)


def test_noise_of_a_fixed_cohort_is_the_multiplier_times_the_clip_norm():
    """20,000 coordinates: 3% is 6 standard errors. The mutant has half of the noise."""
    strategy = fixed(noise_multiplier=0.7)
    noise = steps_of_noise(strategy)
    check_noise(noise, 0.7 * RHO)
    assert_detects(check_noise, noise / 2.0, 0.7 * RHO)


@pytest.mark.parametrize("cohort_size", [1, 10, 40])
def test_fixed_cohorts_are_charged_at_twice_the_sensitivity_without_amplification(cohort_size):
    """A client that comes takes the place of another: 2 rho. The mutant charges for rho.

    The delta of three Gaussians is that of one (Balle and Wang, ICML 2018, Theorem 8).
    """
    strategy = fixed(cohort_size, noise_multiplier=8.0, delta=1e-5, rng=secure_generator())
    spent = run_rounds(strategy, 3, nodes=40).privacy_spent()

    def check(noise_multiplier):
        mu, epsilon = math.sqrt(3.0) / noise_multiplier, spent.epsilon
        delta = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-3)
        assert delta <= 1e-5

    check(4.0)
    assert_detects(check, 8.0)
    report = strategy.report()
    assert report.central.sampling == "fixed-size"
    assert report.central.sampling_rate == cohort_size / 40
    assert f"fixed-size cohorts of {cohort_size}" in report.to_text()
    assert report.to_dict()["central"]["sampling"] == "fixed-size"


def test_exchange_of_a_member_moves_the_sum_by_two_rho():
    """What the charge for fixed cohorts is for."""
    sums = []
    for direction in (1.0, -1.0):
        arrays, _ = play(
            fixed(1),
            FakeGrid([0]),
            vector_model(),
            lambda _i, m, d=direction: private_reply(m, unit_update(length=d * 100.0)),
        )
        sums.append(flat(arrays))
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(2 * RHO)


def test_too_few_nodes_for_a_fixed_cohort_are_a_timeout_that_names_it():
    strategy = fixed(10, node_timeout=0.05)
    with pytest.raises(TimeoutError, match=r"3 of cohort_size=10 .*lower cohort_size"):
        ask(strategy, FakeGrid(range(3)), vector_model())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sampling_rate": 0.5}, "cohort_size must be left out when sampling_rate is given"),
        ({"cohort_size": 0}, "cohort_size must be an integer >= 1; got 0"),
        ({"cohort_size": 2.5}, "cohort_size must be an integer >= 1; got 2.5"),
        ({"cohort_size": None}, r"sampling_rate must be a number in \(0, 1\], or cohort_size"),
        ({"cohort_size": 9, "population": 8}, "cohort_size must be <= population=8; got 9"),
    ],
)
def test_cohorts_that_make_no_sense_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        fixed(**options)


# ------------------------------------------------------------------ inner strategies
INNER = [FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedProx]


def build(kind):
    options = {FedAvgM: {"server_momentum": 0.9}, FedProx: {"proximal_mu": 0.25}}
    return inner(kind, **options.get(kind, {}))


def towards_one(message):
    """A client that goes halfway to 1, with a mark, and shakes up the buffers."""
    arrays = numpy_dict(message.content["arrays"])
    for name, value in arrays.items():
        if np.issubdtype(value.dtype, np.floating):
            arrays[name] = np.asarray(0.5 * value + 0.5, dtype=value.dtype)
        elif value.dtype == np.bool_:
            arrays[name] = ~value
        else:
            arrays[name] = value + 100
    reply = private_reply(message)
    reply.content["arrays"] = record(arrays)
    return reply


@pytest.mark.parametrize("kind", INNER)
@pytest.mark.parametrize("nodes", [5, 1])
def test_inner_strategies_optimise(kind, nodes):
    """Three rounds towards 1: the model comes nearer, in its dtypes, with its buffers."""
    model, grid = mixed_model(), FakeGrid(range(nodes), towards_one)
    result = make(build(kind)).start(grid, model, num_rounds=3)
    assert len(grid.sent) == 3 * nodes
    assert list(result.arrays) == list(model)
    for name, array in result.arrays.items():
        assert (array.dtype, array.shape) == (model[name].dtype, model[name].shape)
        assert str(array.numpy().dtype) == array.dtype
    for name in ("steps", "mask"):
        assert result.arrays[name].data == model[name].data
    before, after = (np.linalg.norm(1.0 - flat(arrays)) for arrays in (model, result.arrays))
    assert after < before
    assert all(list(message.content["arrays"]) == list(model) for message in grid.sent)


@pytest.mark.parametrize("kind", INNER)
def test_empty_cohorts_do_not_stop_a_run(kind):
    grid = FakeGrid(range(5), towards_one)
    ledger = Ledger(100)
    strategy = make(build(kind), noise_multiplier=0.01, sampling_rate=1e-9, accountant=ledger)
    result = strategy.start(grid, mixed_model(), num_rounds=3)
    assert grid.sent == []
    assert np.all(np.isfinite(flat(result.arrays)))
    assert result.arrays["steps"].data == mixed_model()["steps"].data
    assert strategy.privacy_spent().num_releases == 3


@pytest.mark.parametrize(
    "options", [{"weighted_by_key": "num-batches"}, {"arrayrecord_key": "weights"}], ids=str
)
def test_inner_strategy_may_name_its_records_otherwise(options):
    grid = FakeGrid(range(2), lambda message: private_reply(message, 0.5))
    result = make(inner(**options)).start(grid, vector_model(), num_rounds=2)
    np.testing.assert_allclose(flat(result.arrays), 1.0)


def test_proximal_mu_reaches_every_client():
    configs = []

    def answer(message):
        configs.append(dict(message.content["config"]))
        return towards_one(message)

    make(build(FedProx)).start(FakeGrid(range(3), answer), mixed_model(), num_rounds=2)
    assert configs == [
        {"proximal-mu": 0.25, "server-round": server_round} for server_round in [1, 1, 1, 2, 2, 2]
    ]


def test_adam_differs_from_the_mean():
    """The inner optimiser is really used: FedAdam's step is not FedAvg's."""
    results = [
        make(build(kind)).start(FakeGrid(range(3), towards_one), mixed_model(), num_rounds=2)
        for kind in (FedAvg, FedAdam)
    ]
    assert not np.allclose(*(flat(result.arrays) for result in results))


def test_adam_takes_the_private_mean_as_its_pseudo_gradient():
    """The same steps as Flower's own FedAdam on one client that sends the mean."""
    updates = np.random.default_rng(1).uniform(-0.1, 0.1, (3, 4))

    def one(message):
        return reply_with(message, shifted(message.content["arrays"], updates.mean(axis=0)))

    ours = make(inner(FedAdam)).start(
        FakeGrid(range(3), lambda m: private_reply(m, updates[m.metadata.dst_node_id])),
        vector_model(),
        num_rounds=3,
    )
    theirs = FedAdam(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1).start(
        FakeGrid([0], one), vector_model(), num_rounds=3
    )
    np.testing.assert_allclose(flat(ours.arrays), flat(theirs.arrays), rtol=1e-9)


@pytest.mark.parametrize("kind", INNER)
def test_epsilon_does_not_depend_on_the_inner_strategy(kind):
    """Whatever it does with the mean, the same events are charged."""
    ledger = Ledger(10)
    strategy = make(build(kind), noise_multiplier=1.0, sampling_rate=0.5, accountant=ledger)
    strategy.start(FakeGrid(range(10), towards_one), mixed_model(), num_rounds=3)
    event = GaussianPrivacyEvent(noise_multiplier=1.0, sample_size=5, population_size=10)
    assert ledger.charges == [event] * 3
    assert strategy.privacy_spent().epsilon == 3.0


@pytest.mark.parametrize("kind", INNER)
def test_without_privacy_it_is_the_inner_strategy(kind):
    """Equal example counts, no noise, no clipping, everyone asked: as Flower's own, to 1e-6.

    The floating-point arrays; Flower averages counters and masks as well, and here they stay.
    """

    def client(message):
        index = message.metadata.dst_node_id
        moved = shifted(message.content["arrays"], 0.1 * index)
        moved = record(
            {
                name: np.asarray(value * 0.9, dtype=value.dtype)
                if value.dtype.kind == "f"
                else value
                for name, value in numpy_dict(moved).items()
            }
        )
        return reply_with(message, moved)

    model = record({"w": mixed_model()["w"].numpy(), "b": mixed_model()["b"].numpy()})
    plain = build(kind).start(FakeGrid(range(7), client), model, num_rounds=4)
    wrapped = make(build(kind), clip_norm=math.inf, require_local_dp=False).start(
        FakeGrid(range(7), client), model, num_rounds=4
    )
    np.testing.assert_allclose(flat(wrapped.arrays), flat(plain.arrays), rtol=1e-6, atol=1e-6)
    assert not np.allclose(flat(wrapped.arrays), flat(model), atol=1e-3)


def test_adam_costs_what_averaging_costs():
    """By Flower's accountant, to the last bit; so does a fixed cohort under either."""
    spent = [
        run_rounds(make(build(kind), noise_multiplier=2.0, **sampling), 3).privacy_spent()
        for sampling in ({}, {"sampling_rate": None, "cohort_size": 5})
        for kind in (FedAvg, FedAdam)
    ]
    assert spent[0] == spent[1]
    assert spent[2] == spent[3]
    assert spent[0] != spent[2]


def test_evaluation_is_the_inner_strategys():
    def answer(message):
        if message.metadata.message_type == "train":
            return towards_one(message)
        content = {"metrics": MetricRecord({"num-examples": 1, "accuracy": 0.5})}
        return Message(RecordDict(content), reply_to=message)

    result = make(FedAvg()).start(FakeGrid(range(3), answer), mixed_model(), num_rounds=2)
    assert {r: dict(m) for r, m in result.evaluate_metrics_clientapp.items()} == {
        1: {"accuracy": 0.5},
        2: {"accuracy": 0.5},
    }
    assert set(result.train_metrics_clientapp[2]) >= {
        "cohort",
        "replies",
        "failures",
        "refused",
        "fraction-projected",
        "kept-length",
        "mean-norm",
        "noise-norm",
        "seconds",
        "peak-memory-mib",
    }


def test_model_sent_out_is_not_changed():
    model = mixed_model()
    before = {name: array.data for name, array in model.items()}
    play(make(noise_multiplier=1.0), FakeGrid(range(3)), model, lambda _i, m: private_reply(m, 1.0))
    assert {name: array.data for name, array in model.items()} == before


# ------------------------------------------------------------------ with real devices
def test_run_with_the_mod_in_one_process():
    """Private clients, clipped at the largest norm of a report: nothing refused or projected."""
    budget = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0)
    streams = iter(range(10_000))
    device = SeparatedDPMod(budget, 1.0, rng=lambda: seeded_generator(0, next(streams)))

    def train(message, _context):
        arrays = message.content["arrays"]
        return reply_with(message, shifted(arrays, {"w": 0.3 * (1.0 - arrays["w"].numpy())}))

    grid = LocalGrid(client_app(device, train), 20, {})
    probe = SeparatedMechanism.from_budget(4, budget, 1.0)
    strategy = make(clip_norm=probe.max_output_norm * (1 + 1e-9), noise_multiplier=0.01)
    result = strategy.start(grid, vector_model(), num_rounds=12)
    np.testing.assert_allclose(flat(result.arrays), 1.0, atol=0.35)
    last = strategy.last_round
    assert (last["replies"], last["failures"], last["refused"]) == (20, 0, 0)
    assert last["fraction-projected"] == 0.0
    assert strategy.report().local is None  # the noise is seeded
    grid = LocalGrid(client_app(SeparatedDPMod(budget, 1.0), train), 20, {})
    strategy = make(clip_norm=probe.max_output_norm * (1 + 1e-9))
    strategy.start(grid, vector_model(), num_rounds=1)
    report = strategy.report()
    assert report.local.epsilon_per_report == pytest.approx(probe.event.epsilon, rel=1e-12)
    assert report.local.epsilon_per_report <= budget.total


def test_devices_that_fail_are_counted():
    device = SeparatedDPMod(SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=8.0), 1.0)

    def train(message, context):
        if context.node_config["partition-id"] < 2:
            raise RuntimeError("patient 4711")
        return reply_with(message, message.content["arrays"])

    strategy = make()
    strategy.start(LocalGrid(client_app(device, train), 5, {}), vector_model(), num_rounds=1)
    assert (strategy.last_round["replies"], strategy.last_round["failures"]) == (3, 2)
    (exception,) = [text for text in strategy.report().exceptions if "failed" in text]
    assert "withheld" in exception
    assert "4711" not in exception


LEGACY_BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=4.0)


class LegacyClient(NumPyClient):
    def fit(self, parameters, config):
        return [weights + 0.25 for weights in parameters], 32, {"loss": 0.5}


def play_legacy(protected, **options):
    """Run a round of clients behind a ``client_fn``; the inner strategy's keys are for them."""
    app = ClientApp(client_fn=lambda _context: LegacyClient().to_client())
    if protected:
        app = protect(app, budget=LEGACY_BUDGET, max_norm=1.0, **options)
    keys = {"arrayrecord_key": "fitins.parameters", "configrecord_key": "fitins.config"}
    strategy = make(inner(**keys), clip_norm=100.0)
    model = ArrayRecord([np.zeros((3, 4), np.float32), np.zeros(4)])
    strategy.start(LocalGrid(app, 5, {}), model, num_rounds=1)
    return strategy


def test_legacy_clients_are_known_by_their_marks():
    strategy = play_legacy(protected=True)
    mechanism = SeparatedMechanism.from_budget(16, LEGACY_BUDGET, 1.0)
    assert (strategy.last_round["replies"], strategy.last_round["refused"]) == (5, 0)
    report = strategy.report()
    assert report.local.epsilon_direction == mechanism.event.epsilon_direction
    assert report.local.epsilon_magnitude == mechanism.event.epsilon_magnitude
    assert not any("metric" in text for text in report.exceptions)
    moved = flat(strategy.last_arrays)
    assert np.all(moved != 0.0)
    assert not np.any(np.isclose(moved, 0.25))


def test_legacy_clients_without_the_mod_are_refused():
    strategy = play_legacy(protected=False)
    assert (strategy.last_round["replies"], strategy.last_round["refused"]) == (0, 5)
    assert strategy.report().local is None


def test_metrics_that_legacy_clients_release_are_reported():
    strategy = play_legacy(protected=True, released_metrics="loss")
    assert any("'loss' left devices" in text for text in strategy.report().exceptions)


def test_statistics_that_are_left_alone_are_said_once(caplog):
    def asked(model, **options):
        caplog.clear()
        strategy = make(**options)
        for server_round in (1, 2):
            ask(strategy, FakeGrid(range(3)), model, server_round)
        return [entry.getMessage() for entry in caplog.records if "excluded" in entry.message]

    model = record({"w": np.zeros(3), "bn.running_mean": np.zeros(2), "bn.running_var": np.ones(2)})
    (warning,) = asked(model)
    assert "2 arrays, such as 'bn.running_mean'" in warning
    assert asked(vector_model()) == []
    assert asked(model, excluded=()) == []
    assert asked(model, trainable="w") == []  # they belong to a part that is frozen


# ------------------------------------------------------------------ accounting
def direct_epsilon(rate, noise_multiplier, rounds, delta):
    """Return the epsilon of dp-accounting's own privacy loss distributions, to 1e-3."""
    accountant = DirectPldAccountant(value_discretization_interval=1e-4)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)), rounds)
    return accountant.get_epsilon(delta)


def run_rounds(strategy, rounds, nodes=20, answer=private_reply):
    grid, model = FakeGrid(range(nodes)), vector_model()
    for server_round in range(1, rounds + 1):
        play(strategy, grid, model, lambda _i, message: answer(message), server_round)
    return strategy


@pytest.mark.parametrize(
    ("rate", "noise_multiplier", "rounds", "delta"),
    [(0.25, 4.0, 3, 1e-5), (0.5, 0.3, 1, 1e-6), (1.0, 4.0, 9, 1e-5), (0.22, 4.0, 2, 1e-5),
     (0.003, 0.8, 4, 1e-6)],
)  # fmt: skip
def test_epsilon_is_that_of_dp_accounting(rate, noise_multiplier, rounds, delta):
    """At the rate drawn with, which the report has; 0.22 of 20 is 4.4 clients, 0.003 is 0.06."""
    strategy = make(
        noise_multiplier=noise_multiplier, sampling_rate=rate, delta=delta, rng=secure_generator()
    )
    spent = run_rounds(strategy, rounds).privacy_spent()
    expected = direct_epsilon(rate, noise_multiplier, rounds, delta)
    assert spent.epsilon == pytest.approx(expected, rel=2e-3)
    assert (spent.delta, spent.num_releases) == (delta, rounds)
    assert strategy.last_round["cdp-epsilon"] == spent.epsilon
    central = strategy.report().central
    assert (central.epsilon, central.sampling_rate) == (spent.epsilon, rate)


def test_an_accountant_of_whole_clients_is_reported_with_its_rate():
    """5.2 of 20 clients are 6 to Flower's accountant; what is projected goes by the 5.2."""
    accountant = poisson_rdp_accountant(population=20, delta=1e-5)
    options = {"sampling_rate": 0.26, "accountant": accountant, "rng": secure_generator()}
    report = run_rounds(make(noise_multiplier=4.0, **options), 2).report()
    theirs = poisson_rdp_accountant(population=20, delta=1e-5)
    theirs.compose(GaussianPrivacyEvent(4.0, 6, 20), 2)
    assert report.central.epsilon == theirs.get_epsilon(1e-5)
    assert report.central.sampling_rate == 6 / 20
    assert any("drawn at rate 0.26 and rounds charged at 0.3" in e for e in report.exceptions)
    assert "rate 0.3," in report.to_text()
    projected = report.central.projected(population=10**6, noise_multiplier=4.0, delta=1e-7)
    assert projected.sampling_rate == pytest.approx(5.2 / 10**6, rel=1e-12)
    exact = run_rounds(make(noise_multiplier=4.0, **options | {"accountant": None}), 2).report()
    assert exact.central.sampling_rate == 0.26
    assert not any("charged at" in text for text in exact.exceptions)


@pytest.mark.parametrize(
    ("population", "delta", "is_warned"),
    [
        (100, 0.05, True),
        (100, 0.01, True),
        (49, 1 / 49, True),
        (100, 0.0099, False),
        (100, None, False),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_a_delta_that_publishes_a_client_is_named(population, delta, is_warned, own):
    """Before the run and after, in the notes, and once in the text: beside the number."""
    options = {"population": population, "delta": delta}
    if own:
        delta = delta or 1e-5
        options = {"accountant": poisson_accountant(population=population, delta=delta)}
    strategy = make(noise_multiplier=4.0, rng=secure_generator(), **options)
    for rounds in (0, 1):
        report = run_rounds(strategy, rounds).report()
        notes = [text for text in report.exceptions if "published outright" in text]
        assert len(notes) == report.to_text().count("published outright") == is_warned
        assert all(f"delta {delta:.3g} >= 1/N = {1 / population:.3g}" in text for text in notes)
    warning = report.to_dict()["central"]["warning"]
    assert (warning is not None) == is_warned
    assert warning is None or [warning] == notes


@pytest.mark.parametrize(("nodes", "delta"), [(20, 1e-5), (20_000, 5e-6)])
def test_default_delta_is_small_for_the_population(nodes, delta):
    strategy = make(noise_multiplier=1.0, population=nodes)
    run_rounds(strategy, 1)
    assert strategy.privacy_spent().delta == pytest.approx(delta)


def test_population_is_that_of_the_first_round():
    strategy, grid, model = make(noise_multiplier=1.0), FakeGrid(range(8)), vector_model()
    play(strategy, grid, model, lambda _i, m: private_reply(m))
    grid.node_ids = list(range(50))
    play(strategy, grid, model, lambda _i, m: private_reply(m), 2)
    assert strategy.population == strategy.accountant.config.population_size == 8


def test_charge_does_not_depend_on_who_replied():
    def epsilon(answer):
        return run_rounds(make(noise_multiplier=1.0), 3, answer=answer).privacy_spent().epsilon

    everyone = epsilon(private_reply)
    assert epsilon(error_reply) == epsilon(REFUSED["NaN"]) == epsilon(lambda m: None) == everyone


def test_budget_stops_the_run_before_anyone_is_asked():
    limit = 0.5 * (direct_epsilon(1.0, 4.0, 3, 1e-5) + direct_epsilon(1.0, 4.0, 4, 1e-5))
    strategy = make(noise_multiplier=4.0, max_epsilon=limit)
    run_rounds(strategy, 3)
    asked = []
    strategy.strategy.configure_train = lambda *args: asked.append(args)
    state = strategy.accountant.state_dict()
    for _ in range(2):
        with pytest.raises(PrivacyBudgetExhausted, match=r"max_epsilon=.*in 3 rounds"):
            ask(strategy, FakeGrid(range(20)), vector_model(), 4)
    assert asked == []
    assert strategy.accountant.state_dict() == state
    assert strategy.privacy_spent().epsilon <= limit


def test_budget_stops_start_before_a_message_is_sent():
    limit = 0.5 * (direct_epsilon(1.0, 2.0, 2, 1e-5) + direct_epsilon(1.0, 2.0, 3, 1e-5))
    grid = FakeGrid(range(4), private_reply)
    strategy = make(noise_multiplier=2.0, max_epsilon=limit)
    with pytest.raises(PrivacyBudgetExhausted):
        strategy.start(grid, vector_model(), num_rounds=10)
    assert len(grid.sent) == 2 * 4
    assert strategy.report().rounds == 2


def test_budget_of_the_accountant_counts_as_well():
    accountant = poisson_rdp_accountant(population=4, delta=1e-5, max_epsilon=0.01)
    with pytest.raises(PrivacyBudgetExhausted):
        ask(make(noise_multiplier=1.0, accountant=accountant), FakeGrid(range(4)), vector_model())


def test_stricter_of_two_budgets_counts():
    accountant = poisson_rdp_accountant(population=4, delta=1e-5, max_epsilon=0.01)
    strategy = make(noise_multiplier=1.0, accountant=accountant, max_epsilon=1e6)
    with pytest.raises(PrivacyBudgetExhausted):
        ask(strategy, FakeGrid(range(4)), vector_model())


def test_budget_too_small_for_one_round_is_found_in_the_first():
    strategy = make(noise_multiplier=0.1, max_epsilon=0.5)
    with pytest.raises(PrivacyBudgetExhausted, match="in 0 rounds"):
        ask(strategy, FakeGrid(range(4)), vector_model())
    assert strategy.privacy_spent() is None


def test_reading_the_books_changes_nothing():
    read, unread = make(noise_multiplier=1.0), make(noise_multiplier=1.0)
    assert read.privacy_spent() is None
    for server_round in range(1, 4):
        for strategy in (read, unread):
            play(
                strategy,
                FakeGrid(range(5)),
                vector_model(),
                lambda _i, m: private_reply(m),
                server_round,
            )
        for _ in range(3):
            assert read.privacy_spent() == read.privacy_spent()
            read.report().to_json()
    assert read.accountant.state_dict() == unread.accountant.state_dict()
    assert read.report() == unread.report()


def accountant_for(sampling, neighbours, population=4):
    return RdpAccountant(
        PrivacyConfig(
            target_delta=1e-5,
            population_size=population,
            neighboring_relation=neighbours,
            sampling_method=sampling,
        )
    )


@pytest.mark.parametrize(
    ("sampling", "neighbours"),
    [
        (SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE),
        (SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE),
    ],
)
def test_accountant_of_another_world_is_refused(sampling, neighbours):
    with pytest.raises(ValueError, match=rf"accountant must assume poisson.*got {sampling.value}"):
        make(noise_multiplier=1.0, accountant=accountant_for(sampling, neighbours))


@pytest.mark.parametrize(
    ("sampling", "neighbours"),
    [
        (SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE),
        (SamplingMethod.POISSON, NeighboringRelation.ADD_OR_REMOVE_ONE),
    ],
)
def test_accountant_of_random_cohorts_is_refused_for_fixed_ones(sampling, neighbours):
    with pytest.raises(ValueError, match=rf"assume no-amplification.*got {sampling.value}"):
        fixed(noise_multiplier=1.0, accountant=accountant_for(sampling, neighbours), cohort_size=2)


def test_accountant_of_another_population_is_refused():
    accountant = poisson_rdp_accountant(population=4, delta=1e-5)
    with pytest.raises(ValueError, match="population must be the accountant's 4; got 5"):
        make(noise_multiplier=1.0, accountant=accountant, population=5)
    assert make(noise_multiplier=1.0, accountant=accountant).population == 4
    assert make(noise_multiplier=1.0, accountant=accountant, population=4).population == 4


def test_own_accountant_is_charged():
    accountant = poisson_rdp_accountant(population=4, delta=1e-3)
    strategy = make(noise_multiplier=1.0, accountant=accountant)
    run_rounds(strategy, 2, nodes=4)
    assert accountant.num_releases == 2
    assert strategy.privacy_spent().delta == 1e-3


# ------------------------------------------------------------------ skipped rounds
def test_skipped_round_is_charged_and_not_released():
    strategy = make(noise_multiplier=1.0, min_replies=3, rng=secure_generator())
    arrays, metrics = play(
        strategy,
        FakeGrid(range(10)),
        vector_model(),
        lambda i, m: private_reply(m, 1.0) if i < 2 else error_reply(m),
    )
    assert arrays is None
    assert (metrics["replies"], metrics["failures"]) == (2, 8)
    assert "noise-norm" not in metrics
    assert strategy.privacy_spent().num_releases == 1
    report = strategy.report()
    assert report.rounds == 0
    assert any("min_replies=3" in text for text in report.exceptions)


def test_no_central_guarantee_is_claimed_where_skipping_shows_the_number_of_replies():
    """At the threshold, one client more or less decides whether the model moves at all."""
    strategy = make(noise_multiplier=1.0, min_replies=3, rng=secure_generator())
    moved = []
    for server_round, count in ((1, 2), (2, 3)):
        arrays, metrics = play(
            strategy,
            FakeGrid(range(count)),
            vector_model(),
            lambda _i, m: private_reply(m, 0.0),
            server_round,
        )
        moved.append(arrays is not None)
        assert "cdp-epsilon" not in metrics
    assert moved == [False, True]
    report = strategy.report()
    assert report.central is None
    assert any("no central guarantee is claimed" in text for text in report.exceptions)
    without = make(noise_multiplier=1.0, rng=secure_generator())
    play(without, FakeGrid(range(3)), vector_model(), lambda _i, m: private_reply(m))
    assert without.report().central is not None


def test_run_goes_on_after_a_skipped_round_with_the_same_model():
    received = []

    def answer(message):
        received.append(flat(message.content["arrays"]))
        if message.content["config"]["server-round"] == 2:
            return error_reply(message)
        return private_reply(message, 0.5)

    result = make(min_replies=1).start(FakeGrid([1], answer), vector_model(1), num_rounds=3)
    np.testing.assert_allclose(np.concatenate(received), [0.0, 0.5, 0.5])
    np.testing.assert_allclose(flat(result.arrays), 1.0)


def test_min_replies_counts_usable_replies():
    strategy = make(min_replies=2)
    arrays, _ = play(
        strategy,
        FakeGrid(range(3)),
        vector_model(),
        lambda i, m: private_reply(m) if i < 1 else REFUSED["NaN"](m),
    )
    assert arrays is None


def test_local_budget_counts_the_reports_of_skipped_rounds():
    """The devices' reports have left them, whatever became of the round."""
    strategy = make(min_replies=3)
    for server_round, enough in ((1, False), (2, True)):
        play(
            strategy,
            FakeGrid(range(4)),
            vector_model(),
            lambda i, m, enough=enough: private_reply(m) if enough or i < 2 else error_reply(m),
            server_round,
        )
    local = strategy.report().to_dict()["local"]
    assert local["max_reports_per_client"] == 2
    assert local["epsilon_total"] == 2 * sum(MARKS.values())


# ------------------------------------------------------------------ the report of a run
def test_report_without_noise_has_no_central_guarantee():
    strategy = run_rounds(make(), 2)
    assert strategy.privacy_spent() is None
    assert strategy.accountant is None
    assert "cdp-epsilon" not in strategy.last_round
    assert strategy.report().central is None
    assert re.search(r"central +NONE", strategy.report().to_text())


def test_report_of_seeded_noise_has_no_central_guarantee_and_says_why():
    report = run_rounds(make(noise_multiplier=1.0), 2).report()
    assert report.central is None
    assert report.to_dict()["central"] is None
    assert any("noise came from a seeded generator" in text for text in report.exceptions)
    assert re.search(r"central +NONE", report.to_text())


SEEDED = MARKS | {"ldp-insecure-generator": 1.0}
"""What a device declares whose noise can be predicted."""


@pytest.mark.parametrize(
    "answer",
    {
        "used": with_marks(SEEDED),
        "without an epsilon": with_marks({"ldp-insecure-generator": 1.0}),
        "of another shape": lambda m: reply_with(m, record({"w": np.ones(5)}), **SEEDED),
        "with two models": lambda m: two_records(m, SEEDED),
    }.items(),
    ids=lambda item: item[0],
)
def test_seeded_noise_of_one_device_leaves_no_local_guarantee(answer):
    """Whether its reply is used or refused; and the central guarantee does not rest on it."""
    strategy, grid = make(noise_multiplier=4.0, rng=secure_generator()), FakeGrid(range(9))
    play(strategy, grid, vector_model(), lambda _i, m: private_reply(m), 1)
    assert strategy.report().local is not None
    play(
        strategy, grid, vector_model(), lambda i, m: answer[1](m) if i == 4 else private_reply(m), 2
    )
    report = strategy.report()
    assert report.local is report.to_dict()["local"] is report.to_dict()["reconstruction"] is None
    assert re.search(r"local +NONE", report.to_text())
    assert report.central is not None
    (note,) = [text for text in report.exceptions if "not secure" in text]
    assert note.endswith("(1x)")


def test_a_second_reply_is_spent_too():
    """A node that replies twice, seeded once, is refused once; both replies have left it."""
    strategy, model = make(), vector_model()
    messages = ask(strategy, FakeGrid(range(3)), model)
    replies = [private_reply(message) for message in messages]
    wide = {**SEEDED, "ldp-epsilon-direction": 99.0}
    strategy.aggregate_train(1, [*replies, private_reply(messages[0], marks=wide)])
    report = strategy.report()
    assert report.local is None
    assert strategy.last_round["refused"] == 1


def test_report_says_that_cohorts_were_seeded():
    strategy = run_rounds(make(noise_multiplier=1.0, seed=17, rng=secure_generator()), 2)
    report = strategy.report()
    assert report.central.epsilon == strategy.privacy_spent().epsilon
    assert any("cohorts were drawn from seed 17" in text for text in report.exceptions)


def test_report_of_a_secure_run_has_no_exceptions():
    options = {"sampling_rate": 0.25, "seed": None, "rng": None, "population": 20}
    strategy = run_rounds(make(noise_multiplier=4.0, clip_norm=3.0, **options), 3)
    report = strategy.report()
    assert report.exceptions == ()
    assert report.rounds == 3
    assert report.central.epsilon == pytest.approx(direct_epsilon(0.25, 4.0, 3, 1e-5), rel=2e-3)
    facts = report.central
    assert (facts.releases, facts.delta, facts.accountant) == (3, 1e-5, "pld")
    assert (facts.noise_multiplier, facts.clip_norm) == (4.0, 3.0)
    assert (facts.sampling_rate, facts.population) == (0.25, 20)
    assert report.local.epsilon_per_report == sum(MARKS.values())
    assert json.loads(report.to_json())["central"]["status"] == "run"


def test_report_before_a_run_claims_nothing():
    report = make(noise_multiplier=1.0).report()
    assert (report.rounds, report.local, report.central) == (0, None, None)
    assert "no mechanism had privatized" not in report.to_text()


def test_expected_cohort_is_unknown_before_the_first_round():
    with pytest.raises(ValueError, match="population is not known"):
        _ = make().expected_cohort
    assert make(population=30, sampling_rate=0.5).expected_cohort == 15


# ------------------------------------------------------------------ settings
BAD_NUMBERS = [-1, math.nan, math.inf, "5", True]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("clip_norm", value) for value in [0, -1, math.nan, -math.inf, "5", True, None]),
        *(("noise_multiplier", value) for value in [*BAD_NUMBERS, None]),
        *(("sampling_rate", value) for value in [0, 1.5, *BAD_NUMBERS, None]),
        *(("server_learning_rate", value) for value in [0, *BAD_NUMBERS]),
        *(("max_epsilon", value) for value in [0, *BAD_NUMBERS]),
        *(("seed", value) for value in [1.5, *BAD_NUMBERS]),
        *(("population", value) for value in [0, 1.5, *BAD_NUMBERS]),
        *(("delta", value) for value in [0, 1, 1.5, *BAD_NUMBERS]),
        *(("min_available_nodes", value) for value in [0, 1.5, *BAD_NUMBERS]),
        *(("node_timeout", value) for value in BAD_NUMBERS),
        *(("min_replies", value) for value in [1.5, *BAD_NUMBERS]),
    ],
)
def test_bad_numbers_are_refused_at_once(field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be .*got {value!r}"):
        make(**({"noise_multiplier": 1.0} | {field: value}))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clip_norm": math.inf, "noise_multiplier": 1.0}, "clip_norm must be finite .*got inf"),
        ({"clip_norm": 1e-320, "noise_multiplier": 1e-6}, "from 1e-250 on; got 1e-320"),
        ({"max_epsilon": 1.0}, "noise_multiplier must be above 0 when max_epsilon"),
        ({"strategy": FedAvg}, "strategy must be a flwr Strategy; got"),
        ({"strategy": "FedAvg"}, "strategy must be a flwr Strategy; got 'FedAvg'"),
        (
            {"accountant": "poisson"},
            "noise_multiplier must be above 0 when an accountant is given",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options, match):
    if options.get("accountant"):
        options = {"accountant": poisson_rdp_accountant(population=4, delta=1e-5)}
    with pytest.raises(ValueError, match=match):
        make(**options)


@pytest.mark.parametrize("rng", ["secure", 5, np.random.default_rng(0)])
def test_generator_of_another_kind_is_refused_before_a_round_is_charged(rng):
    """Or taken for what it is: a NumPy generator makes a seeded stream everywhere else."""
    refusal = None
    try:
        strategy = make(noise_multiplier=1.0, rng=rng)
    except (TypeError, ValueError) as error:
        refusal = error
    if refusal is None:
        run_rounds(strategy, 1)
        assert strategy.report().central is None
    else:
        assert "rng" in str(refusal)


def test_model_may_have_no_float_arrays():
    model = record({"steps": np.array([1, 2])})
    arrays, metrics = play(
        make(noise_multiplier=1.0), FakeGrid(range(3)), model, lambda _i, m: private_reply(m)
    )
    assert arrays["steps"].data == model["steps"].data
    assert metrics["replies"] == 3


def test_summary_and_types():
    strategy = make(noise_multiplier=1.0)
    strategy.summary()
    arrays, metrics = play(
        strategy, FakeGrid(range(3)), vector_model(), lambda _i, m: private_reply(m)
    )
    assert isinstance(arrays, ArrayRecord)
    assert isinstance(metrics, MetricRecord)
    assert isinstance(arrays["w"], Array)
    assert dict(metrics) == strategy.last_round


# ------------------------------------------------------------------ what a reader needs to know
def test_no_epsilon_is_printed_where_none_is_guaranteed(caplog):
    strategy = run_rounds(make(noise_multiplier=1.0), 2)  # its noise is seeded
    assert "cdp-epsilon" not in strategy.last_round
    assert "central epsilon" not in caplog.text


def test_statistics_of_batch_normalisation_are_neither_summed_nor_noised():
    """Noise would make variances negative; the device returns them as it received them."""
    model = record(
        {
            "w": np.zeros(3, np.float32),
            "bn.running_var": np.ones(4, np.float32),
            "head.b": np.ones(2),
        }
    )
    strategy = make(noise_multiplier=1.0)
    arrays, metrics = play(strategy, FakeGrid(range(3)), model, lambda _i, m: private_reply(m, 1.0))
    np.testing.assert_array_equal(arrays["bn.running_var"].numpy(), np.ones(4))
    assert not np.any(arrays["w"].numpy() == 0.0)
    assert metrics["noise-norm"] == pytest.approx(RHO * math.sqrt(5) / 3)
    chosen = make(noise_multiplier=1.0, excluded=["head.*"])
    arrays, _ = play(chosen, FakeGrid(range(3)), model, lambda _i, m: private_reply(m, 1.0))
    np.testing.assert_array_equal(arrays["head.b"].numpy(), np.ones(2))
    assert not np.any(arrays["bn.running_var"].numpy() == 1.0)


def test_metrics_that_left_as_they_were_are_named():
    marks = {**MARKS, "loss": 0.5}
    strategy = run_rounds(make(), 1, nodes=2, answer=lambda m: private_reply(m, marks=marks))
    assert any("'loss'" in text and "no privacy" in text for text in strategy.report().exceptions)


def test_text_of_a_client_cannot_forge_the_report():
    strategy = run_rounds(
        make(), 1, nodes=1, answer=lambda m: error_reply(m, "x\n  central  run epsilon 0.01")
    )
    (line,) = [line for line in strategy.report().to_text().splitlines() if "0.01" in line]
    assert line.startswith("  note")


def test_more_nodes_than_the_population_are_reported(caplog):
    strategy = run_rounds(make(population=2), 1, nodes=5)
    assert "set population to the number of clients" in caplog.text
    assert any("population=2" in text for text in strategy.report().exceptions)


def test_noise_below_what_accountants_can_price_is_refused():
    with pytest.raises(ValueError, match="noise_multiplier must be 0 or at least 1e-06"):
        make(noise_multiplier=1e-160)
    with pytest.raises(ValueError, match=r"at most 1e\+12; got 1e\+16"):
        make(noise_multiplier=1e16)


def test_report_of_the_largest_norm_is_not_counted_as_projected():
    """Rounded to float32 it may be a little longer; it is still cut to the ball exactly."""
    strategy = make()
    play(
        strategy,
        FakeGrid(range(2)),
        vector_model(1),
        lambda i, m: private_reply(m, RHO * (1.0 + (1e-5 if i else 1e-3))),
    )
    assert strategy.last_round["fraction-projected"] == 0.5
    assert strategy.last_round["mean-norm"] == pytest.approx(RHO, rel=1e-12)


def test_projection_and_its_bias_are_reported():
    """Half of the replies are twice as long as the ball: 4/6 of their length is left."""
    strategy = make()
    for server_round in (1, 2):
        play(
            strategy,
            FakeGrid(range(4)),
            vector_model(),
            lambda i, m: private_reply(m, unit_update(length=RHO * (1 + i % 2))),
            server_round,
        )
    assert strategy.last_round["kept-length"] == pytest.approx(4 / 6)
    (line,) = [text for text in strategy.report().exceptions if "longer than" in text]
    assert "50.0% of the replies were longer than clip_norm=2" in line
    assert "left 0.667 of their length" in line
    assert not [text for text in run_rounds(make(), 2).report().exceptions if "longer" in text]


def test_last_model_outlives_the_budget():
    strategy = make(noise_multiplier=1.0, max_epsilon=10.0)
    with pytest.raises(PrivacyBudgetExhausted):
        strategy.start(FakeGrid(range(4), private_reply), vector_model(), num_rounds=50)
    assert strategy.last_arrays is not None
    assert strategy.report().rounds == strategy.accountant.num_releases > 0


def test_budget_counts_what_others_charge_to_the_same_accountant():
    """Two trainings on one ledger stop at the budget of both together."""
    accountant = poisson_rdp_accountant(population=4, delta=1e-5, max_epsilon=12.0)
    strategies = [make(noise_multiplier=z, accountant=accountant) for z in (2.0, 1.0)]

    def train_both():
        for server_round in range(1, 100):
            for strategy in strategies:
                play(
                    strategy,
                    FakeGrid(range(4)),
                    vector_model(),
                    lambda _i, m: private_reply(m),
                    server_round,
                )

    with pytest.raises(PrivacyBudgetExhausted):
        train_both()
    assert accountant.num_releases > 2
    assert accountant.get_epsilon(1e-5) <= 12.0


def test_a_client_counts_once_however_often_it_replies():
    """A second reply would double its weight; one of a node that was not asked has no place."""
    strategy = make(population=4)
    messages = ask(strategy, FakeGrid(range(4)), vector_model())
    stranger = 99
    reply = private_reply(messages[0], 1.0)
    other = private_reply(Message(messages[0].content, stranger, "train"), 1.0)
    arrays, metrics = strategy.aggregate_train(1, [reply, reply, other])
    assert (metrics["replies"], metrics["refused"]) == (1, 2)
    np.testing.assert_allclose(flat(arrays), 1.0 / 4)
    assert any("replied already" in text for text in strategy.report().exceptions)
