"""A few nodes that stand for a population: the numbers are those of one client a message."""

import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.released import Selection
from flwr_sdp.strategies import Checkpoints, ClipAndNoise
from flwr_sdp.strategies.tally import Tally
from simulations.engine.cohort_message import CohortRequest, add_cohort_reply, cohort_reply
from simulations.engine.local_grid import LocalGrid
from simulations.engine.partial_sum import PartialSum
from simulations.engine.simulated_cohorts import SimulatedCohorts
from simulations.engine.virtual_clients import virtual_clients
from tests.messages import flat, record

CLIENTS, ROUNDS = 24, 3
BUDGET = SeparatedBudget(epsilon_direction=40.0, epsilon_magnitude=8.0)
MODEL = record(
    {
        "weight": np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5),
        "running_mean": np.zeros(5, dtype=np.float32),
        "steps": np.array(3),
    }
)
DIM = 60
MECHANISM = SeparatedMechanism.from_budget(DIM, BUDGET, 1.0)


def client_app(*, private=True, fails=(), budget=BUDGET, nodes_fail=()):
    """Return an app whose update depends on the client and the round, and whose noise repeats."""
    app = ClientApp()

    def where(message, context):
        (config,) = message.content.config_records.values()
        return config["server-round"], context.node_config["partition-id"]

    def protect(message, context, call_next):
        if not private:
            return call_next(message, context)
        key = ("noise", *where(message, context))
        mod = SeparatedDPMod(budget, 1.0, rng=lambda: seeded_generator(7, *key))
        return mod(message, context, call_next)

    def node(message, context, call_next):
        if context.node_id in nodes_fail:
            raise RuntimeError("this node is broken")
        return virtual_clients(message, context, call_next)

    @app.train(mods=[node, protect])
    def train(message, context):
        server_round, partition = where(message, context)
        if partition in fails:
            raise RuntimeError("the disk is full")
        (model,) = message.content.array_records.values()
        step = seeded_generator(1, "update", server_round, partition).normal(DIM, np.float32)
        trained = dict(model.items())
        trained["weight"] = record({"w": model["weight"].numpy() + step.reshape(12, 5) / 20})["w"]
        metrics = MetricRecord({"num-examples": 1})
        return Message(
            RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message
        )

    return app


def run(strategy_class, num_nodes, *, app=None, rounds=ROUNDS, inner=None, population=CLIENTS,
        **settings):  # fmt: skip
    settings = {
        "noise_multiplier": 0.5,
        "sampling_rate": 0.5,
        "mechanism": MECHANISM,
        "rng": lambda server_round: seeded_generator(2, "server", server_round),
        "seed": 3,
    } | settings
    strategy = strategy_class(
        inner or FedAvg(fraction_evaluate=0.0), population=population, **settings
    )
    grid = LocalGrid(app or client_app(), num_nodes, {})
    seen = []
    strategy.start(
        grid,
        MODEL,
        num_rounds=rounds,
        evaluate_fn=lambda r, _: seen.append(dict(strategy.last_round)) if r else None,
    )
    return strategy, seen


BASELINE = {
    "mechanism": None,
    "clip_norm": math.inf,
    "noise_multiplier": 0.0,
    "require_local_dp": False,
}


@pytest.mark.parametrize("num_nodes", [1, 3, 5])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_norm": 0.4 * MECHANISM.max_output_norm},
        {"sampling_rate": None, "cohort_size": 7},
        {"sampling_rate": 1.0},
        BASELINE,
    ],
    ids=["private", "clipped", "fixed cohorts", "everyone", "baseline"],
)
def test_numbers_are_those_of_one_client_a_message(num_nodes, settings):
    """The sums are of the same numbers in another order: equal to float32, metrics included."""
    app = client_app(private=settings is not BASELINE)
    one, expected = run(ClipAndNoise, CLIENTS, app=app, **settings)
    many, found = run(SimulatedCohorts, num_nodes, app=app, **settings)
    np.testing.assert_allclose(flat(many.last_arrays), flat(one.last_arrays), rtol=2e-7, atol=1e-9)
    for ours, theirs in zip(found, expected, strict=True):
        for name in set(theirs) - {"seconds", "peak-memory-mib"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-9), name
    left, right = many.report(), one.report()
    assert (left.local, left.central, left.rounds, left.without_projection) == (
        right.local, right.central, right.rounds, right.without_projection
    )  # fmt: skip
    simulated = [text for text in left.exceptions if "simulated clients" in text]
    assert len(simulated) == 1
    assert [text for text in left.exceptions if text not in simulated] == list(right.exceptions)


