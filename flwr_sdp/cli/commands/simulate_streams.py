"""A run file with ``engine = "stream"``: written out with the command line's changes, and run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w  # comes with flwr
from rich.console import Console

from flwr_sdp.cli.engines.app_module import check_settings
from flwr_sdp.cli.engines.engine import Engine, Resources
from flwr_sdp.cli.engines.follow import follow
from flwr_sdp.cli.engines.stream_engine import MODULE, StreamEngine
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import new_folder, shown
from flwr_sdp.cli.results.table import RESULTS
from flwr_sdp.cli.runs.grid import Run
from flwr_sdp.cli.runs.run_file import STREAM, Options


def run_stream(
    content: Mapping[str, Any],
    options: Options,
    *,
    app_dir: Path,
    parent: Path,
    dry_run: bool = False,
    as_json: bool = False,
    engine_type: type[Engine] = StreamEngine,
) -> int:
    """Run a stream, draw its pictures, and return the exit status.

    Parameters
    ----------
    content : mapping
        The run file; its keys are the business of the program that is run.
    options : Options
        What the command line changes in it.
    app_dir : Path
        The app that has the program.
    parent : Path
        Where the folder of the run is made.
    dry_run : bool
        Whether to stop once the settings are checked.
    as_json : bool
        Whether to print JSON.
    engine_type : type
        What it is started on.

    Raises
    ------
    CommandError
        If the app has no such program, or it does not take the settings.
    """
    changed = with_options(content, options)
    engine_type.check(app_dir)
    check_settings(app_dir, MODULE, changed)
    console = Console(stderr=as_json)
    if dry_run:
        if as_json:
            print(json.dumps({"engine": STREAM, "config": changed}, indent=2))
        console.print("[bold]flwr-sdp simulate[/bold]  a stream; its settings are right")
        return 0
    run_dir = new_folder(parent)
    (run_dir / "config.toml").write_text(tomli_w.dumps(changed), encoding="utf-8")
    console.print(f"[bold]flwr-sdp simulate[/bold]  results in {shown(run_dir)}")
    run = Run(point={}, trial=0, baseline=False, config=changed, folder=run_dir, label="stream")
    try:
        with engine_type(app_dir, run_dir, Resources()) as engine:
            completed = follow(
                engine.start(run, resume=False),
                console,
                label=run.label,
                log=run_dir / "stream.log",
                metrics=run_dir / RESULTS,
                rounds=None,
                starting=engine.starting,
            )
    except KeyboardInterrupt:
        raise CommandError(f"stopped: what there is lies in {run_dir}", 130) from None
    pictures = draw_streams(run_dir) if completed else []
    for picture in pictures:
        console.print(f"picture  {shown(picture)}")
    if as_json:
        facts = {"folder": str(run_dir), "completed": completed, "pictures": pictures}
        print(json.dumps(facts, indent=2, default=str))
    return 0 if completed else 1


def with_options(content: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return a run file with the command line's changes; ``--set TABLE.KEY=VALUE`` reaches inside.

    Raises
    ------
    CommandError
        If an option is not of its form.
    """
    changed: dict[str, Any] = {**content}
    for key, value in options.settings().items():
        *tables, last = key.split(".")
        inside = changed
        for name in tables:
            below = inside.get(name)
            inside[name] = {**below} if isinstance(below, Mapping) else {}
            inside = inside[name]
        inside[last] = value
    if options.trials is not None:
        changed["trials"] = options.trials
    swept = options.swept()
    if swept:
        changed["sweep"] = {**changed.get("sweep", {}), **swept}
    return changed


def draw_streams(folder: Path) -> list[Path]:
    """Draw the pictures of a stream's results.

    Raises
    ------
    CommandError
        If they are not those of a stream that has pictures.
    """
    from flwr_sdp.cli.results.stream_figures import plot_streams

    try:
        return plot_streams(folder)
    except (ValueError, OSError) as error:
        raise CommandError(f"cannot draw the stream in {folder}: {error}") from None
