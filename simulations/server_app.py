"""The simulated server: train privately, evaluate, report."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.exception import PrivacyBudgetExhausted

from flwr_sdp import SeparatedMechanism
from flwr_sdp._files import write_whole
from flwr_sdp.clients import UpdateLayout
from flwr_sdp.strategies import Checkpoints, ClipAndNoise, PrivacyReport
from simulations.engine.partition_grid import PartitionGrid
from simulations.engine.recorder import Recorder, stem
from simulations.engine.simulated_cohorts import SimulatedCohorts
from simulations.settings import Settings
from simulations.tasks import load_task

app = ServerApp()

_log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one training run as its run config says."""
    settings = Settings.from_run_config(context.run_config)
    run_training(PartitionGrid(grid, settings.num_nodes), settings)


def run_training(grid: Grid, settings: Settings) -> tuple[float, PrivacyReport]:
    """Train on any grid; return the final accuracy and the privacy report."""
    task = load_task(settings.task, settings.task_settings)
    if settings.output_dir is not None:
        task.save(settings.output_dir)
    model = task.initial_model()
    strategy = check_run(settings, model)
    recorder = Recorder(task, strategy, settings)
    run = strategy.resume if settings.resume and strategy.checkpoints else strategy.start
    try:
        run(
            grid,
            model,
            num_rounds=settings.num_rounds,
            timeout=settings.round_timeout,
            evaluate_fn=recorder.evaluate,
        )
    except PrivacyBudgetExhausted as stop:
        _log.warning("training stopped: %s", stop)
    recorder.finish()
    report = _report(strategy, settings, model)
    _log.info("\n%s", report.to_text())
    if settings.output_dir is not None:
        facts = {
            **report.to_dict(),
            "task": settings.task,
            "data": task.data_name,
            "final_accuracy": recorder.accuracy,
        }
        text = json.dumps(facts, indent=2) + "\n"
        path = settings.output_dir / f"{stem(settings, 'report')}.json"
        write_whole(path, lambda file: file.write(text.encode()))
    return recorder.accuracy, report


def check_run(settings: Settings, model: ArrayRecord) -> ClipAndNoise:
    """Return the strategy of a run, or say what keeps it from running; nothing is written.

    Raises
    ------
    ValueError
        If settings that are each in range do not go together.
    """
    _check_projection(settings)
    return _strategy(settings, model)


def _strategy(settings: Settings, model: ArrayRecord) -> ClipAndNoise:
    optimizer = settings.server_optimizer
    make = SimulatedCohorts if settings.num_nodes < settings.num_clients else ClipAndNoise
    common: dict[str, Any] = {
        "sampling_rate": settings.sampling_rate if settings.cohort_size is None else None,
        "cohort_size": settings.cohort_size,
        "server_learning_rate": optimizer.mean_learning_rate,
        "seed": settings.seed,
        "population": settings.num_clients,
    }
    if settings.baseline:
        return make(
            optimizer.strategy(),
            **common,
            clip_norm=math.inf,
            noise_multiplier=0.0,
            require_local_dp=False,
        )
    checkpoints = None
    if settings.output_dir is not None and settings.checkpoint_keep:
        checkpoints = Checkpoints(
            settings.output_dir / "checkpoints", keep=settings.checkpoint_keep
        )
    return make(
        optimizer.strategy(),
        **common,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        mechanism=SeparatedMechanism.from_budget(
            UpdateLayout.of(model).dim,
            settings.budget,
            settings.max_norm * settings.local_learning_rate,
            rule=settings.rule,
        ),
        max_epsilon=settings.max_epsilon,
        delta=settings.delta,
        checkpoints=checkpoints,
    )


def _check_projection(settings: Settings) -> None:
    """Refuse an impossible projection before anyone trains, not after."""
    if settings.projected_population is None or settings.noise_multiplier == 0:
        return
    needed = (
        settings.expected_cohort * settings.projected_noise_multiplier / settings.noise_multiplier
    )
    if needed > settings.projected_population:
        raise ValueError(
            f"projected-population must be at least {math.ceil(needed)}, the cohort that brings "
            f"the noise to projected-noise-multiplier; got {settings.projected_population} (0 for "
            "no projection)"
        )


def _report(strategy: ClipAndNoise, settings: Settings, model: ArrayRecord) -> PrivacyReport:
    report = replace(strategy.report(), dim=UpdateLayout.of(model).dim)
    if report.central is None or settings.projected_population is None:
        return report
    projection = report.central.projected(
        population=settings.projected_population,
        noise_multiplier=settings.projected_noise_multiplier,
        delta=settings.projected_delta,
    )
    return replace(report, projections=(projection,))
