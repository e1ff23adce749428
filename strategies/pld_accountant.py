"""Central accounting with privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from flwr.serverapp import (
    GaussianPrivacyEvent,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from flwr_sdp import _validate
from flwr_sdp.strategies.events import event_of, rate_of
from flwr_sdp.strategies.privacy_loss import PrivacyLoss, SampledGaussian

_SCHEMA_VERSION = 1
# An epsilon this far from a limit is on the same side of it for fewer, or more, releases: lattices
# differ by less.
_CLEAR = 1.005


class PldAccountant:
    """An accountant of Flower's ``PrivacyAccountant`` protocol with tight, provable bounds.

    Parameters
    ----------
    config : PrivacyConfig
        Flower's. It says what an event is charged as, and what is claimed:

        - ``POISSON``, ``ADD_OR_REMOVE_ONE``: every client is in with probability ``sample_size /
          population_size``, or the exact rate that an event of :func:`poisson_event` holds,
          independently. Neighbours differ by one client more or less.
        - ``NO_AMPLIFICATION``, ``ADD_OR_REMOVE_ONE``: the Gaussian as it stands, whoever was asked.
          Neighbours differ in that one client's updates are there or are not, *all other replies
          being the same*. A cohort of fixed size does not leave them the same, see
          :func:`fixed_size_event`.
        - ``WITHOUT_REPLACEMENT``, ``REPLACE_ONE``: a cohort of fixed size, in which one client is
          exchanged for another. That moves the sum by up to twice the clip norm, so the Gaussian is
          charged at half of the noise multiplier; nothing is claimed from the secrecy of the draw.

    Notes
    -----
    **Privacy.** Every epsilon and every delta is an upper bound of the exact value, see
    ``PrivacyLoss``, at any delta: it is never infinite.
    Reading or checking changes nothing that a later result depends on.
    """

    _method: ClassVar[str] = "pld"

    def __init__(self, config: PrivacyConfig) -> None:
        if not isinstance(config, PrivacyConfig):
            raise ValueError(f"config must be a PrivacyConfig; got {config!r}")
        self._config = config
        self._loss = PrivacyLoss()
        self._compositions: list[tuple[GaussianPrivacyEvent, int]] = []
        self._counts: dict[SampledGaussian, int] = {}
        self._limits: dict[object, tuple[int, float]] = {}

    @property
    def config(self) -> PrivacyConfig:
        """Return the privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Return the number of composed private releases."""
        return sum(self._counts.values())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Charge `count` releases."""
        release = self._release(event)
        count = _validate.integer("count", count, minimum=1)
        self._counts[release] = self._counts.get(release, 0) + count
        if self._compositions and self._compositions[-1][0] == event:
            count += self._compositions.pop()[1]
        self._compositions.append((event, count))

    def get_epsilon(self, delta: float) -> float:
        """Return an upper bound of the cumulative epsilon at `delta`."""
        return self.get_privacy_spent(delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """Return an upper bound of the cumulative delta at `epsilon`."""
        _validate.number("epsilon", epsilon, minimum=0.0)
        return self._loss.delta(self._counts, float(epsilon))

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return what has been spent, at the `delta` of the configuration by default."""
        delta = self._config.target_delta if delta is None else delta
        _validate.number("delta", delta, above=0.0, below=1.0)
        epsilon, method = self.bound(self._counts, float(delta))
        return PrivacySpent(
            epsilon=epsilon,
            delta=float(delta),
            num_releases=self.num_releases,
            accounting_method=method,
        )

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Return whether `count` releases more would exceed a limit on epsilon.

        The limit is `max_epsilon`, or else that of the configuration.
        """
        release = self._release(event)
        count = _validate.integer("count", count, minimum=1)
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError(
                "max_epsilon must be given here or in the PrivacyConfig; got None in both"
            )
        _validate.number("max_epsilon", limit, above=0.0)
        counts = dict(self._counts)
        wanted = counts.pop(release, 0) + count
        key = (release, limit, frozenset(counts.items()))
        # What is known for all counts up to the first, and from the second on. Asking ahead answers
        # the next rounds as well.
        fits, exceeds = self._limits.get(key, (0, math.inf))
        answer = None
        while answer is None and fits < wanted < exceeds:
            asked = 2 * wanted if exceeds == math.inf else (wanted + int(exceeds)) // 2
            counts[release] = asked
            epsilon = self.bound(counts, self._config.target_delta)[0]
            if asked == wanted:
                answer = epsilon > limit
            if epsilon * _CLEAR <= limit:
                fits = asked
            elif epsilon > limit * _CLEAR:
                exceeds = asked
            elif asked != wanted:
                counts[release] = wanted
                answer = self.bound(counts, self._config.target_delta)[0] > limit
        self._limits[key] = (fits, exceeds)
        return wanted >= exceeds if answer is None else answer

    def bound(self, counts: Mapping[SampledGaussian, int], delta: float) -> tuple[float, str]:
        """Return an upper bound of epsilon after some releases, and the method that gave it."""
        return self._loss.epsilon(counts, delta), self._method

    def state_dict(self) -> dict[str, object]:
        """Return the state, JSON-ready: what was charged, not what it came to."""
        return {
            "schema_version": _SCHEMA_VERSION,
            "backend": self._method,
            "config": _config_state(self._config),
            "compositions": [
                {"event": asdict(event), "count": count} for event, count in self._compositions
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            If it is of another version, kind or configuration, or is not such a state. Nothing has
            changed then.
        """
        for name, expected in (
            ("schema_version", _SCHEMA_VERSION),
            ("backend", self._method),
            ("config", _config_state(self._config)),
        ):
            if state.get(name) != expected:
                raise ValueError(
                    f"state must have {name} {expected!r}, as this accountant; got "
                    f"{state.get(name)!r}"
                )
        restored = type(self)(self._config)
        try:
            for entry in state["compositions"]:
                restored.compose(event_of(entry["event"]), entry["count"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state has a composition that is not one: {error}") from error
        self._compositions, self._counts = restored._compositions, restored._counts

    def _release(self, event: GaussianPrivacyEvent) -> SampledGaussian:
        """Return what an event is charged as."""
        if not isinstance(event, GaussianPrivacyEvent):
            raise ValueError(f"event must be a GaussianPrivacyEvent; got {event!r}")
        if event.population_size != self._config.population_size:
            raise ValueError(
                f"event must have the accountant's population_size "
                f"{self._config.population_size}; got {event.population_size}"
            )
        method, noise, rate = self._config.sampling_method, event.noise_multiplier, 1.0
        if method is SamplingMethod.POISSON:
            rate = rate_of(event)
        elif method is SamplingMethod.WITHOUT_REPLACEMENT:
            noise /= 2.0
        return SampledGaussian(sampling_rate=rate, noise_multiplier=noise)


def _config_state(config: PrivacyConfig) -> dict[str, object]:
    return {
        "target_delta": config.target_delta,
        "population_size": config.population_size,
        "neighboring_relation": config.neighboring_relation.value,
        "sampling_method": config.sampling_method.value,
        "max_epsilon": config.max_epsilon,
    }
