"""The numbers behind the figures: means and standard errors over trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr_sdp.cli.results.trials import Level, Results, Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Mean and standard error over the trials of one level, by round.

    The standard error of a single trial is not known, and nan.
    """

    level: Level
    rounds: list[int]
    mean: list[float]
    error: list[float]
    trials: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Final:
    """What the trials of one level end at.

    ``gaps`` where there are baselines to compare with, ``averaged`` where the average of the models
    was evaluated.
    """

    level: Level
    values: list[float]
    gaps: list[float]
    averaged: list[float]
    central_epsilon: float | None


def private_curves(results: Results) -> list[Curve]:
    """Return the metric against rounds, for each level of privacy."""
    return _curves(results.private, lambda run: run.scores)


def baseline_curves(results: Results) -> list[Curve]:
    """Return the metric against rounds without privacy, one curve but for what else was varied."""
    return _curves(_distinct_baselines(results), lambda run: run.scores)


def gap_curves(results: Results) -> list[Curve]:
    """Return, for each level, how far it is from the non-private model, by round.

    The gap of a trial at a round is the metric of the *final* non-private model of the same
    trial minus its own at that round. Trials without a baseline are left out.
    """

    def gaps(run: Trial) -> dict[int, float]:
        baseline = baseline_of(run, results)
        if baseline is None:
            return {}
        return {number: baseline.final - value for number, value in run.scores.items()}

    return _curves(results.private, gaps)


def finals(results: Results) -> list[Final]:
    """Return what the trials of each level end at."""
    found = []
    for level, runs in _by_level(results.private).items():
        pairs = [(run, baseline_of(run, results)) for run in runs]
        spent = [run.central_epsilon for run in runs if run.central_epsilon is not None]
        found.append(
            Final(
                level=level,
                values=[run.final for run in runs],
                gaps=[other.final - run.final for run, other in pairs if other is not None],
                averaged=_averaged(runs),
                central_epsilon=max(spent, default=None),
            )
        )
    return found


def baseline_finals(results: Results) -> list[Final]:
    """Return what the trials without privacy end at."""
    return [
        Final(
            level=level,
            values=[run.final for run in runs],
            gaps=[],
            averaged=_averaged(runs),
            central_epsilon=None,
        )
        for level, runs in _by_level(_distinct_baselines(results)).items()
    ]


def baseline_of(run: Trial, results: Results) -> Trial | None:
    """Return the run without privacy on the same seed, from the same table if it has one."""
    level = dict(run.level)
    same = [
        other
        for other in results.baselines
        if other.seed == run.seed
        and (other.seed or other.trial == run.trial)
        and all(level.get(key) == value for key, value in other.level)
    ]
    return min(same, key=lambda other: other.source != run.source, default=None)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error; the error of a single value is nan."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def _averaged(runs: Iterable[Trial]) -> list[float]:
    return [run.averaged for run in runs if run.averaged is not None]


def _distinct_baselines(results: Results) -> Iterable[Trial]:
    """Return one baseline a seed: of tables that were merged, each may hold its own."""
    chosen: dict[tuple[Level, str], Trial] = {}
    for run in results.baselines:
        chosen.setdefault((run.level, run.seed or run.trial), run)
    return chosen.values()


def _curves(runs: Iterable[Trial], values: Callable[[Trial], Mapping[int, float]]) -> list[Curve]:
    made = []
    for level, group in _by_level(runs).items():
        tables = [table for run in group if (table := values(run))]
        # Rounds that every trial has: a mean over fewer would jump where a trial ends early.
        rounds = sorted(set.intersection(*map(set, tables))) if tables else []
        if rounds:
            points = [mean_and_error([table[number] for table in tables]) for number in rounds]
            made.append(
                Curve(
                    level=level,
                    rounds=rounds,
                    mean=[mean for mean, _ in points],
                    error=[error for _, error in points],
                    trials=len(tables),
                )
            )
    return made


def _by_level(runs: Iterable[Trial]) -> dict[Level, list[Trial]]:
    groups: dict[Level, list[Trial]] = {}
    for run in runs:
        groups.setdefault(run.level, []).append(run)
    return groups
