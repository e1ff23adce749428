"""What a part of a study found, and the files it is written to."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from simulations.streams.arrays import Floats
from simulations.streams.stream import Curves

RESULTS = "results.csv"
AVERAGED = "averaged.csv"
FACTS = "facts.json"

_CURVE_COLUMNS = (
    "task", "method", "epsilon", "trial", "iteration",
    "gap", "error", "average_gap", "average_error",
)  # fmt: skip
_AVERAGED_COLUMNS = ("task", "method", "epsilon", "trial", "gap", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One method at one level, over all trials.

    Attributes
    ----------
    method : str
        What was run.
    epsilon : float
        The level asked for; infinite without privacy.
    gap, error : ndarray
        ``(trials,)`` of the final estimate: the averaged iterate, or the maximum-likelihood one.
    curves : Curves or None
        What was recorded on the way, if there was one; a column is a trial.
    seconds : float
        Processor time.
    facts : dict
        Parameters, exact losses, predictions.
    """

    method: str
    epsilon: float
    gap: Floats
    error: Floats
    seconds: float
    curves: Curves | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Job(Protocol):
    """A part of a study that one process runs; it is sent there by pickling."""

    def __call__(self) -> Outcome:
        """Run it."""
        ...


def write(folder: Path, task: str, outcomes: Sequence[Outcome], facts: dict[str, Any]) -> None:
    """Write results.csv, averaged.csv and facts.json."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / RESULTS, _CURVE_COLUMNS, _curve_rows(task, outcomes))
    _write_csv(folder / AVERAGED, _AVERAGED_COLUMNS, _averaged_rows(task, outcomes))
    levels = [
        {
            "method": outcome.method,
            "epsilon": outcome.epsilon,
            "processor_seconds": round(outcome.seconds, 1),
            "mean_gap": float(outcome.gap.mean()),
            "mean_error": float(outcome.error.mean()),
            **outcome.facts,
        }
        for outcome in outcomes
    ]
    text = json.dumps(_finite({**facts, "levels": levels}), indent=2, allow_nan=False)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def _write_csv(path: Path, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _curve_rows(task: str, outcomes: Sequence[Outcome]) -> Iterator[tuple[Any, ...]]:
    for outcome in outcomes:
        curves = outcome.curves
        if curves is None:
            continue
        measured = (curves.gap, curves.error, curves.average_gap, curves.average_error)
        for trial in range(curves.gap.shape[1]):
            for record, iteration in enumerate(curves.iterations.tolist()):
                values = (f"{column[record, trial]:.8g}" for column in measured)
                yield (task, outcome.method, f"{outcome.epsilon:g}", trial, iteration, *values)


def _averaged_rows(task: str, outcomes: Sequence[Outcome]) -> Iterator[tuple[Any, ...]]:
    for outcome in outcomes:
        for trial, values in enumerate(zip(outcome.gap, outcome.error, strict=True)):
            shown = (f"{value:.8g}" for value in values)
            yield (task, outcome.method, f"{outcome.epsilon:g}", trial, *shown)


def _finite(value: Any) -> Any:
    """Return what JSON can hold: infinity, which it does not have, is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and math.isinf(value) else value
