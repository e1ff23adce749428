"""A run that is a process of our own."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from flwr_sdp.cli.engines.app_module import module_command

_PATIENCE = 10.0


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a session, and what it started.

    On Windows, which has no groups, the process alone.
    """
    for name, end in (("SIGTERM", process.terminate), ("SIGKILL", process.kill)):
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, getattr(signal, name))
        else:
            end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PATIENCE)
            return


class ProcessJob:
    """A module of an app that runs to its end, see :class:`~flwr_sdp.cli.engines.engine.Job`.

    Parameters
    ----------
    app_dir : Path
        The app, and where it runs.
    module : str
        The module.
    arguments : str
        What it is called with.
    """

    def __init__(self, app_dir: Path, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, the app's module
            module_command(app_dir, module, *arguments),
            cwd=app_dir,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C is for the launcher, which ends the run and all that it started.
            start_new_session=True,
        )
        self.lines = cast("IO[str]", self._process.stdout)  # it was opened with a pipe

    def trouble(self) -> str | None:
        """Wait for the end of the process."""
        status = self._process.wait()
        if status == 0:
            return None
        return f"exit status {status}" if status > 0 else f"ended by signal {-status}"

    def stop(self) -> None:
        """End the process and what it started."""
        end_group(self._process)

    def close(self) -> None:
        """End it if it has not ended."""
        if self._process.poll() is None:
            self.stop()
