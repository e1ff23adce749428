"""Runs in one process each, without Ray."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import TracebackType

from flwr_sdp.cli.engines.app_facts import AppFacts
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.process_job import ProcessJob
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import has_module
from flwr_sdp.cli.runs.grid import Run
from flwr_sdp.cli.runs.run_config import whole_run_config

MODULE = "simulations.engine"


def has_engine(app_dir: Path) -> bool:
    """Return whether an app can run, and check its run configs, without Ray."""
    return has_module(app_dir, MODULE)


class LocalEngine:
    """Every run is a process: the app's own engine.

    See :class:`~flwr_sdp.cli.engines.engine.Engine`.
    """

    starting = "starting"

    def __init__(self, app_dir: Path, run_dir: Path, resources: Resources) -> None:
        self._app_dir = app_dir
        self._configs = tempfile.TemporaryDirectory(prefix="flwr-sdp-", ignore_cleanup_errors=True)

    @staticmethod
    def check(app_dir: Path) -> None:
        """Raise a CommandError if the app has no engine of its own."""
        if not has_engine(app_dir):
            raise CommandError(
                f"the app at {app_dir} has no local engine, {MODULE}: use --engine ray"
            )

    @staticmethod
    def foresee(facts: AppFacts | None, resources: Resources) -> list[str]:
        """Return no warnings: one client runs at a time, as in the app's own check."""
        return []

    def __enter__(self) -> LocalEngine:
        """Start nothing: the runs share nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the run configs."""
        self._configs.cleanup()

    def start(self, run: Run, *, resume: bool) -> ProcessJob:
        """Start a run in the app's folder."""
        path = Path(self._configs.name, "config.json")
        path.write_text(json.dumps(whole_run_config(run, resume=resume)), encoding="utf-8")
        return ProcessJob(self._app_dir, MODULE, str(path))
