"""The run config, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_sdp import SeparatedBudget
from flwr_sdp.privunit import RULES, Rule
from simulations.config_reader import ConfigReader
from simulations.data.partition import PARTITIONS
from simulations.engine.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from simulations.models.local_training import OPTIMIZERS
from simulations.tasks import DataSettings, LocalTraining, ModelSettings, TaskSettings

_MAX_NODES = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one training run does; one field for each key of the run config."""

    task: str
    task_settings: TaskSettings
    num_clients: int
    num_nodes: int
    num_rounds: int
    seed: int
    baseline: bool
    fail_fast: bool
    output_dir: Path | None
    checkpoint_keep: int
    resume: bool
    round_timeout: float
    evaluate_every: int
    # optimisation
    local_learning_rate: float
    server_optimizer: ServerOptimizer
    average_from: int | None
    # local privacy
    budget: SeparatedBudget
    max_norm: float
    rule: Rule
    # central privacy
    clip_norm: float | None
    noise_multiplier: float
    sampling_rate: float
    cohort_size: int | None
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
        read = ConfigReader(config)
        num_clients = read.integer("num-clients", minimum=1)
        num_nodes = read.integer("num-nodes", minimum=0, maximum=num_clients) or num_clients
        if num_nodes > _MAX_NODES:
            raise ValueError(
                f"num-nodes must be at most {_MAX_NODES}, which Flower can look after; got "
                f"{num_nodes}: a few nodes can stand for all of num-clients"
            )
        return cls(
            task=read.text("task"),
            task_settings=_task_settings(read, num_clients),
            num_clients=num_clients,
            num_nodes=num_nodes,
            num_rounds=read.integer("num-server-rounds", minimum=1),
            seed=read.integer("seed", minimum=0),
            baseline=read.flag("baseline"),
            fail_fast=read.flag("fail-fast"),
            output_dir=read.path("output-dir"),
            checkpoint_keep=read.integer("checkpoint-keep", minimum=0),
            resume=read.flag("resume"),
            round_timeout=read.number("round-timeout", above=0.0),
            evaluate_every=read.integer("evaluate-every", minimum=1),
            local_learning_rate=read.number("sdp-local-learning-rate", above=0.0),
            server_optimizer=ServerOptimizer(
                name=read.choice("server-optimizer", SERVER_OPTIMIZERS),
                learning_rate=read.number("server-learning-rate", above=0.0),
                momentum=read.number("server-momentum", minimum=0.0, below=1.0),
            ),
            average_from=read.integer("average-from", minimum=0) or None,
            budget=SeparatedBudget(
                epsilon_direction=read.number("sdp-epsilon-direction", above=0.0),
                epsilon_magnitude=read.number("sdp-epsilon-magnitude", above=0.0),
            ),
            max_norm=read.number("sdp-max-norm", above=0.0),
            rule=read.choice("sdp-rule", RULES),
            clip_norm=read.number("sdp-clip-norm", minimum=0.0) or None,
            noise_multiplier=read.number("sdp-noise-multiplier", minimum=0.0),
            sampling_rate=read.number("sdp-sampling-rate", above=0.0, maximum=1.0),
            cohort_size=read.integer("sdp-cohort-size", minimum=0) or None,
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


def _task_settings(read: ConfigReader, num_clients: int) -> TaskSettings:
    return TaskSettings(
        num_clients=num_clients,
        seed=read.integer("seed", minimum=0),
        data=DataSettings.read(read),
        partition=read.choice("partition", PARTITIONS),
        examples_per_client=read.integer("examples-per-client", minimum=0) or None,
        dirichlet_alpha=read.number("dirichlet-alpha", above=0.0),
        training=LocalTraining(
            steps=read.integer("local-steps", minimum=1),
            learning_rate=read.number("sdp-local-learning-rate", above=0.0),
            optimizer=read.choice("local-optimizer", OPTIMIZERS),
            batch_size=read.integer("local-batch-size", minimum=0) or None,
            proximal_stepsize=read.number("proximal-stepsize", minimum=0.0) or None,
        ),
        model=ModelSettings(
            weights=read.path("weights"),
            width=read.integer("model-width", minimum=0) or None,
            vocabulary_size=read.integer("vocabulary-size", minimum=0) or None,
            sequence_length=read.integer("sequence-length", minimum=1),
            trained_part=read.text("trained-part"),
            adapter_rank=read.integer("adapter-rank", minimum=1),
        ),
    )
