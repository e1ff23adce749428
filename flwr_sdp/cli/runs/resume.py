"""Take up what was broken off: which folder, which runs are done, which go on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tomli_w  # comes with flwr

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import read_toml
from flwr_sdp.cli.runs.grid import Run, is_beside_the_model, is_grid, is_privacy_key
from flwr_sdp.cli.runs.run_file import RunFile
from flwr_sdp.strategies.folder_lock import FolderLock

_CONFIG = "config.toml"
_CHECKPOINTS = "checkpoints"
# What may differ from the run that is resumed; everything else would make it another run.
_MAY_CHANGE = (
    "sdp-max-epsilon",
    "fail-fast",
    "checkpoint-keep",
    "evaluate-every",
    "round-timeout",
    "engine",
)
# A run that went further cannot be taken back, and neither can what it spent.
_CAN_ONLY_GROW = ("trials", "num-server-rounds")
_UNSAID = {"trials": 1, "sweep": {}}


def folder_to_resume(run_dir: Path, file: RunFile) -> Path:
    """Return the folder of what is resumed, if it was run with these settings.

    More trials and rounds may be asked of it than before.

    Raises
    ------
    CommandError
        If it is another folder, or another run.
    """
    if not is_grid(file) and not (run_dir / _CHECKPOINTS).is_dir():
        raise CommandError(f"{run_dir} has no checkpoints: pass the folder that a run printed")
    before = {**_UNSAID, **read_toml(run_dir / _CONFIG)}
    now = {**_UNSAID, **file.to_toml()}
    compared = {*now, *before} - {*_MAY_CHANGE, *_CAN_ONLY_GROW}
    # The sweep first: a key may be swept in one, and have one value in the other.
    for key in sorted(compared, key=lambda key: (key != "sweep", key)):
        if now.get(key) != before.get(key):
            raise CommandError(
                f"{key} was {before.get(key)!r} in the run in {run_dir}, and is "
                f"{now.get(key)!r} here: a run is resumed with its own settings"
            )
    for key in _CAN_ONLY_GROW:
        if now.get(key, 0) < before.get(key, 0):
            raise CommandError(
                f"{key} was {before[key]} in {run_dir}, and can only grow; got {now.get(key)}"
            )
    if is_grid(file) and (run_dir / "metrics.csv").exists():
        raise CommandError(
            f"the run in {run_dir} was a single one, its results lie in the folder itself: start "
            "the trials in a new folder, without --resume"
        )
    return run_dir


def require_over(runs: Iterable[Run]) -> None:
    """Raise :class:`CommandError` if one of the runs is still under way, having written nothing."""
    for run in runs:
        checkpoints = run.folder / _CHECKPOINTS
        if not checkpoints.is_dir():
            continue
        try:
            FolderLock(checkpoints).release()
        except BlockingIOError as error:
            raise CommandError(
                f"{checkpoints} is in use by {error}, whose run is not over: let it end or end it, "
                "and then go on with --resume"
            ) from None
        except OSError as error:
            raise CommandError(f"{checkpoints} cannot be locked: {error}") from None


def is_complete(run: Run) -> bool:
    """Whether a run of a sweep came to its end with these settings."""
    config = run.folder / _CONFIG
    if not (run.report.is_file() and config.is_file()):
        return False
    before = read_toml(config)
    return not any(
        before.get(key) != run.config.get(key)
        for key in {*before, *run.config}
        if not is_beside_the_model(key) and not (run.baseline and is_privacy_key(key))
    )


def take_up(run: Run) -> bool:
    """Prepare the folder of a run of a sweep, and return whether there are checkpoints in it."""
    run.folder.mkdir(parents=True, exist_ok=True)
    # What is begun again is not complete, whatever an earlier call left.
    run.report.unlink(missing_ok=True)
    run.privacy_report.unlink(missing_ok=True)
    (run.folder / _CONFIG).write_text(tomli_w.dumps(run.config), encoding="utf-8")
    checkpoints = run.folder / _CHECKPOINTS
    return not run.baseline and checkpoints.is_dir() and any(checkpoints.glob("round-*"))
