"""The planner: its numbers against the mechanism that is run, and what it says of bad plans."""

import json
import math

import numpy as np
import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.reconstruction import breach_probability
from flwr_sdp.strategies import Plan, plan, poisson_accountant, poisson_event
from simulations.tasks import LocalTraining, TaskSettings, load_task
from tests.messages import flat
from tests.statistics_helpers import random_unit

DEPLOYMENT = {"clients_per_round": 100, "population": 10_000, "rounds": 50}


def make(dim=1000, **changes):
    return plan(dim, **(DEPLOYMENT | changes))


# ------------------------------------------------------------------ against the onlooker
def test_budget_is_the_largest_that_protects_the_target():
    made = make(dim=100_000, dim_target=400, tolerance=0.6, target_breach=1e-2)
    total = made.epsilon_direction + made.epsilon_magnitude
    target = {"dim_target": 400, "tolerance": 0.6, "rule": "tight"}
    assert breach_probability(epsilon=total, **target) == pytest.approx(1e-2, rel=1e-6)
    assert breach_probability(epsilon=total + 0.1, **target) > 1.1e-2
    assert made.log_breach_one_report == pytest.approx(math.log(1e-2), abs=1e-6)


def test_budget_of_several_reports_is_shared():
    one = make(dim=100_000, dim_target=1000)
    four = make(dim=100_000, dim_target=1000, reports=4)
    total_of_one = one.epsilon_direction + one.epsilon_magnitude
    total_of_four = four.epsilon_direction + four.epsilon_magnitude
    assert total_of_four == pytest.approx(total_of_one / 4, rel=1e-12)


def test_budget_stays_where_the_mechanism_works():
    assert make(dim=300, tolerance=0.99).epsilon_direction <= 300
    assert make(dim=10**7).epsilon_direction == 2e4


def test_a_given_budget_is_judged_and_not_replaced():
    made = make(dim=100_000, dim_target=100, epsilon_direction=500.0)
    assert made.epsilon_direction == 500.0
    assert made.log_breach_one_report > 0.0
    assert any("1 (no protection)" in verdict for verdict in made.verdicts)


def test_all_reports_are_those_of_nearly_every_client():
    """10 on average; a Poisson number of mean 10 exceeds 21 for 7 in 10,000."""
    made = make(rounds=1000, epsilon_direction=20.0, dim_target=1000)
    assert made.reports_expected == 10.0
    cost = 30.0
    ten = breach_probability(epsilon=10 * cost, dim_target=1000, tolerance=0.5, rule="tight")
    assert ten == 1.0
    assert made.log_breach_all_reports > 0.0
    assert any("up to 21 reports" in verdict for verdict in made.verdicts)


# ------------------------------------------------------------------ noise and signal
def noise_of_average(mechanism, updates, rng, repeats):
    """Return the root mean square of |average of reports - average|, and its standard error."""
    mean = updates.mean(axis=0)
    squares = np.array(
        [
            np.sum((mechanism.privatize(updates, rng).mean(axis=0) - mean) ** 2)
            for _ in range(repeats)
        ]
    )
    value = math.sqrt(squares.mean())
    return value, squares.std() / math.sqrt(repeats) / (2 * value)


@pytest.mark.parametrize("wrong", [1.0, 1.15])
def test_predicted_noise_is_that_of_the_mechanism(wrong):
    """40 averages of 25 reports in 400 dimensions; a noise that is off by 15% fails."""
    budget = SeparatedBudget(epsilon_direction=40.0, epsilon_magnitude=10.0)
    mechanism = SeparatedMechanism.from_budget(400, budget, 2.0)
    made = make(
        dim=400, epsilon_direction=40.0, max_norm=2.0, update_norm=1.5, clients_per_round=25
    )
    updates = np.tile(1.5 * random_unit(400), (25, 1))
    measured, error = noise_of_average(mechanism, updates, seeded_generator(1, "plan"), 40)
    assert error < 0.02 * measured
    agrees = abs(measured - wrong * made.local_noise) < 5 * error
    assert agrees == (wrong == 1.0)


def test_prediction_holds_in_the_digits_run():
    """One round of all 100 clients of the default task, with the norms that their updates have."""
    pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")
    pytest.importorskip("sklearn", reason="needs flwr-sdp[simulation]")
    training = LocalTraining(steps=5, learning_rate=0.5)
    task = load_task("digits", TaskSettings(seed=0, num_clients=100, training=training))
    model = task.initial_model()
    start = flat(model)
    updates = np.array(
        [flat(task.local_update(model, client=i, server_round=1)) - start for i in range(100)]
    )
    norm = math.sqrt(np.mean(np.sum(updates**2, axis=1)))
    signal = float(np.linalg.norm(updates.mean(axis=0)))
    budget = SeparatedBudget(epsilon_direction=50.0, epsilon_magnitude=10.0)
    mechanism = SeparatedMechanism.from_budget(9610, budget, 2.5)
    made = plan(
        9610,
        clients_per_round=100,
        population=100,
        rounds=1,
        epsilon_direction=50.0,
        max_norm=2.5,
        update_norm=norm,
        agreement=signal / norm,
        noise_multiplier=0.02,
    )
    rng = seeded_generator(2, "digits")
    reports = mechanism.privatize(updates, rng)
    noise = rng.normal(9610) * 0.02 * mechanism.max_output_norm
    private = (reports.sum(axis=0) + noise) / 100
    measured = float(np.linalg.norm(private - updates.mean(axis=0))) / signal
    assert made.noise_to_signal == pytest.approx(measured, rel=0.1)