def test_other_noise_would_be_noticed():
    """The comparison above has power: another seed at the server is not within its tolerance."""
    one, _ = run(ClipAndNoise, CLIENTS)
    other, _ = run(
        SimulatedCohorts, 3, rng=lambda server_round: seeded_generator(9, "server", server_round)
    )
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            flat(other.last_arrays), flat(one.last_arrays), rtol=2e-7, atol=1e-9
        )


def test_server_optimisers_see_the_same_mean():
    one, _ = run(ClipAndNoise, CLIENTS, inner=FedAdam(fraction_evaluate=0.0))
    many, _ = run(SimulatedCohorts, 2, inner=FedAdam(fraction_evaluate=0.0))
    np.testing.assert_allclose(flat(many.last_arrays), flat(one.last_arrays), rtol=1e-5)


def test_report_says_that_the_clients_were_simulated():
    strategy, _ = run(SimulatedCohorts, 2, rounds=1)
    assert any("simulated clients" in text for text in strategy.report().exceptions)


# ------------------------------------------------------------------ failures
def test_failing_clients_are_counted_one_by_one(caplog):
    strategy, seen = run(
        SimulatedCohorts, 2, rounds=1, app=client_app(fails={4, 11}), sampling_rate=1.0
    )
    assert (seen[0]["failures"], seen[0]["replies"]) == (2, CLIENTS - 2)
    assert any(
        "a client failed" in text and "(2x)" in text for text in strategy.report().exceptions
    )
    assert "partition 4" in caplog.text
    assert "partition 11" in caplog.text


def test_failing_client_without_the_mod_is_named(caplog):
    app = client_app(private=False, fails={4})
    _, seen = run(SimulatedCohorts, 2, rounds=1, app=app, **{**BASELINE, "sampling_rate": 1.0})
    assert (seen[0]["failures"], seen[0]["replies"]) == (1, CLIENTS - 1)
    assert "partition 4" in caplog.text
    assert "the disk is full" in caplog.text


def test_failing_node_fails_for_all_its_clients():
    app = client_app(nodes_fail={2})
    strategy, seen = run(SimulatedCohorts, 3, rounds=1, app=app, sampling_rate=1.0)
    assert (seen[0]["failures"], seen[0]["replies"]) == (8, 16)
    assert any("a node failed" in text for text in strategy.report().exceptions)


def test_unmarked_clients_are_refused_at_their_node():
    strategy, seen = run(
        SimulatedCohorts, 2, rounds=1, app=client_app(private=False), sampling_rate=1.0
    )
    assert (seen[0]["refused"], seen[0]["replies"]) == (CLIENTS, 0)
    assert any("24 replies without the mark" in text for text in strategy.report().exceptions)


