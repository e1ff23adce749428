"""Streams of updates from few sources: a program of the app that reads the run file itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w  # comes with flwr

from flwr_sdp.cli.engines.app_facts import AppFacts
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.process_job import ProcessJob
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import has_module
from flwr_sdp.cli.runs.grid import Run

MODULE = "simulations.streams"


def check_settings(config: Mapping[str, Any], app_dir: Path) -> None:
    """Have the program read its settings, if it is a package that can, before anything is run.

    Raises
    ------
    CommandError
        If a key or a value is wrong, in the program's words.
    """
    if not has_module(app_dir, MODULE):
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "run.toml")
        file.write_text(tomli_w.dumps(config), encoding="utf-8")
        done = subprocess.run(  # noqa: S603 - this interpreter, the app's module
            [sys.executable, "-m", MODULE, str(file), scratch, "--check"],
            cwd=app_dir,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    if done.returncode:
        last = (done.stderr.strip() or "its check failed").splitlines()[-1]
        raise CommandError(last.partition(": ")[2] or last)


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
        return ProcessJob([MODULE, str(run.folder / "config.toml"), str(run.folder)], self._app_dir)
