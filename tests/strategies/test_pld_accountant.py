"""The accountants on privacy loss distributions, against dp-accounting and Flower's own."""

import json
import math
import sys
import time

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant as DpRdpAccountant
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)

from flwr_sdp.strategies import (
    BestAccountant,
    PldAccountant,
    fixed_size_accountant,
    fixed_size_event,
    poisson_accountant,
    poisson_event,
)
from flwr_sdp.strategies.best_accountant import _RDP_ROUNDING
from flwr_sdp.strategies.budget import affordable_releases
from flwr_sdp.strategies.privacy_loss import gaussian_epsilon
from tests.statistics_helpers import load_oracle

POISSON = (SamplingMethod.POISSON, NeighboringRelation.ADD_OR_REMOVE_ONE)
PLAIN = (SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE)
REPLACED = (SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE)

ORACLE = load_oracle("central")


def config(population=1000, delta=1e-6, model=POISSON, max_epsilon=None):
    method, relation = model
    return PrivacyConfig(
        target_delta=delta,
        population_size=population,
        neighboring_relation=relation,
        sampling_method=method,
        max_epsilon=max_epsilon,
    )


def event(noise_multiplier=1.0, cohort=10, population=1000):
    return GaussianPrivacyEvent(
        noise_multiplier=noise_multiplier, sample_size=cohort, population_size=population
    )


@pytest.fixture(params=[PldAccountant, BestAccountant])
def kind(request):
    return request.param


# ------------------------------------------------------------------ the protocol
def test_counts_releases_and_speaks_flowers_language(kind):
    accountant = kind(config())
    assert accountant.num_releases == 0
    assert accountant.get_privacy_spent().epsilon == 0.0
    accountant.compose(event())
    accountant.compose(event(), 4)
    accountant.compose(event(2.0))
    spent = accountant.get_privacy_spent()
    assert (spent.num_releases, spent.delta, spent.accounting_method) == (6, 1e-6, "pld")
    assert spent.epsilon == accountant.get_epsilon(1e-6) > accountant.get_epsilon(1e-3)
    assert accountant.get_privacy_spent(1e-3).delta == 1e-3
    assert accountant.get_delta(spent.epsilon) == pytest.approx(1e-6, rel=0.01)
    assert accountant.config == config()


def test_does_not_exceed_flowers_accountant(kind):
    """Flower's Renyi accountant is valid and looser: 1.58 times here."""
    ours, flowers = kind(config()), RdpAccountant(config())
    for accountant in (ours, flowers):
        accountant.compose(event(), 100)
        accountant.compose(event(0.8), 20)
    assert ours.get_epsilon(1e-6) < flowers.get_epsilon(1e-6) < 2 * ours.get_epsilon(1e-6)


@pytest.mark.parametrize("row", ORACLE["accountant_grid"], ids=lambda row: row["q"])
def test_reproduces_the_oracle(row):
    """Above dp-accounting's distributions rounded down, at most 0.3% above those rounded up."""
    population = 1000
    accountant = PldAccountant(config(population, delta=float(ORACLE["delta"])))
    cohort = round(float(row["q"]) * population)
    accountant.compose(event(float(row["noise_multiplier"]), cohort, population), row["T"])
    bracket = row["dp_accounting_pld_eps"]
    epsilon = accountant.get_epsilon(float(ORACLE["delta"]))
    assert bracket["optimistic"] < epsilon < 1.003 * bracket["pessimistic"]
    assert epsilon < row["dp_accounting_rdp_eps"]


def test_reading_changes_nothing(kind):
    accountant = kind(config(max_epsilon=2.0))
    accountant.compose(event(), 30)
    state = json.dumps(accountant.state_dict())
    before = accountant.get_privacy_spent()
    accountant.get_epsilon(1e-3)
    accountant.get_delta(0.3)
    accountant.would_exceed(event(), count=100)
    accountant.would_exceed(event(0.5), 0.7)
    assert accountant.get_privacy_spent() == before
    assert json.dumps(accountant.state_dict()) == state


def test_one_by_one_is_as_all_at_once(kind):
    single, together = kind(config()), kind(config())
    for _ in range(25):
        single.compose(event())
        single.get_epsilon(1e-6)
    together.compose(event(), 25)
    assert single.get_privacy_spent() == together.get_privacy_spent()
    assert single.state_dict() == together.state_dict()


@pytest.mark.parametrize(("spent", "max_epsilon"), [(0, 0.55), (40, 0.2), (40, 2.0)])
def test_would_exceed_says_what_composing_would_show(spent, max_epsilon):
    accountant = PldAccountant(config(max_epsilon=max_epsilon))
    if spent:
        accountant.compose(event(0.9), spent)
    for count in (1, 5, 20, 60, 61, 62, 500):
        after = PldAccountant(config())
        if spent:
            after.compose(event(0.9), spent)
        after.compose(event(), count)
        exceeded = after.get_epsilon(1e-6) > max_epsilon
        assert accountant.would_exceed(event(), count=count) is exceeded
    assert accountant.num_releases == spent


