"""The report: what it claims, and what it does not."""

import dataclasses
import json
import math
import re

import pytest
from flwr.serverapp import GaussianPrivacyEvent

from flwr_sdp.reconstruction import log_breach_bound
from flwr_sdp.strategies import (
    CentralGuarantee,
    LocalGuarantee,
    PrivacyReport,
    ProjectionEffect,
    poisson_accountant,
)
from tests.statistics_helpers import load_oracle

LOCAL = LocalGuarantee(epsilon_direction=50.0, epsilon_magnitude=10.0)
CENTRAL = CentralGuarantee(
    epsilon=123.0,
    delta=1e-5,
    releases=60,
    accountant="rdp",
    noise_multiplier=0.05,
    clip_norm=20.0,
    sampling_rate=0.5,
    population=100,
)
PROJECTED = dataclasses.replace(
    CENTRAL, epsilon=0.77, delta=1e-9, noise_multiplier=1.0, sampling_rate=1e-4, population=10**7
)


def report(**changes):
    fields = {
        "rounds": 60,
        "max_reports_per_client": 60,
        "local": LOCAL,
        "central": CENTRAL,
        "exceptions": ("a client failed: no disk (7x)",),
        "projections": (PROJECTED,),
        "dim": 9610,
    }
    return PrivacyReport(**(fields | changes))


# ------------------------------------------------------------------ the dictionary
def test_local_and_central_stand_side_by_side():
    facts = report().to_dict()
    assert facts["local"]["epsilon_direction"] == 50.0
    assert facts["local"]["epsilon_magnitude"] == 10.0
    assert facts["local"]["epsilon_per_report"] == 60.0
    assert facts["local"]["epsilon_total"] == 3600.0
    assert facts["local"]["max_reports_per_client"] == 60
    assert facts["central"]["epsilon"] == 123.0
    assert facts["central"]["delta"] == 1e-5
    assert facts["central"]["status"] == "run"
    assert facts["local"]["against"] != facts["central"]["against"]


def test_central_states_all_it_rests_on():
    central = report().to_dict()["central"]
    for field in dataclasses.fields(CentralGuarantee):
        assert central[field.name] == getattr(CENTRAL, field.name)
    assert central["sampling"] == "poisson"
    assert central["adjacency"] == "add or remove one client"


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []


def test_local_and_central_are_never_summed():
    facts = report(local=LocalGuarantee(epsilon_direction=50.5, epsilon_magnitude=10.25)).to_dict()
    local, central = facts["local"], facts["central"]
    sums = [
        local[one] + central["epsilon"]
        for one in ("epsilon_per_report", "epsilon_total", "epsilon_direction", "epsilon_magnitude")
    ]
    assert not set(sums) & set(numbers(facts))


def test_projection_is_never_taken_for_a_run():
    facts = report().to_dict()
    (projected,) = facts["central_projected"]
    assert projected["status"] == "projected, not run"
    assert projected["epsilon"] == 0.77
    assert projected["population"] == 10**7
    assert facts["central"]["epsilon"] == 123.0
    assert report(central=None).to_dict()["central"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local": None},
        {"central": None, "projections": ()},
        {"dim": None},
        {"dim": 2},
        {"rounds": 0, "local": None, "central": None, "exceptions": (), "projections": ()},
    ],
)
def test_report_is_json(changes):
    some = report(**changes)
    text = some.to_json()
    assert json.loads(text) == some.to_dict()
    assert text.endswith("}\n")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert some.to_dict()["schema"] == 1


def test_nothing_is_claimed_that_is_not_there():
    facts = report(local=None, central=None, projections=()).to_dict()
    assert facts["local"] is facts["central"] is facts["reconstruction"] is None
    assert facts["central_projected"] == []
    assert "epsilon" not in json.dumps(facts)
    assert "epsilon" not in report(local=None, central=None, projections=()).to_text()


def test_every_exception_is_listed():
    some = report(exceptions=("one", "two"))
    assert some.to_dict()["exceptions"] == ["one", "two"]
    assert [line.split()[-1] for line in some.to_text().splitlines()[-2:]] == ["one", "two"]


