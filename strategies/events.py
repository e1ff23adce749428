"""What a release is charged as, where whole numbers of clients do not say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.serverapp import GaussianPrivacyEvent

from flwr_sdp import _validate

LEAST_MULTIPLIER, MOST_MULTIPLIER = 1e-6, 1e12
"""Of noise: below the least, accountants lose their precision; above the most, nobody trains."""

ROUNDING = 1e-12
"""Relative; what the product of a rate and a population may be off."""


@dataclass(frozen=True)
class RatedEvent(GaussianPrivacyEvent):
    """Flower's event with the sampling rate that was drawn with.

    Its whole numbers come to that rate or more, so that an accountant which reads only them charges
    no less (up to 1e-12 of it).
    """

    sampling_rate: float

    def __post_init__(self) -> None:
        """Check the event."""
        super().__post_init__()
        most = self.sample_size / self.population_size * (1.0 + 2.0 * ROUNDING)
        _validate.number("sampling_rate", self.sampling_rate, above=0.0, maximum=min(most, 1.0))


def rate_of(event: GaussianPrivacyEvent) -> float:
    """Return the sampling rate of an event, the exact one where it holds it."""
    if isinstance(event, RatedEvent):
        return event.sampling_rate
    return event.sample_size / event.population_size


def event_of(facts: Mapping[str, Any]) -> GaussianPrivacyEvent:
    """Return the event whose fields these are; one without a rate is in whole clients."""
    return (RatedEvent if "sampling_rate" in facts else GaussianPrivacyEvent)(**facts)