def test_the_most_releases_that_fit_are_found(kind):
    accountant = kind(config(max_epsilon=1.0))
    count = affordable_releases(accountant, event(), 1.0)
    assert not accountant.would_exceed(event(), count=count)
    assert accountant.would_exceed(event(), count=count + 1)


def test_a_long_training_is_checked_in_seconds():
    """Every round checked and charged, to the end of the budget: about 4 s for 3,870 rounds."""
    accountant = BestAccountant(config(population=10_000, max_epsilon=3.0))
    release = event(1.2, 100, 10_000)
    start, rounds = time.perf_counter(), 0
    while not accountant.would_exceed(release):
        accountant.compose(release)
        rounds += 1
    assert 3800 < rounds < 3950
    assert accountant.get_epsilon(1e-6) <= 3.0
    assert time.perf_counter() - start < 60.0


def test_state_survives(kind):
    accountant = kind(config(max_epsilon=3.0))
    accountant.compose(event(), 7)
    accountant.compose(event(0.7, 30), 2)
    restored = kind(config(max_epsilon=3.0))
    restored.compose(event(), 100)
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.get_privacy_spent() == accountant.get_privacy_spent()
    assert restored.state_dict() == accountant.state_dict()
    restored.compose(event())
    accountant.compose(event())
    assert restored.get_privacy_spent() == accountant.get_privacy_spent()


def test_the_rate_drawn_with_is_charged_and_survives(kind):
    """And a state without one is that of whole clients, as it was written."""
    drawn = poisson_event(noise_multiplier=1.0, sampling_rate=1e-3, population=100)
    accountant = kind(config(population=100))
    accountant.compose(drawn, 200)
    same = kind(config(population=10**6))
    same.compose(event(1.0, 1000, 10**6), 200)
    assert accountant.get_epsilon(1e-5) == same.get_epsilon(1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(0.0728, rel=1e-3)
    assert not accountant.would_exceed(drawn, 0.2)
    state = json.loads(json.dumps(accountant.state_dict()))
    restored = kind(config(population=100))
    restored.load_state_dict(state)
    assert restored.get_privacy_spent() == accountant.get_privacy_spent()
    assert restored.state_dict() == state
    del state["compositions"][0]["event"]["sampling_rate"]
    restored.load_state_dict(state)
    assert restored.get_epsilon(1e-5) == pytest.approx(0.913, rel=1e-3)


def test_delta_that_is_spent_by_asking_alone_costs_the_gaussian(kind):
    """With hardly any noise, a client who is asked with probability delta may be seen whole."""
    accountant = kind(config(delta=1e-3))
    accountant.compose(event(1e-3, 1))
    assert accountant.get_epsilon(1e-3) == gaussian_epsilon(1e-3, 1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "state must have schema_version 1"),
        ({"backend": "rdp"}, "state must have backend"),
        ({"config": {}}, "state must have config"),
        ({"compositions": [{"event": {}, "count": 1}]}, "a composition that is not one"),
        ({"compositions": [{"event": {"noise_multiplier": 1.0}}]}, "a composition that is not one"),
        ({"compositions": None}, "a composition that is not one"),
    ],
)
def test_a_foreign_state_is_refused(kind, change, message):
    accountant = kind(config())
    accountant.compose(event(), 3)
    before = accountant.get_privacy_spent()
    with pytest.raises(ValueError, match=message):
        accountant.load_state_dict({**accountant.state_dict(), **change})
    assert accountant.get_privacy_spent() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.compose(event(population=999)), "population_size 1000; got 999"),
        (lambda a: a.compose("round"), "event must be a GaussianPrivacyEvent"),
        (lambda a: a.compose(event(), 0), "count must be an integer >= 1; got 0"),
        (lambda a: a.compose(event(), True), "count must be an integer"),
        (lambda a: a.get_epsilon(0.0), "delta must be a finite number"),
        (lambda a: a.get_epsilon(math.nan), "delta must be a finite number"),
        (lambda a: a.get_delta(-1.0), "epsilon must be a finite number"),
        (lambda a: a.would_exceed(event()), "max_epsilon must be given"),
        (lambda a: a.would_exceed(event(), -1.0), "max_epsilon must be a finite number"),
    ],
)
def test_bad_input_is_refused(kind, call, message):
    with pytest.raises(ValueError, match=message):
        call(kind(config()))


def test_the_configuration_is_checked(kind):
    with pytest.raises(ValueError, match="config must be a PrivacyConfig"):
        kind(None)


# ------------------------------------------------------------------ what is claimed
def test_no_amplification_is_the_gaussian_as_it_stands(kind):
    accountant = kind(config(model=PLAIN))
    accountant.compose(event(4.0), 9)
    assert accountant.get_epsilon(1e-6) == pytest.approx(gaussian_epsilon(4 / 3, 1e-6), rel=1e-12)


def test_replacement_is_charged_at_half_the_noise(kind):
    accountant = kind(config(model=REPLACED))
    accountant.compose(event(4.0), 9)
    assert accountant.get_epsilon(1e-6) == pytest.approx(gaussian_epsilon(2 / 3, 1e-6), rel=1e-12)


