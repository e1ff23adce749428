"""The paper's central figures, against the oracle that found how to read them."""

import pytest

from flwr_sdp.strategies import PAPER_EXPERIMENTS, paper_noise
from flwr_sdp.strategies.paper_analysis import PAPER_POPULATION, _log_moment, moments_epsilon
from tests.statistics_helpers import load_oracle

ORACLE = load_oracle("central")
DELTA = float(ORACLE["delta"])
FITS = {
    row["experiment"]: row
    for row in ORACLE["fits"]
    if row["sigma_printed_in_paper"] or row["sigma"] == "0.001"
}


@pytest.mark.parametrize("experiment", PAPER_EXPERIMENTS, ids=lambda e: e.name)
def test_the_three_guarantees_are_reproduced(experiment):
    row = FITS[experiment.name]
    account = row["at_noise_multiplier_1"]
    assert experiment.cohort == row["inflated_batch"]
    assert experiment.sampling_rate == float(account["q"])
    assert experiment.rounds == row["T"]
    expected = float(account["moments_accountant_eps"])
    assert experiment.epsilon_projected == pytest.approx(expected, rel=1e-12)
    # As printed, to the digits printed.
    digits = {"MNIST": 1, "CIFAR10": 2, "Reddit": 0}[experiment.name]
    assert round(experiment.epsilon_projected, digits) == experiment.epsilon_printed
    assert experiment.epsilon_printed == float(row["paper_eps"])


@pytest.mark.parametrize("experiment", PAPER_EXPERIMENTS, ids=lambda e: e.name)
def test_the_best_bound_stands_beside(experiment):
    bracket = FITS[experiment.name]["at_noise_multiplier_1"]["dp_accounting_pld_eps"]
    assert bracket["optimistic"] < experiment.best_epsilon_projected
    assert experiment.best_epsilon_projected < 1.003 * bracket["pessimistic"]


def test_the_population_is_the_papers():
    assert ORACLE["N"] == PAPER_POPULATION


@pytest.mark.parametrize("row", ORACLE["noise_rule_of_the_paper"], ids=lambda row: row["setting"])
def test_the_rule_is_priced(row):
    noise = paper_noise(
        renyi_epsilon=float(row["renyi2_target"]),
        sampling_rate=float(row["q"]),
        rounds=row["T"],
        delta=DELTA,
    )
    assert noise.noise_multiplier == pytest.approx(float(row["z_from_T_q2_over_eps"]), rel=1e-9)
    assert noise.renyi_epsilon == pytest.approx(float(row["renyi2_total_there"]), rel=1e-9)
    assert noise.renyi_epsilon_claimed == float(row["renyi2_target"])
    assert noise.renyi_epsilon > 1.7 * noise.renyi_epsilon_claimed
    assert noise.epsilon > noise.renyi_epsilon_claimed
    assert noise.delta == DELTA


def test_the_rule_is_right_where_its_approximation_is():
    """x = epsilon (1 - q) / (T q^2) small: z large, and the claim holds up to a factor near 1."""
    noise = paper_noise(renyi_epsilon=0.1, sampling_rate=0.1, rounds=10_000, delta=1e-6)
    assert 1.0 < noise.renyi_epsilon / noise.renyi_epsilon_claimed < 1.01


@pytest.mark.parametrize("row", ORACLE["rdp_integer_orders"][::3])
def test_moments_are_exact(row):
    moment = _log_moment(float(row["q"]), float(row["noise_multiplier"]), row["order"])
    # The sum is 1 + moment: what 1 takes in digits is absolute.
    assert moment / (row["order"] - 1) == pytest.approx(float(row["rdp"]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("row", ORACLE["accountant_grid"])
def test_moments_accountant_is_that_of_the_oracle(row):
    epsilon = moments_epsilon(
        sampling_rate=float(row["q"]),
        noise_multiplier=float(row["noise_multiplier"]),
        rounds=row["T"],
        delta=DELTA,
    )
    assert epsilon == pytest.approx(float(row["moments_accountant_eps"]), rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"renyi_epsilon": 0.0}, "renyi_epsilon must be"),
        ({"sampling_rate": 0.0}, "sampling_rate must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"delta": 0.0}, "delta must be"),
    ],
)
def test_bad_input_is_refused(changes, message):
    valid = {"renyi_epsilon": 1.0, "sampling_rate": 0.1, "rounds": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match=message):
        paper_noise(**{**valid, **changes})
