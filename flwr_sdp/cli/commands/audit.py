"""Attack the mechanism as an app uses it, and leave table and picture in a folder."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import find_app, new_folder, require_module

_MODULE = "simulations.audit"
_NEEDED = ("torch", "sklearn", "matplotlib")


def run(config_file: Path, *, app_dir: Path | None, output: Path, as_json: bool) -> int:
    """Run the app's audit on a run file, and return its exit status.

    It is 0 if every claim holds, 1 if one was refuted, and 2 for a mistake in the run file. The
    audit writes to the screen itself: the table to standard output, progress and errors beside it.

    Raises
    ------
    CommandError
        If something is missing, or the audit was stopped.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise CommandError(f"{package} is not installed: pip install 'flwr-sdp[simulation]'")
    if not config_file.is_file():
        raise CommandError(f"cannot read {config_file}: no such file")
    root = find_app(config_file, app_dir)
    require_module(root, _MODULE)
    folder = new_folder(output.resolve() / "audit" / config_file.stem)
    command = [sys.executable, "-m", _MODULE, str(config_file.resolve()), "--output", str(folder)]
    try:
        status = _follow([*command, "--json"] if as_json else command, root)
    finally:
        for empty in (folder, *folder.parents[:2]):
            with suppress(OSError):
                empty.rmdir()  # only where nothing was written
    if status < 0:
        raise CommandError(f"the audit was ended by signal {-status}", 128 - status)
    if folder.is_dir() and not as_json:
        print(f"\nresults in {folder}")
    return status


def _follow(command: list[str], root: Path) -> int:
    """Run a command in the app's folder to its end; it ends with this process."""
    sys.stdout.flush()
    process = subprocess.Popen(command, cwd=root)  # noqa: S603 - this interpreter, the app's module
    try:
        return process.wait()
    except KeyboardInterrupt:
        raise CommandError("stopped", 130) from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