def test_app_without_virtual_clients_is_refused():
    """It answers for itself, with a model: that is no sum of a cohort."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        (model,) = message.content.array_records.values()
        return Message(RecordDict({"arrays": model}), reply_to=message)

    strategy, seen = run(SimulatedCohorts, 2, rounds=1, app=app, sampling_rate=1.0)
    assert (seen[0]["refused"], seen[0]["replies"]) == (CLIENTS, 0)
    assert any("virtual_clients" in text for text in strategy.report().exceptions)


def test_device_that_sends_a_sum_moves_the_model_by_no_more_than_rho():
    """ClipAndNoise knows no sums: where one has the form of a model, it is clipped like a model."""
    model = record({"a": np.zeros(4, dtype=np.float32), "b": np.zeros(3, dtype=np.float32)})
    app = ClientApp()

    @app.train()
    def train(message, context):
        (received,) = message.content.array_records.values()
        total = PartialSum(received, math.inf)
        total.add(record({"a": np.full(4, 1e6), "b": np.full(3, 1e6)}))
        content = cohort_reply(total, Tally(used=1000))
        return Message(RecordDict({"sum": content["sum"]}), reply_to=message)

    strategy = ClipAndNoise(
        FedAvg(fraction_evaluate=0.0), clip_norm=2.0, noise_multiplier=0.0, sampling_rate=1.0,
        population=1, require_local_dp=False,
    )  # fmt: skip
    strategy.start(LocalGrid(app, 1, {}), model, num_rounds=1)
    assert strategy.last_round["replies"] == 1
    assert np.linalg.norm(flat(strategy.last_arrays)) == pytest.approx(2.0, rel=1e-6)


# ------------------------------------------------------------------ the population
def test_cohort_is_drawn_from_the_whole_population():
    """A million clients on two nodes: 50 are asked, all over the range, and no two the same."""
    asked = []
    app = ClientApp()

    @app.train(mods=[virtual_clients])
    def train(message, context):
        asked.append(context.node_config["partition-id"])
        (model,) = message.content.array_records.values()
        return Message(RecordDict({"arrays": model}), reply_to=message)

    run(
        SimulatedCohorts, 2, rounds=2, app=app, population=10**6,
        **{**BASELINE, "sampling_rate": None, "cohort_size": 50},
    )  # fmt: skip
    assert len(asked) == 100
    assert len(set(asked[:50])) == len(set(asked[50:])) == 50
    # Uniform on the range: mean within 5 standard errors, 0.289 / sqrt(100) each.
    assert abs(np.mean(asked) / 10**6 - 0.5) < 5 * 0.0289
    assert max(asked) < 10**6


def test_empty_cohort_is_a_round_of_noise():
    strategy, seen = run(SimulatedCohorts, 2, rounds=1, sampling_rate=1e-9)
    assert (seen[0]["cohort"], seen[0]["replies"]) == (0, 0)
    assert np.any(flat(strategy.last_arrays) != flat(MODEL))


def test_run_is_resumed(tmp_path):
    whole, _ = run(SimulatedCohorts, 2, rounds=4)
    run(SimulatedCohorts, 2, rounds=2, checkpoints=Checkpoints(tmp_path))
    strategy = SimulatedCohorts(
        FedAvg(fraction_evaluate=0.0), population=CLIENTS, noise_multiplier=0.5, sampling_rate=0.5,
        mechanism=MECHANISM, seed=3, checkpoints=Checkpoints(tmp_path),
        rng=lambda server_round: seeded_generator(2, "server", server_round),
    )  # fmt: skip
    result = strategy.resume(LocalGrid(client_app(), 2, {}), MODEL, num_rounds=4)
    np.testing.assert_array_equal(flat(result.arrays), flat(whole.last_arrays))
    assert strategy.report() == whole.report()


# ------------------------------------------------------------------ messages and sums
def test_request_survives_its_message():
    request = CohortRequest(
        clients=(5, 999_999),
        clip_norm=math.inf,
        selection=Selection(trainable=("a*",), excluded=(), tied={"ab": "a"}),
        require_local_dp=True,
    )
    content = RecordDict({"arrays": MODEL, "config": ConfigRecord({"server-round": 1})})
    again, rest = CohortRequest.taken_from(request.added_to(content))
    assert again == request
    assert list(rest) == list(content)
    assert CohortRequest.taken_from(content) == (None, content)


def test_sums_of_other_models_are_refused_and_add_nothing():
    total, tally = PartialSum(MODEL, 1.0), Tally()
    other = PartialSum(record({"weight": np.zeros((3, 5), dtype=np.float32)}), 1.0)
    with pytest.raises(ValueError, match="not one of this model's updates"):
        add_cohort_reply(cohort_reply(other, Tally(used=3)), total, tally)
    assert tally == Tally()


@pytest.mark.parametrize("name", ["projected", "length-before", "length-after"])
def test_sum_without_its_counts_is_refused_and_adds_nothing(name):
    other, total, tally = PartialSum(MODEL, 1.0), PartialSum(MODEL, 1.0), Tally()
    other.add(
        dict(
            record(
                {**{k: v.numpy() for k, v in MODEL.items()}, "weight": np.ones((12, 5), np.float32)}
            ).items()
        )
    )
    content = cohort_reply(other, Tally(used=1))
    counts = {key: value for key, value in content["counts"].items() if key != name}
    content["counts"] = MetricRecord(counts)
    with pytest.raises(ValueError, match="its counts are not"):
        add_cohort_reply(content, total, tally)
    assert tally == Tally()
    assert total.take_out()[1] == PartialSum(MODEL, 1.0).take_out()[1]


def test_tally_that_cannot_be_read_is_refused():
    content = cohort_reply(PartialSum(MODEL, 1.0), Tally())
    content["tally"] = ConfigRecord({"json": "{}"})
    with pytest.raises(ValueError, match="its tally cannot be read"):
        add_cohort_reply(content, PartialSum(MODEL, 1.0), Tally())


def test_client_that_writes_into_its_message_does_not_touch_the_next():
    app = ClientApp()

    @app.train(mods=[virtual_clients])
    def train(message, context):
        (model,) = message.content.array_records.values()
        model["weight"] = record({"w": model["weight"].numpy() + 1.0})["w"]
        return Message(RecordDict({"arrays": ArrayRecord(dict(model))}), reply_to=message)

    for strategy_class, num_nodes in ((ClipAndNoise, CLIENTS), (SimulatedCohorts, 1)):
        strategy, _ = run(
            strategy_class, num_nodes, rounds=1, app=app, **{**BASELINE, "sampling_rate": 1.0}
        )
        moved = strategy.last_arrays["weight"].numpy() - MODEL["weight"].numpy()
        np.testing.assert_allclose(moved, 1.0, rtol=1e-6)


def test_sum_is_taken_out_once():
    total = PartialSum(MODEL, 1.0)
    total.take_out()
    with pytest.raises(RuntimeError, match="has been released"):
        total.take_out()