def test_server_noise_is_that_of_the_strategy():
    made = make(dim=10_000, noise_multiplier=2.0, clients_per_round=50)
    expected = 2.0 * made.max_output_norm * math.sqrt(10_000) / 50
    assert made.central_noise == pytest.approx(expected, rel=1e-12)
    both = math.hypot(made.local_noise, made.central_noise)
    assert made.noise_to_signal == pytest.approx(both / made.signal, rel=1e-12)


@pytest.mark.parametrize("multiplier", [0.0, 0.5, 5.0])
def test_clients_needed_bring_the_noise_to_the_signal(multiplier):
    settings = {"population": 10**9, "noise_multiplier": multiplier, "agreement": 0.3}
    needed = make(**settings).clients_needed
    assert make(**settings, clients_per_round=needed).noise_to_signal <= 1.0
    assert make(**settings, clients_per_round=needed - 1).noise_to_signal > 1.0 - 1e-9


# ------------------------------------------------------------------ central
def test_central_epsilon_is_the_accountants():
    made = make(noise_multiplier=1.1, delta=1e-6)
    accountant = poisson_accountant(population=10_000, delta=1e-6)
    accountant.compose(
        poisson_event(noise_multiplier=1.1, sampling_rate=0.01, population=10_000), 50
    )
    spent = accountant.get_privacy_spent()
    assert (made.central_epsilon, made.accountant) == (spent.epsilon, spent.accounting_method)


def test_no_noise_is_no_central_guarantee():
    made = make(noise_multiplier=0.0)
    assert made.central_epsilon == math.inf
    assert any("inf" in verdict for verdict in made.verdicts)
    assert json.loads(made.to_json())["central_epsilon"] is None


# ------------------------------------------------------------------ what it says
def test_a_good_plan_has_nothing_against_it():
    made = make(
        dim=1000,
        clients_per_round=20_000,
        population=10**8,
        rounds=100,
        epsilon_direction=100.0,
        noise_multiplier=1.0,
    )
    assert made.noise_to_signal < 1.0
    assert made.verdicts == ()


def test_a_drowned_signal_is_said_plainly():
    made = make(dim=10**6, epsilon_direction=50.0, population=1000)
    text = " ".join(made.verdicts)
    assert "the signal drowns" in text
    assert f"{made.clients_needed:,}" in text
    assert made.noise_to_signal > 1.0


@pytest.mark.parametrize(("delta", "is_said"), [(1e-4, True), (0.5, True), (9.9e-5, False)])
def test_a_delta_that_publishes_a_client_is_said(delta, is_said):
    """1/N is 1e-4. Without noise there is no guarantee that it would belong to."""
    said = [verdict for verdict in make(delta=delta).verdicts if "published outright" in verdict]
    assert len(said) == is_said
    assert all(f"delta {delta:g} >= 1/N = 0.0001" in verdict for verdict in said)
    assert "published" not in " ".join(make(delta=delta, noise_multiplier=0.0).verdicts)


def test_plan_is_json():
    made = make()
    facts = json.loads(made.to_json())
    assert set(facts) == set(Plan.__dataclass_fields__)
    assert facts["dim"] == 1000
    assert facts["verdicts"] == list(made.verdicts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 1}, "dim must be"),
        ({"clients_per_round": 0}, "clients_per_round must be"),
        ({"clients_per_round": 10_001}, "clients_per_round must be"),
        ({"population": True}, "population must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"target_breach": 0.0}, "target_breach must be"),
        ({"dim_target": 1001}, "dim_target must be"),
        ({"tolerance": 1.5}, "tolerance must be"),
        ({"reports": 0}, "reports must be"),
        ({"epsilon_magnitude": math.nan}, "epsilon_magnitude must be"),
        ({"max_norm": -1.0}, "max_norm must be"),
        ({"update_norm": 0.0}, "update_norm must be"),
        ({"agreement": 1.1}, "agreement must be"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"rule": "loose"}, "rule must be"),
        ({"dim_target": 10, "target_breach": 1e-9}, "probability must be >="),
        ({"dim_target": 60, "reports": 3}, "epsilon_magnitude must be below"),
    ],
)
def test_bad_plans_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)
