"""A SuperLink of our own, for the length of one simulation."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from flwr_sdp.cli.engines.process_job import end_group
from flwr_sdp.cli.errors import CommandError

_START_TIMEOUT = 60.0
_START_ATTEMPTS = 3
_BIN = Path(sys.executable).parent
# Loopback is never behind a proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LocalSuperLink:
    """Context manager: a simulation SuperLink on free loopback ports, with its own FLWR_HOME.

    Another user's SuperLink, on Flower's usual port or any other, is neither used nor disturbed.

    Parameters
    ----------
    log_file : Path
        Where its log goes.
    home : Path, optional
        FLWR_HOME, where Flower unpacks the app that workers import: a folder that is removed in the
        end. Workers on other machines need it on a disk that all share; by default it is a
        temporary one on this machine.
    """

    def __init__(self, log_file: Path, home: Path | None = None) -> None:
        self._log_file = log_file
        # The database is always here: SQLite does not trust shared disks.
        self._private = tempfile.TemporaryDirectory(prefix="flwr-sdp-", ignore_cleanup_errors=True)
        self._home = Path(self._private.name) if home is None else home
        self._process: subprocess.Popen[bytes] | None = None
        self._env: dict[str, str] = {}

    def __enter__(self) -> LocalSuperLink:
        """Start it and wait until it answers."""
        try:
            return self._start()
        except BaseException:  # an interrupt too must not leave it running
            self.__exit__(None, None, None)
            raise

    def _start(self) -> LocalSuperLink:
        self._home.mkdir(parents=True, exist_ok=True)
        for _ in range(_START_ATTEMPTS):
            http_port, control_port = _free_ports(2)
            self._env = _environment(self._home, http_port, control_port)
            self._process = subprocess.Popen(  # noqa: S603
                [
                    _executable("flower-superlink"),
                    "--insecure",
                    "--simulation",
                    "--isolation",
                    "subprocess",
                    "--control-api-address",
                    f"127.0.0.1:{control_port}",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(http_port),
                    "--database",
                    str(Path(self._private.name) / "state.db"),
                    "--log-file",
                    str(self._log_file),
                ],
                env=self._env,
                # Ray workers import from the working directory first: there, only the bundle is.
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if self._answers(f"http://127.0.0.1:{http_port}/health"):
                return self
            self._stop()  # somebody took the port in between, or it crashed: try other ports
        raise CommandError(f"the SuperLink did not start: see {self._log_file}", exit_code=1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it and everything it started."""
        self._stop()
        shutil.rmtree(self._home, ignore_errors=True)
        self._private.cleanup()

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command with ``--format json`` and return what it printed."""
        command = [_executable("flwr"), *arguments, "--format", "json"]
        done = subprocess.run(  # noqa: S603
            command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        start = done.stdout.find("{")
        try:
            answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            answer = {}
        if done.returncode != 0 or not answer.get("success"):
            detail = answer.get("error-message") or done.stderr.strip() or done.stdout.strip()
            raise CommandError(f"flwr {arguments[0]} failed: {detail}", exit_code=1)
        return answer

    def stream_log(self, run_id: str) -> subprocess.Popen[str]:
        """Return a process that prints the log of a run and ends when the run does."""
        return subprocess.Popen(  # noqa: S603
            [_executable("flwr"), "log", run_id, "--stream"],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def run_status(self, run_id: str) -> tuple[str, str]:
        """Return a run's status, such as ``finished:completed``, and its details."""
        run = self.flwr("ls", "--run-id", run_id)["runs"][0]
        return str(run["status"]), str(run["status-details"])

    def wait_for_end(self, run_id: str) -> tuple[str, str]:
        """Return the final status of a run; its log may end before the run does."""
        while True:
            status, details = self.run_status(run_id)
            if status.startswith("finished:"):
                return status, details
            time.sleep(1.0)

    def stop_run(self, run_id: str) -> None:
        """Ask Flower to stop a run."""
        self.flwr("stop", run_id)

    def _answers(self, url: str) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline and self._process is not None:
            if self._process.poll() is not None:
                return False
            try:
                with _DIRECT.open(url, timeout=1.0) as response:
                    # Asked again after the answer, in case the answer was another process's.
                    return bool(response.status == 200 and self._process.poll() is None)
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        return False

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_group(process)


def _environment(home: Path, http_port: int, control_port: int) -> dict[str, str]:
    env = dict(os.environ)
    env.update(
        FLWR_HOME=str(home),
        FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(http_port),
        FLWR_LOCAL_CONTROL_API_PORT=str(control_port),
        # The app runs in this environment; without this, Flower installs it anew for every run.
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
        FLWR_DISABLE_UPDATE_CHECK="1",
        PATH=f"{_BIN}{os.pathsep}{env.get('PATH', '')}",
    )
    for name in ("no_proxy", "NO_PROXY"):
        env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1,localhost")))
    env.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    env.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


def _executable(name: str) -> str:
    path = shutil.which(name, path=f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        raise CommandError(f"{name} is not installed: pip install 'flwr-sdp[simulation]'")
    return path


def _free_ports(count: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
