"""Draw the figures of finished runs, from their tables alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flwr_sdp.cli.commands.simulate_streams import draw_streams
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import shown
from flwr_sdp.cli.results.figures import FIGURES
from flwr_sdp.cli.results.trials import ACCURACY, is_stream, read_results

_SUFFIX = ".png"


def show(
    folders: Sequence[Path],
    *,
    kind: str | None,
    output: Path | None,
    metric: str = ACCURACY,
    as_json: bool = False,
) -> None:
    """Draw one kind of figure, or all that the results allow, and print where they are.

    Raises
    ------
    CommandError
        If the tables cannot be read or merged, or hold nothing of the kind that is asked for.
    """
    if any(is_stream(folder) for folder in folders):
        if len(folders) > 1 or kind is not None or output is not None or metric != ACCURACY:
            raise CommandError(
                "the results of a stream are drawn one folder at a time, without other options"
            )
        pictures = draw_streams(folders[0])
    else:
        pictures = draw(folders, kind=kind, output=output, metric=metric)
    if as_json:
        print(json.dumps({"pictures": [str(picture.resolve()) for picture in pictures]}, indent=2))
        return
    console = Console()
    for picture in pictures:
        console.print(f"picture  {shown(picture)}", highlight=False, soft_wrap=True)


def draw(
    folders: Sequence[Path],
    *,
    kind: str | None = None,
    output: Path | None = None,
    metric: str = ACCURACY,
) -> list[Path]:
    """Draw figures from the tables in these folders, and return the pictures.

    Parameters
    ----------
    folders : sequence of Path
        What is merged.
    kind : str or None
        One of :data:`~flwr_sdp.cli.results.figures.FIGURES`; None for all that the results allow.
    output : Path or None
        A picture for one kind, or a folder; by default the folder of the results.
    metric : str
        What is drawn, a column of the table; pictures of any but accuracy are named after it.

    Raises
    ------
    CommandError
        See :func:`show`.
    """
    is_picture = output is not None and output.suffix.lower() == _SUFFIX
    if is_picture and kind is None:
        raise CommandError(f"--output {output} is one picture: say which with --kind")
    if output is None and len(folders) > 1:
        raise CommandError("--output must say where the pictures of several folders go")
    results = read_results(folders, metric)
    target = folders[0] if output is None else output
    if kind is not None:
        return [FIGURES[kind](results, target if is_picture else target / _file(kind, metric))]
    pictures = []
    for name, figure in FIGURES.items():
        try:
            pictures.append(figure(results, target / _file(name, metric)))
        except CommandError:
            continue  # there is nothing of this kind in the results
    return pictures


def _file(kind: str, metric: str) -> str:
    """Return the name of a picture: the metric itself where it is drawn against rounds."""
    if metric == ACCURACY:
        return f"{kind}{_SUFFIX}"
    return f"{metric}{_SUFFIX}" if kind == "accuracy" else f"{kind}-{metric}{_SUFFIX}"
