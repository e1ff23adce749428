"""Attack the mechanism as an app uses it, and leave table and picture in a folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import tomli_w  # comes with flwr

from flwr_sdp.cli.engines.app_module import module_command
from flwr_sdp.cli.errors import CommandError, require_packages
from flwr_sdp.cli.folders import find_app, new_folder, read_toml, require_module
from flwr_sdp.cli.runs.values import parse_set

_MODULE = "simulations.audit"


def run(
    config_file: Path,
    *,
    set_: Sequence[str],
    app_dir: Path | None,
    output: Path,
    as_json: bool,
) -> int:
    """Run the app's audit on a run file, and return its exit status.

    It is 0 if every claim holds, 1 if one was refuted, and 2 for a mistake in the run file. The
    audit writes to the screen itself: the table to standard output, progress and errors beside it.

    Raises
    ------
    CommandError
        If something is missing, or the audit was stopped.
    """
    require_packages("torch", "sklearn", "matplotlib")
    content = {**read_toml(config_file), **dict(parse_set(text) for text in set_)}
    root = find_app(config_file, app_dir)
    require_module(root, _MODULE)
    folder = new_folder(output.resolve() / "audit" / config_file.stem)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            settings = Path(scratch, config_file.name)
            settings.write_text(tomli_w.dumps(content), encoding="utf-8")
            options = ["--output", str(folder), *(["--json"] if as_json else [])]
            status = _follow(module_command(root, _MODULE, str(settings), *options), root)
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
