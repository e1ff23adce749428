"""The simulated server: train privately, evaluate, report."""

from __future__ import annotations

import csv
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.exception import PrivacyBudgetExhausted

from flwr_sdp import SeparatedMechanism
from flwr_sdp._files import write_whole
from flwr_sdp.clients import UpdateLayout
from flwr_sdp.strategies import Checkpoints, ClipAndNoise, PrivacyReport
from simulations.engine.partitions import PartitionGrid
from simulations.engine.polyak import PolyakAverage
from simulations.engine.simulated_cohorts import SimulatedCohorts
from simulations.settings import Settings
from simulations.tasks import Task, load_task

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
    recorder = _Recorder(task, strategy, settings)
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
        path = settings.output_dir / f"{_stem(settings, 'report')}.json"
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


def _stem(settings: Settings, name: str) -> str:
    return f"baseline-{name}" if settings.baseline else name


class _Recorder:
    """Evaluates every round and writes it down as it comes: one row of ``metrics.csv``."""

    COLUMNS = (
        "round",
        "accuracy",
        "loss",
        "cdp-epsilon",
        "cohort",
        "replies",
        "failures",
        "refused",
        "fraction-projected",
        "kept-length",
        "mean-norm",
        "noise-norm",
        "signal-to-noise",
        "seconds",
        "peak-memory-mib",
    )

    def __init__(self, task: Task, strategy: ClipAndNoise, settings: Settings) -> None:
        self._task = task
        self._strategy = strategy
        self._fail_fast = settings.fail_fast
        self._every, self._last_round = settings.evaluate_every, settings.num_rounds
        self.accuracy = math.nan
        self._row: dict[str, Any] = {}
        self._models: tuple[ArrayRecord, ArrayRecord | None] | None = None
        self._first_round: int | None = None
        self._path: Path | None = None
        self._average: PolyakAverage | None = None
        self._columns: tuple[str, ...] = (*self.COLUMNS, *task.metrics)
        if settings.output_dir is not None:
            self._path = settings.output_dir / f"{_stem(settings, 'metrics')}.csv"
        if settings.average_from is not None:
            self._columns += tuple(
                f"averaged-{name}" for name in ("accuracy", "loss", *task.metrics)
            )
            kept = None
            if settings.output_dir is not None and settings.checkpoint_keep:
                kept = settings.output_dir / f"{_stem(settings, 'average')}.npz"
            self._average = PolyakAverage(settings.average_from, kept)

    def evaluate(self, server_round: int, model: ArrayRecord) -> MetricRecord:
        """Evaluate `model`; stop the run if a client failed and the run is to fail fast."""
        if self._first_round is None:
            self._first_round = server_round
            self._begin_file(server_round)
            if self._average is not None:
                self._average.resume(server_round)
        last = self._strategy.last_round if server_round > 0 else {}
        average = None if self._average is None else self._average.add(server_round, model)
        self._row = {"round": server_round, **last}
        self._models = (model, average)
        if server_round % self._every == 0 or server_round == self._last_round:
            self._score()
        self._write_row()
        lost = last.get("cohort", 0) - last.get("replies", 0)
        # A run that ended in a failure is resumed in the hope of better rounds to come.
        if self._fail_fast and lost and server_round > self._first_round:
            raise RuntimeError(
                f"{lost} client(s) failed in round {server_round}: the traceback and the partition "
                "of each are above, or they had not replied within round-timeout (fail-fast = "
                "false goes on without them)"
            )
        names = ("accuracy", "loss", *self._task.metrics)
        return MetricRecord({name: self._row[name] for name in names if name in self._row})

    def finish(self) -> None:
        """Evaluate the last model of a run that ended before a round that is evaluated."""
        if self._models is not None and "accuracy" not in self._row:
            self._score()
            self._begin_file(self._row["round"])
            self._write_row()

    def _score(self) -> None:
        if self._models is None:
            raise RuntimeError("no model has been released")
        model, average = self._models
        scores = self._task.evaluate(model)
        self.accuracy = scores["accuracy"]
        self._row |= scores
        if average is not None:
            averaged = self._task.evaluate(average)
            self._row |= {f"averaged-{name}": value for name, value in averaged.items()}

    def _write_row(self) -> None:
        if self._path is None:
            return
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns, extrasaction="ignore").writerow(self._row)

    def _begin_file(self, first_round: int) -> None:
        """Write the head of the table, with the rows of a resumed run from before `first_round`."""
        if self._path is None:
            return
        rows: list[dict[str, Any]] = []
        if first_round > 0 and self._path.exists():
            with self._path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["round"]) < first_round]
        with self._path.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
