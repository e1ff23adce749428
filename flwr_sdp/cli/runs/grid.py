"""The runs of a call: each point of the grid as often as there are trials, and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.runs.run_file import RunFile

# What a run without privacy does not depend on.
_PRIVACY_KEYS = frozenset(
    {
        "sdp-epsilon-direction",
        "sdp-epsilon-magnitude",
        "sdp-max-norm",
        "sdp-rule",
        "sdp-clip-norm",
        "sdp-noise-multiplier",
        "sdp-delta",
        "sdp-max-epsilon",
    }
)
_PROJECTED = "projected-"
# How a run is carried out and watched: with any of these it is the same run.
_CARRIED_OUT = frozenset(
    {
        "checkpoint-keep",
        "data-dir",
        "download",
        "evaluate-every",
        "fail-fast",
        "num-nodes",
        "round-timeout",
    }
)
REPORT = "report.json"
_LONGEST_NAME = 200  # of 255 bytes that most file systems take


def is_privacy_key(key: str) -> bool:
    """Whether a key makes no difference to a run without privacy."""
    return key in _PRIVACY_KEYS or key.startswith(_PROJECTED)


def is_beside_the_model(key: str) -> bool:
    """Whether a key makes no difference to what a run trains, with privacy or without."""
    return key in _CARRIED_OUT or key.startswith(_PROJECTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training run.

    Attributes
    ----------
    point : dict
        Its values of the swept keys; of a baseline, those that make a difference to it.
    trial : int
        Which repetition it is, from 0.
    baseline : bool
        Whether it trains without privacy.
    config : dict
        Its run config, but for what the launcher sets.
    folder : Path
        Where its results go.
    label : str
        What the screen calls it.
    """

    point: dict[str, Any]
    trial: int
    baseline: bool
    config: dict[str, Any]
    folder: Path
    label: str

    @property
    def kind(self) -> str:
        """``"private"`` or ``"baseline"``."""
        return "baseline" if self.baseline else "private"

    @property
    def log(self) -> Path:
        """Where its log goes."""
        return self.folder / f"{self.kind}.log"

    @property
    def metrics(self) -> Path:
        """The table that the app writes, a row a round."""
        return self.folder / ("baseline-metrics.csv" if self.baseline else "metrics.csv")

    @property
    def report(self) -> Path:
        """The report that the app writes at the end."""
        return self.folder / (f"baseline-{REPORT}" if self.baseline else REPORT)

    @property
    def privacy_report(self) -> Path:
        """The privacy report for people; a baseline has none."""
        return self.folder / "report.txt"


def point_name(point: Mapping[str, Any]) -> str:
    """Return a name for a point that people can read and file systems can hold.

    Different points have different names: whatever is not a letter, a digit or one of ``_.-~`` in
    a value is written in percent code.
    """
    return ",".join(f"{short_key(key)}={short_value(value)}" for key, value in point.items())


def short_key(key: str) -> str:
    """Return a key without the prefix of this library's own."""
    return key.removeprefix("sdp-")


def short_value(value: Any) -> str:
    """Return a value as it stands in the name of a folder."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return quote(str(value), safe="")


def is_grid(file: RunFile) -> bool:
    """Whether there are several points or trials; the results of one lie in its folder itself."""
    return file.trials > 1 or any(len(values) > 1 for values in file.sweep.values())


def points(file: RunFile) -> list[dict[str, Any]]:
    """Return the points of the grid; the last key changes fastest.

    Raises
    ------
    CommandError
        If a name would be too long for a folder.
    """
    made = [dict(zip(file.sweep, values, strict=True)) for values in product(*file.sweep.values())]
    for point in made:
        if len(point_name(point)) > _LONGEST_NAME:
            raise CommandError(
                f"the name {point_name(point)!r} is too long for a folder: sweep fewer keys at once"
            )
    return made


def runs_of(file: RunFile, run_dir: Path, *, with_baseline: bool) -> list[Run]:
    """Return the runs in their order: trial by trial, so that a broken-off sweep has whole trials.

    A baseline stands for every point that differs from it in privacy alone, after these points.
    """
    return [
        run
        for trial in range(file.trials)
        for run in _trial(file, run_dir, trial)
        if with_baseline or not run.baseline
    ]


def _trial(file: RunFile, run_dir: Path, trial: int) -> Iterator[Run]:
    grid = is_grid(file)
    baselines: dict[str, Run] = {}
    for point in points(file):
        config = {**file.config, **point}
        if "seed" in config:
            config["seed"] += trial
        bare = {key: value for key, value in point.items() if not is_privacy_key(key)}
        for baseline, own in ((False, point), (True, bare)):
            name = point_name(own)
            parts = ["baseline"] * baseline + [name] * bool(name)
            run = Run(
                point=own,
                trial=trial,
                baseline=baseline,
                config=config,
                folder=Path(run_dir, *parts, f"trial-{trial}") if grid else run_dir,
                label=" ".join([*parts, f"trial {trial}"])
                if grid
                else ("baseline" if baseline else "private"),
            )
            if baseline:
                baselines.setdefault(name, run)
            else:
                yield run
    yield from baselines.values()
