"""Accountants and events for the cohorts there are, each with what it claims."""

from __future__ import annotations

import logging
import math

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    SamplingMethod,
)

from flwr_sdp import _validate
from flwr_sdp.strategies._quiet import quiet
from flwr_sdp.strategies.best_accountant import BestAccountant
from flwr_sdp.strategies.events import LEAST_MULTIPLIER, MOST_MULTIPLIER, ROUNDING, RatedEvent
from flwr_sdp.strategies.pld_accountant import PldAccountant


def default_delta(population: int) -> float:
    """Return the delta that is meant where none is given: well below one over the clients."""
    return min(1e-5, 0.1 / population)


def delta_warning(delta: float, population: int) -> str | None:
    """Return what to say beside a delta that permits to publish a client outright, or None.

    A mechanism that picks one of N clients at random and gives out all it holds has epsilon 0 at
    delta = 1/N.
    """
    share = 1.0 / population
    if delta < share * (1.0 - ROUNDING):
        return None
    return f"delta {delta:.3g} >= 1/N = {share:.3g}: a client may be published outright"


def poisson_accountant(
    *, population: int, delta: float, max_epsilon: float | None = None
) -> BestAccountant:
    """Return the accountant for Poisson cohorts; its events are those of :func:`poisson_event`.

    **Privacy.** It speaks of neighbours that differ by one client more or less, and draws on the
    secrecy of who was in which cohort.

    Raises
    ------
    ImportError
        If dp-accounting is missing; ``pip install 'flwr-sdp[server]'`` brings it.
    """
    return BestAccountant(_config(SamplingMethod.POISSON, population, delta, max_epsilon))


def fixed_size_accountant(
    *, population: int, delta: float, max_epsilon: float | None = None
) -> BestAccountant:
    """Return the accountant for cohorts of fixed size, for events of :func:`fixed_size_event`.

    **Privacy.** It claims what the event claims, and nothing from the secrecy of the cohorts.

    Raises
    ------
    ImportError
        If dp-accounting is missing; ``pip install 'flwr-sdp[server]'`` brings it.
    """
    return BestAccountant(_config(SamplingMethod.NO_AMPLIFICATION, population, delta, max_epsilon))


def poisson_rdp_accountant(
    *, population: int, delta: float, max_epsilon: float | None = None
) -> PrivacyAccountant:
    """Return Flower's Renyi accountant for Poisson cohorts and add-or-remove-one neighbours.

    Raises
    ------
    ImportError
        If dp-accounting is missing; ``pip install 'flwr-sdp[server]'`` brings it.
    """
    try:
        from flwr.serverapp import RdpAccountant

        return RdpAccountant(_config(SamplingMethod.POISSON, population, delta, max_epsilon))
    except ImportError as error:
        raise ImportError(
            "central accounting needs dp-accounting: pip install 'flwr-sdp[server]'"
        ) from error


def compose(accountant: PrivacyAccountant, event: GaussianPrivacyEvent, count: int = 1) -> None:
    """Charge `count` releases.

    dp-accounting warns of each Renyi order that does not converge and leaves it out, which can only
    raise the epsilon it reports.
    """
    with quiet("absl", logging.ERROR):
        accountant.compose(event, count)


def poisson_event(
    *, noise_multiplier: float, sampling_rate: float, population: int
) -> GaussianPrivacyEvent:
    """Return the event of one Poisson-sampled Gaussian release.

    Flower's event holds a whole number of clients. Where that does not make the rate, it is the
    next larger one, at which other accountants charge, and the event holds the rate besides: at
    that our own charge.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    noise_multiplier = _multiplier(noise_multiplier)
    sampling_rate = _validate.number("sampling_rate", sampling_rate, above=0.0, maximum=1.0)
    population = _validate.integer("population", population, minimum=1)
    # The product of a rate and a population carries rounding: 0.07 * 100 is 7.000000000000001.
    expected = sampling_rate * population
    cohort = round(expected)
    if cohort < expected * (1.0 - ROUNDING):
        cohort = math.ceil(expected)
    cohort = min(max(cohort, 1), population)
    if cohort / population == sampling_rate:
        return GaussianPrivacyEvent(noise_multiplier, cohort, population)
    return RatedEvent(noise_multiplier, cohort, population, sampling_rate)


def as_charged(accountant: PrivacyAccountant, event: GaussianPrivacyEvent) -> GaussianPrivacyEvent:
    """Return what an accountant charges for an event: only our own read an exact rate."""
    if isinstance(accountant, PldAccountant):
        return event
    return GaussianPrivacyEvent(event.noise_multiplier, event.sample_size, event.population_size)


def fixed_size_event(
    *, noise_multiplier: float, cohort_size: int, population: int
) -> GaussianPrivacyEvent:
    """Return the event of one Gaussian release over a cohort of fixed size.

    **Privacy.** For neighbours that differ by one client more or less, and for neighbours in which
    one client is exchanged for another. In either case a cohort with the client in question is,
    without it, a cohort with somebody else in its place: the two sums are up to *twice* the clip
    norm apart, and mixing over cohorts does not widen that. So the event has half of the noise
    multiplier, and is charged without amplification.

    Whoever only claims that a client's updates might as well have been zero, *with the same
    cohorts*, may charge an event with the whole noise multiplier.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    noise_multiplier = _multiplier(noise_multiplier)
    population = _validate.integer("population", population, minimum=1)
    return GaussianPrivacyEvent(
        noise_multiplier=noise_multiplier / 2.0,
        sample_size=_validate.integer("cohort_size", cohort_size, minimum=1, maximum=population),
        population_size=population,
    )


def _multiplier(value: float) -> float:
    return _validate.number(
        "noise_multiplier", value, minimum=LEAST_MULTIPLIER, maximum=MOST_MULTIPLIER
    )


def _config(
    method: SamplingMethod, population: int, delta: float, max_epsilon: float | None
) -> PrivacyConfig:
    return PrivacyConfig(
        target_delta=delta,
        population_size=population,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=method,
        max_epsilon=max_epsilon,
    )
