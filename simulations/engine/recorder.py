"""The table of a run: every round evaluated, and written down as it comes."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from flwr_sdp.strategies import ClipAndNoise
from simulations.engine.polyak import PolyakAverage
from simulations.settings import Settings
from simulations.tasks import Task


def stem(settings: Settings, name: str) -> str:
    """Return how a file of a run is called: the private run and the baseline share a folder."""
    return f"baseline-{name}" if settings.baseline else name


class Recorder:
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
            self._path = settings.output_dir / f"{stem(settings, 'metrics')}.csv"
        if settings.average_from is not None:
            self._columns += tuple(
                f"averaged-{name}" for name in ("accuracy", "loss", *task.metrics)
            )
            kept = None
            if settings.output_dir is not None and settings.checkpoint_keep:
                kept = settings.output_dir / f"{stem(settings, 'average')}.npz"
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
