"""The run config, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_sdp import SeparatedBudget, _validate
from flwr_sdp.privunit import RULES, Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one training run does; one field for each key of the run config."""

    task: str
    num_clients: int
    num_rounds: int
    seed: int
    baseline: bool
    fail_fast: bool
    output_dir: Path | None
    checkpoint_keep: int
    resume: bool
    round_timeout: float
    # local training
    local_steps: int
    local_learning_rate: float
    # local privacy
    budget: SeparatedBudget
    max_norm: float
    rule: Rule
    # central privacy
    clip_norm: float | None
    noise_multiplier: float
    sampling_rate: float
    cohort_size: int | None
    server_learning_rate: float
    delta: float
    max_epsilon: float | None
    projected_population: int | None
    projected_noise_multiplier: float
    projected_delta: float

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a Flower run config.

        Raises
        ------
        ValueError
            Naming the first key that is missing or out of range.
        """
        read = _Reader(config)
        return cls(
            task=read.text("task"),
            num_clients=read.integer("num-clients", minimum=1),
            num_rounds=read.integer("num-server-rounds", minimum=1),
            seed=read.integer("seed", minimum=0),
            baseline=read.flag("baseline"),
            fail_fast=read.flag("fail-fast"),
            output_dir=Path(text) if (text := read.text("output-dir")) else None,
            checkpoint_keep=read.integer("checkpoint-keep", minimum=0),
            resume=read.flag("resume"),
            round_timeout=read.number("round-timeout", above=0.0),
            local_steps=read.integer("local-steps", minimum=1),
            local_learning_rate=read.number("sdp-local-learning-rate", above=0.0),
            budget=SeparatedBudget(
                epsilon_direction=read.number("sdp-epsilon-direction", above=0.0),
                epsilon_magnitude=read.number("sdp-epsilon-magnitude", above=0.0),
            ),
            max_norm=read.number("sdp-max-norm", above=0.0),
            rule=read.rule("sdp-rule"),
            clip_norm=read.number("sdp-clip-norm", minimum=0.0) or None,
            noise_multiplier=read.number("sdp-noise-multiplier", minimum=0.0),
            sampling_rate=read.number("sdp-sampling-rate", above=0.0, maximum=1.0),
            cohort_size=read.integer("sdp-cohort-size", minimum=0) or None,
            server_learning_rate=read.number("server-learning-rate", above=0.0),
            delta=read.number("sdp-delta", above=0.0, below=1.0),
            max_epsilon=read.number("sdp-max-epsilon", minimum=0.0) or None,
            projected_population=read.integer("projected-population", minimum=0) or None,
            projected_noise_multiplier=read.number("projected-noise-multiplier", above=0.0),
            projected_delta=read.number("projected-delta", above=0.0, below=1.0),
        )

    @property
    def expected_cohort(self) -> float:
        """Clients asked in a round, in expectation."""
        return self.cohort_size or self.sampling_rate * self.num_clients


class _Reader:
    """Typed access to a run config; every error names the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def _value(self, key: str) -> Any:
        if key not in self._config:
            raise ValueError(f"{key} is missing from the run config")
        return self._config[key]

    def number(
        self,
        key: str,
        *,
        above: float = -math.inf,
        below: float = math.inf,
        minimum: float = -math.inf,
        maximum: float = math.inf,
    ) -> float:
        return _validate.number(
            key, self._value(key), above=above, below=below, minimum=minimum, maximum=maximum
        )

    def integer(self, key: str, *, minimum: int) -> int:
        return _validate.integer(key, self._value(key), minimum=minimum)

    def flag(self, key: str) -> bool:
        value = self._value(key)
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false; got {value!r}")
        return value

    def text(self, key: str) -> str:
        value = self._value(key)
        if not isinstance(value, str):
            raise ValueError(f"{key} must be a string; got {value!r}")
        return value

    def rule(self, key: str) -> Rule:
        value = self._value(key)
        for rule in RULES:
            if value == rule:
                return rule
        raise ValueError(f"{key} must be one of {', '.join(map(repr, RULES))}; got {value!r}")
