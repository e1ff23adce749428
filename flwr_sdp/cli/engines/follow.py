"""Follow a run to its end: its log into a file, its rounds on the screen."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flwr_sdp._rounding import round_up
from flwr_sdp.cli.engines.engine import Job
from flwr_sdp.cli.engines.log_reader import LogReader
from flwr_sdp.cli.folders import shown
from flwr_sdp.cli.results.metrics import last_known, read_rows

# How a program without rounds says how far it is.
_PART = re.compile(r"^\[(\d+)/(\d+)\]\s*(.*)")
_STATUS_COLUMNS = 60
_POLL = 0.2
_LAST_LINES = 5.0  # seconds for what a stopped run still had to say


def follow(
    job: Job,
    console: Console,
    *,
    label: str,
    log: Path,
    metrics: Path,
    rounds: int | None,
    starting: str,
) -> bool:
    """Follow a job to its end, and return whether it completed.

    Parameters
    ----------
    job : Job
        What goes on; it is closed in any case.
    console : Console
        The screen.
    label : str
        What it is called there.
    log : Path
        Where its log is copied to.
    metrics : Path
        The table it writes, a row a round.
    rounds : int or None
        How many there will be, where that is known.
    starting : str
        What the screen says before the first.

    At an interrupt the job is stopped before the interrupt goes on.
    """
    reader = LogReader(job.lines, log, console)
    try:
        with Progress(
            TextColumn("{task.description:8}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            bar = progress.add_task(escape(label), total=rounds, status=starting)
            while reader.is_running:
                _advance(progress, bar, metrics, reader.last_line)
                reader.wait(_POLL)
            _advance(progress, bar, metrics, reader.last_line)
        trouble = job.trouble()
    except KeyboardInterrupt:
        job.stop()
        raise
    finally:
        job.close()
        reader.wait(_LAST_LINES)
    if trouble is not None:
        reader.show_end()
        console.print(
            f"[red]the {escape(label)} run ended as {escape(trouble)}[/red]\n"
            f"the whole log: {escape(shown(log))}",
            highlight=False,
            soft_wrap=True,
        )
    return trouble is None


def _advance(progress: Progress, bar: TaskID, metrics: Path, line: str) -> None:
    rows = read_rows(metrics)
    if not rows or not rows[-1].get("round"):
        part = _PART.match(line)
        if part is not None:
            status = escape(" ".join(part[3].split())[:_STATUS_COLUMNS])
            progress.update(bar, completed=int(part[1]), total=int(part[2]), status=status)
        return
    status = f"round {rows[-1]['round']}"
    accuracy, epsilon = last_known(rows, "accuracy"), last_known(rows, "cdp-epsilon")
    if accuracy is not None:
        status += f"  accuracy {accuracy:.3f}"
    if epsilon is not None:
        status += f"  central epsilon {round_up(epsilon, 4)}"
    progress.update(bar, completed=int(rows[-1]["round"]), status=status)
