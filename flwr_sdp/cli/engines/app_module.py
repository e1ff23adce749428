"""Modules of an app, run as programs by this interpreter."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w  # comes with flwr

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import has_module

# As `python -m`, but the app's folder is the last place that is looked at: a clone of this project
# has folders of the library's names, and what runs is the library that is installed.
_RUN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(app_dir: Path, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of an app."""
    return [sys.executable, "-P", "-c", _RUN, str(app_dir), module, *arguments]


def ask(app_dir: Path, module: str, *arguments: str) -> str:
    """Return what a module of an app prints.

    Raises
    ------
    CommandError
        If it fails, with the last line of what it says, but for the name of the error.
    """
    done = subprocess.run(  # noqa: S603 - this interpreter, the app's module
        module_command(app_dir, module, *arguments),
        cwd=app_dir,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        last = (done.stderr.strip() or "its check failed").splitlines()[-1]
        name, _, reason = last.partition(": ")
        raise CommandError(reason if reason and " " not in name else last)
    return done.stdout


def check_settings(app_dir: Path, module: str, config: Mapping[str, Any]) -> None:
    """Have a program read its settings, if it is a package that can, before anything is run.

    Raises
    ------
    CommandError
        If a key or a value is wrong, in the program's words.
    """
    if not has_module(app_dir, module):
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "run.toml")
        file.write_text(tomli_w.dumps(config), encoding="utf-8")
        ask(app_dir, module, str(file), scratch, "--check")