def test_reconstruction_is_the_bound_for_the_local_epsilon():
    facts = report(max_reports_per_client=2).to_dict()["reconstruction"]
    for scope, epsilon in (("one_report", 60.0), ("all_reports", 120.0)):
        bound = log_breach_bound(epsilon=epsilon, dim_target=9610, tolerance=0.5, rule="tight")
        assert facts[f"log_probability_{scope}"] == pytest.approx(bound)
        assert bound < -500.0
    assert facts["dim_target"] == 9610


def test_reconstruction_bound_above_one_is_no_protection():
    some = report(dim=10)
    assert some.to_dict()["reconstruction"]["log_probability_one_report"] == 0.0
    assert "no protection" in some.to_text()


# ------------------------------------------------------------------ the text
def test_text_names_every_number_once_at_its_place():
    text = report().to_text()
    lines = text.splitlines()
    local = "\n".join(lines[: next(i for i, line in enumerate(lines) if "central" in line)])
    assert "60 rounds" in local
    for number in ("epsilon 60", "50 direction", "10 magnitude", "epsilon 3600"):
        assert number in local
    assert "123" not in local
    (run,) = [line for line in lines if "epsilon 123" in line]
    assert re.search(r"\brun\b", run, re.IGNORECASE)
    assert "PROJECTED" not in run
    (projected,) = [line for line in lines if "0.77" in line]
    assert "PROJECTED" in projected
    assert "10,000,000" in projected
    assert "delta 1e-09" in projected


def test_text_is_no_wider_than_a_terminal():
    lines = report(exceptions=()).to_text().splitlines()
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("part", ["local", "central"])
def test_missing_guarantee_is_said_aloud(part):
    assert re.search(rf"{part} +NONE", report(**{part: None}).to_text())


# ------------------------------------------------------------------ guarantees
def test_weaker_of_two_local_guarantees_part_by_part():
    one = LocalGuarantee(epsilon_direction=5.0, epsilon_magnitude=3.0)
    other = LocalGuarantee(epsilon_direction=4.0, epsilon_magnitude=7.0)
    assert one.widened(other) == other.widened(one)
    assert one.widened(other).epsilon_per_report == 12.0


# The paper's reading: noise sigma on the average, the cohort grown until the noise on the sum is
# rho. Epsilons are in the oracle, between the two estimates of dp-accounting's PLD.
FITS = {
    "MNIST": (100.0, 0.005, 100, 0.002),
    "CIFAR10": (30.0, 0.002, 200, 0.0015),
}


@pytest.mark.parametrize("name", list(FITS))
@pytest.mark.parametrize(("population", "sampling_rate"), [(100, 0.5), (600, 0.1), (1, 1.0)])
def test_projection_is_the_papers_inflated_batch(name, population, sampling_rate):
    rho, sigma, rounds, rate = FITS[name]
    (fit,) = (
        fit["at_noise_multiplier_1"]["dp_accounting_pld_eps"]
        for fit in load_oracle("central")["fits"]
        if fit["experiment"] == name and fit["sigma_printed_in_paper"]
    )
    run = dataclasses.replace(
        CENTRAL,
        releases=rounds,
        clip_norm=rho,
        sampling_rate=sampling_rate,
        population=population,
        noise_multiplier=sigma / rho * sampling_rate * population,
    )
    projected = run.projected(population=10**7, noise_multiplier=1.0, delta=1e-9)
    assert fit["optimistic"] < projected.epsilon < 1.001 * fit["pessimistic"]
    assert projected.accountant == "pld"
    assert projected.sampling_rate == pytest.approx(rate)
    assert projected.noise_multiplier == 1.0
    assert (projected.population, projected.delta) == (10**7, 1e-9)
    assert (projected.releases, projected.clip_norm) == (rounds, rho)
    noise_on_average = (
        projected.noise_multiplier * rho / (projected.sampling_rate * projected.population)
    )
    assert noise_on_average == pytest.approx(sigma)


def test_projection_onto_the_run_itself_is_the_run():
    """Same population, same noise multiplier: the epsilon that was really spent."""
    run = dataclasses.replace(CENTRAL, noise_multiplier=4.0, releases=3, sampling_rate=0.25)
    same = run.projected(population=100, noise_multiplier=4.0, delta=1e-5)
    assert same.sampling_rate == 0.25
    assert 0.3 < same.epsilon < 1.5
    smaller = run.projected(population=100_000, noise_multiplier=4.0, delta=1e-5)
    assert smaller.epsilon < same.epsilon