def test_a_fixed_size_event_is_charged_at_half_the_noise():
    """The same charge as for replacement, whether one client is added, removed or exchanged."""
    accountant = fixed_size_accountant(population=1000, delta=1e-6, max_epsilon=2.0)
    assert accountant.config == config(model=PLAIN, max_epsilon=2.0)
    charged = fixed_size_event(noise_multiplier=4.0, cohort_size=10, population=1000)
    assert charged == event(2.0)
    accountant.compose(charged, 9)
    replaced = BestAccountant(config(model=REPLACED))
    replaced.compose(event(4.0), 9)
    assert accountant.get_epsilon(1e-6) == replaced.get_epsilon(1e-6)
    assert accountant.get_privacy_spent().accounting_method == "gaussian"


def test_a_fixed_size_cohort_moves_by_twice_the_clip_norm():
    """One client more: every cohort of 2 of {a, b, c} with c in it is one of {a, b} without.

    With c at +1 and the others at -1, the sums are 0 and -2: apart by twice the clip norm of 1, and
    the event has to pay for it.
    """
    values = {"a": -1.0, "b": -1.0, "c": 1.0}
    with_client = {values[x] + values["c"] for x in "ab"}
    without = values["a"] + values["b"]
    assert {total - without for total in with_client} == {2.0}
    charged = fixed_size_event(noise_multiplier=1.0, cohort_size=2, population=3)
    assert charged.noise_multiplier * 2.0 == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"noise_multiplier": 1e-160}, "noise_multiplier must be a finite number >= 1e-06"),
        ({"noise_multiplier": 1e300}, r"noise_multiplier must be .*1e\+12; got 1e\+300"),
        ({"cohort_size": 11}, "cohort_size must be an integer >= 1 and <= 10; got 11"),
        ({"cohort_size": 0}, "cohort_size must be"),
        ({"population": 0}, "population must be"),
    ],
)
def test_fixed_size_events_are_checked(changes, message):
    valid = {"noise_multiplier": 1.0, "cohort_size": 5, "population": 10}
    with pytest.raises(ValueError, match=message):
        fixed_size_event(**{**valid, **changes})


def test_poisson_accountant_states_what_is_run():
    accountant = poisson_accountant(population=1000, delta=1e-6, max_epsilon=2.0)
    assert accountant.config == config(max_epsilon=2.0)
    accountant.compose(poisson_event(noise_multiplier=1.0, sampling_rate=0.01, population=1000))
    accountant.compose(event())
    assert accountant.state_dict()["compositions"][0]["count"] == 2


# ------------------------------------------------------------------ the best bound
def test_the_smallest_bound_is_reported_by_name(monkeypatch):
    accountant = BestAccountant(config())
    accountant.compose(event(), 10)
    assert accountant.get_privacy_spent().accounting_method == "pld"
    pld = accountant.get_epsilon(1e-6)
    monkeypatch.setattr(BestAccountant, "_renyi", lambda *_: pld / 2)
    spent = accountant.get_privacy_spent()
    assert (spent.epsilon, spent.accounting_method) == (pld / 2, "rdp")
    plain = BestAccountant(config(model=PLAIN))
    plain.compose(event())
    assert plain.get_privacy_spent().accounting_method == "gaussian"


@pytest.mark.parametrize("cohort", [10, 1000])
def test_everybody_asked_is_the_gaussian(cohort):
    accountant = BestAccountant(config())
    accountant.compose(event(3.0, cohort), 4)
    method = accountant.get_privacy_spent().accounting_method
    assert method == ("gaussian" if cohort == 1000 else "pld")
    unsampled = gaussian_epsilon(1.5, 1e-6)
    assert accountant.get_epsilon(1e-6) <= unsampled
    assert (accountant.get_epsilon(1e-6) == unsampled) is (cohort == 1000)


def test_the_renyi_bound_is_that_of_dp_accounting():
    """Up to the rounding that is added to it, which is 1e-11 a release."""
    accountant = BestAccountant(config())
    accountant.compose(event(), 100)
    accountant.compose(event(0.7, 20), 30)
    expected = DpRdpAccountant()
    expected.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 100)
    expected.compose(PoissonSampledDpEvent(0.02, GaussianDpEvent(0.7)), 30)
    renyi = accountant._renyi(accountant._counts, 1e-6)
    assert 0 <= renyi - expected.get_epsilon(1e-6) < 2 * 130 * _RDP_ROUNDING


def test_a_negative_divergence_proves_nothing(monkeypatch):
    """dp-accounting takes one, left by rounding, for an epsilon of 0."""
    monkeypatch.setattr(DpRdpAccountant, "rdp", property(lambda self: self._rdp * 0 - 1e-17))
    accountant = BestAccountant(config())
    accountant.compose(event(), 100)
    assert accountant._renyi(accountant._counts, 1e-6) > 0.0


def test_missing_dp_accounting_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-sdp\[server\]'"):
        BestAccountant(config())
    PldAccountant(config()).compose(event())  # needs none
