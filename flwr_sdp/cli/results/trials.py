"""The runs in one or more tables of results."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.results.merging import align
from flwr_sdp.cli.results.metrics import last_known
from flwr_sdp.cli.results.table import RESULTS

EPSILON = "sdp-epsilon-direction"
ACCURACY = "accuracy"
_BEFORE_KEYS, _AFTER_KEYS = "privacy", "trial"
Level = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run, as the table has it.

    Attributes
    ----------
    source : Path
        The table.
    level : tuple
        Keys, in the order of the alphabet, and their values as text; those that make no difference
        to the run are left out.
    private : bool
        Whether it trained with privacy.
    trial, seed : str
        Which repetition it is.
    scores : dict
        The metric by round, where it was evaluated.
    averaged : float or None
        That of the average of the models, at the end.
    central_epsilon : float or None
        At the end.
    """

    source: Path
    level: Level
    private: bool
    trial: str
    seed: str
    scores: dict[int, float]
    averaged: float | None
    central_epsilon: float | None

    @property
    def final(self) -> float:
        """The metric after the last round."""
        return self.scores[max(self.scores)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """The runs of one or more tables, of one task on one data set."""

    task: str
    data: str
    metric: str
    keys: tuple[str, ...]
    private: tuple[Trial, ...]
    baselines: tuple[Trial, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """The keys of which there are several values, epsilon first."""
        values = {key: {dict(run.level).get(key) for run in self.private} for key in self.keys}
        found = [key for key in self.keys if len(values[key]) > 1]
        return tuple(sorted(found, key=lambda key: key != EPSILON))


def is_stream(folder: Path) -> bool:
    """Whether a table is one of a stream, which has iterations in place of rounds."""
    with _open_table(folder).open(newline="", encoding="utf-8") as file:
        return "iteration" in next(csv.reader(file), [])


def read_results(folders: Sequence[Path], metric: str = ACCURACY) -> Results:
    """Read and merge the tables in these folders.

    Parameters
    ----------
    folders : sequence of Path
        What is merged.
    metric : str
        The column of what is compared.

    Raises
    ------
    CommandError
        If one is missing, empty, without the metric, or of other settings, another task or other
        data than the first, or if two hold the same run.
    """
    tables: list[tuple[Path, list[dict[str, str]]]] = []
    keys: dict[str, None] = {}
    titles: dict[tuple[str, str], Path] = {}
    for folder in folders:
        path = _open_table(folder)
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            own = _keys_of(reader.fieldnames or (), path, metric)
            rows = list(reader)
        if folder != folders[0] and (EPSILON in own) != (EPSILON in keys):
            raise CommandError(f"only one of {folders[0]} and {folder} has a column {EPSILON}")
        keys.update(dict.fromkeys(own))
        for row in rows:
            titles.setdefault((row["task"], row["data"]), path)
        tables.append((path, rows))
    if len(folders) > 1:
        align(folders, [rows for _, rows in tables], keys)
    runs: list[Trial] = []
    for path, rows in tables:
        try:
            runs += _trials(rows, list(keys), path, metric)
        except (ValueError, TypeError) as error:
            raise CommandError(f"{path} is not a table of results: {error}") from None
    if not any(run.private for run in runs):
        raise CommandError(f"{_open_table(folders[0])} holds no private run that was evaluated")
    if len(titles) > 1:
        (first, here), (second, there) = list(titles.items())[:2]
        raise CommandError(
            f"{here} is of {' on '.join(first)} and {there} of {' on '.join(second)}: draw them "
            "apart"
        )
    ((task, data),) = titles
    private = tuple(run for run in runs if run.private)
    _refuse_repeats(private)
    return Results(
        task=task,
        data=data,
        metric=metric,
        keys=tuple(keys),
        private=tuple(sorted(private, key=lambda run: _order(run.level))),
        baselines=tuple(run for run in runs if not run.private),
    )


def _order(level: Level) -> tuple[list[tuple[float, str]], float]:
    """Sort by whatever else was varied, then by epsilon, the largest first."""
    values = dict(level)
    others = [(_number(values[key]), values[key]) for key in sorted(values) if key != EPSILON]
    return others, -_number(values.get(EPSILON, ""))


def _number(text: str) -> float:
    """Return the number in `text`; words come after all numbers."""
    try:
        return float(text)
    except ValueError:
        return math.inf


def _open_table(folder: Path) -> Path:
    path = folder / RESULTS
    if not path.is_file():
        raise CommandError(f"{folder} has no {RESULTS}: pass the folder that a run printed")
    return path


def _keys_of(columns: Sequence[str], path: Path, metric: str) -> list[str]:
    missing = {"task", "data", _BEFORE_KEYS, _AFTER_KEYS, "seed", "round", ACCURACY} - {*columns}
    if missing:
        raise CommandError(f"{path} has no column {min(missing)!r}: it is not a table of results")
    if metric not in columns:
        raise CommandError(
            f"--metric must be a column of {path}, such as {ACCURACY}; got {metric!r}"
        )
    return list(columns[columns.index(_BEFORE_KEYS) + 1 : columns.index(_AFTER_KEYS)])


def _trials(
    rows: Sequence[dict[str, str]], keys: Sequence[str], path: Path, metric: str
) -> list[Trial]:
    groups: dict[tuple[bool, Level, str, str], list[dict[str, str]]] = {}
    for row in rows:
        # In one order: two tables may have the same keys in another.
        level = tuple((key, row[key]) for key in sorted(keys) if row[key] != "")
        private = row["privacy"] == "private"
        if private and EPSILON in keys:
            float(row[EPSILON])  # figures order by it
        groups.setdefault((private, level, row["trial"], row["seed"]), []).append(row)
    found = []
    for (private, level, trial, seed), group in groups.items():
        scores = {int(row["round"]): float(row[metric]) for row in group if row[metric]}
        if scores:
            found.append(
                Trial(
                    source=path,
                    level=level,
                    private=private,
                    trial=trial,
                    seed=seed,
                    scores=scores,
                    averaged=last_known(group, f"averaged-{metric}"),
                    central_epsilon=last_known(group, "cdp-epsilon"),
                )
            )
    return found


def _refuse_repeats(private: Sequence[Trial]) -> None:
    seen: dict[tuple[Level, str], Trial] = {}
    for run in private:
        other = seen.setdefault((run.level, run.seed or run.trial), run)
        if other is not run and other.source != run.source:
            point = ", ".join(f"{key} = {value}" for key, value in run.level)
            raise CommandError(
                f"{other.source} and {run.source} both hold seed {run.seed} of {point}: merge "
                "runs of different seeds or levels"
            )