def test_projection_that_needs_more_clients_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"population must be at least the cohort 1000 .*got 999"):
        CENTRAL.projected(population=999, noise_multiplier=1.0, delta=1e-9)


def test_a_cohort_that_is_not_whole_is_projected_exactly():
    """2.7 of 1,000 clients, and neither 3 nor the epsilon of 3."""
    run = dataclasses.replace(CENTRAL, noise_multiplier=0.5, sampling_rate=0.0135, population=100)
    projected = run.projected(population=1000, noise_multiplier=1.0, delta=1e-6)
    assert projected.sampling_rate == pytest.approx(2.7e-3, rel=1e-12)
    accountant = poisson_accountant(population=10_000, delta=1e-6)
    accountant.compose(GaussianPrivacyEvent(1.0, 27, 10_000), CENTRAL.releases)
    assert projected.epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-2, 0.3])
@pytest.mark.parametrize("part", ["central", "projections"])
def test_a_delta_that_publishes_a_client_is_named_beside_the_number(part, delta):
    """In a population of 100; the default, and 1e-3, are not warned of."""
    wide = dataclasses.replace(CENTRAL, delta=delta)
    made = report(**{part: wide if part == "central" else (wide,)}, exceptions=())
    lines = made.to_text().splitlines()
    (place,) = [i for i, line in enumerate(lines) if "published outright" in line]
    assert f"! delta {delta:g} >= 1/N = 0.01" in lines[place]
    assert f"delta {delta:g}, population 100" in lines[place - 2]
    assert max(map(len, lines)) <= 80
    facts = made.to_dict()["central" if part == "central" else "central_projected"]
    assert "published outright" in (facts if part == "central" else facts[0])["warning"]
    assert PrivacyReport.from_dict(made.to_dict()).to_dict() == made.to_dict()
    fine = report(central=dataclasses.replace(CENTRAL, delta=1e-3))
    assert "published" not in fine.to_text() + fine.to_json()


def test_a_report_of_before_is_read():
    """It has neither an expected cohort nor a warning."""
    content = report(central=dataclasses.replace(CENTRAL, delta=0.02)).to_dict()
    for name in ("warning", "expected_cohort"):
        del content["central"][name]
    read = PrivacyReport.from_dict(content)
    assert read.central.expected_cohort is None
    assert read.central.warning.startswith("delta 0.02 >= 1/N = 0.01")


def test_projection_leaves_the_run_alone():
    before = dataclasses.asdict(CENTRAL)
    CENTRAL.projected(population=10**7, noise_multiplier=1.0, delta=1e-9)
    assert dataclasses.asdict(CENTRAL) == before
    assert math.isfinite(before["epsilon"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local": None},
        {"central": None},
        {"dim": None},
        {"without_projection": dataclasses.replace(CENTRAL, epsilon=0.5, noise_multiplier=3.0)},
        {"projections": (dataclasses.replace(CENTRAL, population=10**7),)},
        {
            "projection": ProjectionEffect(
                norm=5.0, share_projected=0.25, mean_length=4.0, bias=-1.0
            )
        },
        {"projection": ProjectionEffect(norm=0.0, share_projected=0.25, mean_length=0.0, bias=0.0)},
    ],
)
def test_a_report_read_back_says_the_same(changes):
    made = report(**changes)
    read = PrivacyReport.from_dict(json.loads(made.to_json()))
    assert read.to_text() == made.to_text()
    assert read.to_dict() == made.to_dict()


def test_a_report_of_another_schema_is_refused():
    with pytest.raises(ValueError, match=r"schema must be 1 .* got 2"):
        PrivacyReport.from_dict({**report().to_dict(), "schema": 2})


@pytest.mark.parametrize("missing", ["local", "central", "exceptions", "reconstruction"])
def test_half_a_report_is_refused(missing):
    content = report().to_dict()
    del content[missing]
    with pytest.raises(ValueError, match=f"not a whole privacy report: '{missing}'"):
        PrivacyReport.from_dict(content)
