"""Streams of updates from few sources: a program of the app that reads the run file itself."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from flwr_sdp.cli.engines.app_facts import AppFacts
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.process_job import ProcessJob
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.runs.grid import Run

MODULE = "simulations.streams"


class StreamEngine:
    """One process for the whole run file, see :class:`~flwr_sdp.cli.engines.engine.Engine`."""

    starting = "running"

    def __init__(self, app_dir: Path, run_dir: Path, resources: Resources) -> None:
        self._app_dir = app_dir

    @staticmethod
    def check(app_dir: Path) -> None:
        """Raise a CommandError if the app has no streams."""
        module = Path(app_dir, *MODULE.split("."))
        if not (module / "__main__.py").is_file() and not module.with_suffix(".py").is_file():
            raise CommandError(
                f'the app at {app_dir} has no {MODULE}: engine = "stream" wants one, pass the '
                "folder of such an app with --app"
            )

    @staticmethod
    def foresee(facts: AppFacts | None, resources: Resources) -> list[str]:
        """Return no warnings: no clients run at once."""
        return []

    def __enter__(self) -> StreamEngine:
        """Start nothing: there is one run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop nothing."""

    def start(self, run: Run, *, resume: bool) -> ProcessJob:
        """Start the program on the run file in the folder of the results."""
        return ProcessJob(self._app_dir, MODULE, str(run.folder / "config.toml"), str(run.folder))
