"""Central accounting, against dp-accounting itself."""

import math
import sys

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, SamplingMethod
from hypothesis import example, given
from hypothesis import strategies as st

from flwr_sdp.strategies import poisson_event, poisson_rdp_accountant
from flwr_sdp.strategies.accountants import compose
from flwr_sdp.strategies.budget import affordable_releases
from flwr_sdp.strategies.events import RatedEvent, rate_of


def direct(rate, noise_multiplier, rounds, delta):
    """Return epsilon from dp-accounting alone."""
    accountant = RdpAccountant()
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)), rounds)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("rate", "population", "noise_multiplier", "rounds", "delta"),
    [
        (0.5, 100, 1.0, 60, 1e-5),
        (0.01, 1000, 0.6, 500, 1e-6),
        (1.0, 10, 5.0, 3, 1e-3),
        (0.002, 10_000_000, 1.0, 100, 1e-9),
        (0.5, 100, 0.05, 2, 1e-5),
    ],
)
def test_epsilon_is_that_of_dp_accounting(rate, population, noise_multiplier, rounds, delta):
    accountant = poisson_rdp_accountant(population=population, delta=delta)
    event = poisson_event(
        noise_multiplier=noise_multiplier, sampling_rate=rate, population=population
    )
    for _ in range(min(rounds, 3)):
        accountant.compose(event)
    accountant.compose(event, rounds - 3) if rounds > 3 else None
    spent = accountant.get_privacy_spent()
    expected = direct(rate, noise_multiplier, rounds, delta)
    assert spent.epsilon == pytest.approx(expected, rel=1e-9)
    assert (spent.num_releases, spent.delta) == (rounds, delta)


def test_accountant_states_what_is_run():
    config = poisson_rdp_accountant(population=7, delta=1e-3, max_epsilon=2.0).config
    assert config.sampling_method is SamplingMethod.POISSON
    assert config.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert (config.population_size, config.target_delta, config.max_epsilon) == (7, 1e-3, 2.0)


@given(
    rate=st.floats(min_value=1e-12, max_value=1.0, exclude_min=True),
    population=st.integers(1, 10**8),
)
@example(rate=0.07, population=100)
@example(rate=0.055, population=100)
@example(rate=0.29, population=100)
@example(rate=1 / 3, population=3)
@example(rate=1.0, population=1)
@example(rate=math.nextafter(0.5, 1.0), population=2)
@example(rate=1e-12, population=1)
def test_charged_rate_is_never_below_the_real_one(rate, population):
    """Up to the rounding of the product, 1e-12 of it; and at most one client above it."""
    event = poisson_event(noise_multiplier=1.0, sampling_rate=rate, population=population)
    assert event.population_size == population
    assert 1 <= event.sample_size <= population
    assert event.sample_size / population >= rate * (1.0 - 2e-12)
    assert event.sample_size - 1 < rate * population * (1 + 1e-12)
    assert rate_of(event) == rate


@given(cohort=st.integers(1, 1000), population=st.integers(1, 1000))
def test_whole_cohorts_are_charged_exactly(cohort, population):
    cohort, population = min(cohort, population), max(cohort, population)
    event = poisson_event(
        noise_multiplier=1.0, sampling_rate=cohort / population, population=population
    )
    assert event == GaussianPrivacyEvent(1.0, cohort, population)


@pytest.mark.parametrize("rate", [0.0, 0.31, 2.0, math.nan, True])
def test_an_event_does_not_state_a_rate_beyond_its_clients(rate):
    with pytest.raises(ValueError, match="sampling_rate must be"):
        RatedEvent(1.0, 3, 10, rate)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 0.0),
        ("noise_multiplier", math.nan),
        ("sampling_rate", 0.0),
        ("sampling_rate", -0.5),
        ("sampling_rate", 1.5),
        ("sampling_rate", math.nan),
        ("sampling_rate", "0.5"),
        ("population", 0),
        ("population", 10.0),
    ],
)
def test_events_of_no_release_are_refused(field, value):
    """A rate of 0 or less would be charged as one client, and one above 1 as all of them."""
    settings = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "population": 10}
    with pytest.raises(ValueError, match=f"^{field} must be .*; got"):
        poisson_event(**{**settings, field: value})


def test_flowers_accountant_rounds_the_rate_upwards():
    """Its charge for 5.5 clients in 100 is that for 6."""
    accountant = poisson_rdp_accountant(population=100, delta=1e-5)
    accountant.compose(poisson_event(noise_multiplier=1.0, sampling_rate=0.055, population=100), 10)
    epsilon = accountant.get_privacy_spent().epsilon
    assert epsilon == pytest.approx(direct(0.06, 1.0, 10, 1e-5), rel=1e-9)
    assert epsilon >= direct(0.055, 1.0, 10, 1e-5)


def test_missing_dp_accounting_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-sdp\[server\]'"):
        poisson_rdp_accountant(population=10, delta=1e-5)


@pytest.mark.parametrize("spent", [0, 7])
@pytest.mark.parametrize("max_epsilon", [0.5, 1.0, 3.0])
def test_affordable_releases_are_the_most_that_fit(max_epsilon, spent):
    """One release more exceeds the limit; a limit already reached affords none."""
    event = poisson_event(noise_multiplier=1.0, sampling_rate=0.01, population=1000)

    def epsilon_after(count):
        accountant = poisson_rdp_accountant(population=1000, delta=1e-5)
        compose(accountant, event, spent + count)
        return accountant.get_epsilon(1e-5)

    accountant = poisson_rdp_accountant(population=1000, delta=1e-5)
    if spent:
        compose(accountant, event, spent)
    count = affordable_releases(accountant, event, max_epsilon)
    assert accountant.num_releases == spent
    if count:
        assert epsilon_after(count) <= max_epsilon
    assert epsilon_after(count + 1) > max_epsilon


def test_accounting_says_nothing_of_the_orders_it_leaves_out(caplog):
    accountant = poisson_rdp_accountant(population=100, delta=1e-5)
    event = poisson_event(noise_multiplier=1.0, sampling_rate=0.5, population=100)
    compose(accountant, event)
    assert affordable_releases(accountant, event, 10.0) == 6
    assert caplog.records == []
