"""What runs are started on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from flwr_sdp.cli.engines.app_facts import AppFacts
from flwr_sdp.cli.runs.grid import Run


class Job(Protocol):
    """A run that goes on."""

    lines: IO[str]
    """Its log, line by line; ends when the run does."""

    def trouble(self) -> str | None:
        """Wait for the end, and return what became of the run, or None if it completed."""
        ...

    def stop(self) -> None:
        """Ask the run to end before its time."""
        ...

    def close(self) -> None:
        """Let go of it, whether it has ended or not."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What each client is given, where an engine runs several at once."""

    num_cpus: int = 1
    num_gpus: float = 0.0


class Engine(Protocol):
    """Context manager: starts runs one after another, and cleans up behind them.

    Parameters
    ----------
    app_dir : Path
        The Flower app.
    run_dir : Path
        The folder of all results.
    resources : Resources
        What each client is given.
    """

    starting: str
    """What the screen says until there is a first round."""

    def __init__(self, app_dir: Path, run_dir: Path, resources: Resources) -> None: ...

    @staticmethod
    def check(app_dir: Path) -> None:
        """Raise a CommandError if the engine, or the app's part in it, is not there."""
        ...

    @staticmethod
    def foresee(facts: AppFacts | None, resources: Resources) -> list[str]:
        """Return warnings about what the runs need; raise a CommandError where there is no hope.

        `facts` are those of the app's own check, None for an app that has none.
        """
        ...

    def __enter__(self) -> Engine:
        """Start what all runs share."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what all runs share."""
        ...

    def start(self, run: Run, *, resume: bool) -> Job:
        """Start a run; with `resume`, from the checkpoints in its folder."""
        ...
