"""Central privacy accounting with Flower's own accountant."""

from __future__ import annotations

import math

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    SamplingMethod,
)


def poisson_rdp_accountant(
    *, population: int, delta: float, max_epsilon: float | None = None
) -> PrivacyAccountant:
    """Return Flower's Renyi accountant for Poisson cohorts and add-or-remove-one neighbours.

    Raises
    ------
    ImportError
        If dp-accounting is missing; ``pip install 'flwr-sdp[server]'`` brings it.
    """
    config = PrivacyConfig(
        target_delta=delta,
        population_size=population,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.POISSON,
        max_epsilon=max_epsilon,
    )
    try:
        from flwr.serverapp import RdpAccountant

        return RdpAccountant(config)
    except ImportError as error:
        raise ImportError(
            "central accounting needs dp-accounting: pip install 'flwr-sdp[server]'"
        ) from error


def poisson_event(
    *, noise_multiplier: float, sampling_rate: float, population: int
) -> GaussianPrivacyEvent:
    """Return the event of one Poisson-sampled Gaussian release.

    Flower's event holds a whole number of clients, so an expected cohort that is not whole is
    rounded up: the sampling rate it is charged at is never below the real one.
    """
    # The product of a rate and a population carries rounding: 0.07 * 100 is 7.000000000000001.
    expected = sampling_rate * population
    cohort = round(expected)
    if cohort < expected * (1.0 - 1e-12):
        cohort = math.ceil(expected)
    return GaussianPrivacyEvent(
        noise_multiplier=noise_multiplier,
        sample_size=min(max(cohort, 1), population),
        population_size=population,
    )
