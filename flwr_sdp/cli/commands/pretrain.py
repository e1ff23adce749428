"""Pretrain the model of a task, so that private runs can refit it."""

from __future__ import annotations

import json
from pathlib import Path

import tomli_w  # comes with flwr
from rich.console import Console

from flwr_sdp.cli.engines.app_module import check_settings
from flwr_sdp.cli.engines.follow import follow
from flwr_sdp.cli.engines.process_job import ProcessJob
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import find_app, read_toml, require_module, shown
from flwr_sdp.cli.runs.values import absolute_paths, parse_set

MODULE = "simulations.pretraining"


def run(
    config_file: Path,
    *,
    set_: list[str],
    app_dir: Path | None,
    output: Path | None,
    as_json: bool = False,
) -> int:
    """Run the app's pretraining on a file, and return the exit status.

    Raises
    ------
    CommandError
        If something is missing or wrong, there are weights in `output` already, or it was stopped.
    """
    content = {**read_toml(config_file), **dict(parse_set(text) for text in set_)}
    root = find_app(config_file, app_dir)
    require_module(root, MODULE)
    content = absolute_paths(content)
    check_settings(root, MODULE, content)
    folder = (output or Path("weights", str(content.get("task", "")))).resolve()
    if folder.is_dir() and any(folder.iterdir()):
        raise CommandError(
            f"{shown(folder)} is not empty: pass another folder with --output, or remove it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "pretrain.toml"
    config.write_text(tomli_w.dumps(content), encoding="utf-8")
    console = Console(stderr=as_json)
    console.print(f"[bold]flwr-sdp pretrain[/bold]  weights in {shown(folder)}")
    try:
        completed = follow(
            ProcessJob(root, MODULE, str(config), str(folder)),
            console,
            label="pretrain",
            log=folder / "pretrain.log",
            metrics=folder / "metrics.csv",
            rounds=None,
            starting="reading data",
        )
    except KeyboardInterrupt:
        raise CommandError(f"stopped: what there is lies in {folder}", 130) from None
    if completed and as_json:
        print(json.dumps({"task": content.get("task"), "weights": str(folder)}, indent=2))
    elif completed:
        console.print(
            f'refit them with weights = "{shown(folder)}" in a run file',
            highlight=False,
            soft_wrap=True,
        )
    return 0 if completed else 1
