"""The commands plan, calibrate and account: the library's numbers, and errors in one line."""

import json

import pytest
from typer.testing import CliRunner

from flwr_sdp import SeparatedBudget, SeparatedMechanism
from flwr_sdp._rounding import round_up
from flwr_sdp.cli.app import app
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.strategies import noise_multiplier_for, plan

PLAN = ["plan", "--dim", "1000", "--clients-per-round", "100", "--population", "10000"]
PLAN += ["--rounds", "50"]
ACCOUNT = ["account", "--clients-per-round", "100", "--population", "10000", "--rounds", "50"]
ACCOUNT += ["--delta", "1e-6"]
CALIBRATE = ["calibrate", "--dim", "3274634", "--epsilon-direction", "500"]


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_plan_is_the_functions():
    made = plan(1000, clients_per_round=100, population=10_000, rounds=50, dim_target=900)
    assert run(*PLAN, "--dim-target", "900", "--json") == made.to_json()


def test_plan_shows_what_matters():
    text = " ".join(run(*PLAN).split())
    made = plan(1000, clients_per_round=100, population=10_000, rounds=50)
    assert f"noise to signal {made.noise_to_signal:.4g}" in text
    assert f"clients that bring it to 1 {made.clients_needed:,}" in text
    assert f"epsilon {round_up(made.central_epsilon, 4)} at delta 1e-05" in text
    assert all(" ".join(verdict.split()) in text for verdict in made.verdicts)


def test_calibrate_shows_both_rules():
    constants = json.loads(run(*CALIBRATE, "--max-norm", "5", "--json"))["rules"]
    budget = SeparatedBudget(epsilon_direction=500.0, epsilon_magnitude=10.0)
    for rule in ("tight", "paper"):
        mechanism = SeparatedMechanism.from_budget(3_274_634, budget, 5.0, rule=rule)
        assert constants[rule]["scale"] == mechanism.direction.scale
        assert constants[rule]["max_output_norm"] == mechanism.max_output_norm
        assert constants[rule]["epsilon_direction"] <= 500.0
    assert constants["tight"]["scale"] < constants["paper"]["scale"]
    table = run(*CALIBRATE)
    assert f"{constants['paper']['cap_threshold']:.10g}" in table


def test_calibrate_has_no_paper_rule_on_the_circle():
    arguments = ["calibrate", "--dim", "2", "--epsilon-direction", "1", "--json"]
    assert list(json.loads(run(*arguments))["rules"]) == ["tight"]


@pytest.mark.parametrize("multiplier", ["1e-160", "1e300"])
def test_noise_that_no_accountant_can_price_is_refused(multiplier):
    with pytest.raises(CommandError, match=r"noise_multiplier must be .*1e-06 and <= 1e"):
        run(*ACCOUNT, "--noise-multiplier", multiplier)


def test_account_goes_both_ways():
    there = json.loads(run(*ACCOUNT, "--target-epsilon", "2", "--json"))
    assert there["noise_multiplier"] == noise_multiplier_for(
        epsilon=2.0, delta=1e-6, sampling_rate=0.01, rounds=50
    )
    assert 1.98 <= there["epsilon"] <= 2.0
    back = json.loads(run(*ACCOUNT, "--noise-multiplier", str(there["noise_multiplier"]), "--json"))
    assert back["epsilon"] == pytest.approx(there["epsilon"], rel=1e-9)
    assert f"{round_up(there['epsilon'], 6)} at delta 1e-06" in run(
        *ACCOUNT, "--target-epsilon", "2"
    )


@pytest.mark.parametrize(
    "arguments",
    [PLAN, [*ACCOUNT, "--noise-multiplier", "1"], [*ACCOUNT, "--target-epsilon", "2"]],
    ids=["plan", "account", "account for a target"],
)
def test_a_delta_that_publishes_a_client_is_said(arguments):
    """In text and in JSON, from 1/N = 1e-4 on; the default is far below."""
    for delta, is_said in (("1e-4", True), ("0.02", True), ("9e-5", False)):
        wide = [*arguments, "--delta", delta]
        text = " ".join(run(*wide).split())
        assert (f"! delta {float(delta):g} >= 1/N = 0.0001: a client may be" in text) is is_said
        facts = json.loads(run(*wide, "--json"))
        said = " ".join([*facts.get("verdicts", []), facts.get("warning") or ""])
        assert ("published outright" in said) is is_said
    assert "published" not in run(*PLAN) + run(*ACCOUNT[:-2], "--noise-multiplier", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAN, "--tolerance", "2"], "tolerance must be"),
        ([*PLAN, "--dim-target", "10", "--target-breach", "1e-9"], "probability must be"),
        (["calibrate", "--dim", "1", "--epsilon-direction", "5"], "dim must be"),
        ([*CALIBRATE, "--max-norm", "0"], "max_norm must be"),
        (ACCOUNT, "either --noise-multiplier or --target-epsilon"),
        ([*ACCOUNT, "--noise-multiplier", "1", "--target-epsilon", "1"], "either"),
        ([*ACCOUNT, "--noise-multiplier", "-1"], "noise_multiplier"),
        ([*ACCOUNT, "--noise-multiplier", "0"], "noise_multiplier"),
        ([*ACCOUNT, "--target-epsilon", "0"], "epsilon must be"),
        (
            [*ACCOUNT, "--noise-multiplier", "1", "--population", "5"],
            "clients_per_round must be between 1 and the population of 5; got 100",
        ),
    ],
)
def test_mistakes_are_one_line_with_the_field(arguments, message):
    with pytest.raises(CommandError, match=message) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
