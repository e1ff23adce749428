"""Options that several commands have, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import typer


def choice(*names: str, help: str) -> Any:
    """Return an option that takes one of these; a shell completes it."""
    return typer.Option(click_type=click.Choice(names), metavar="|".join(names), help=help)


# Of a deployment, planned or accounted for.
Dim = Annotated[int, typer.Option(help="Coordinates of an update.")]
Clients = Annotated[int, typer.Option(help="Expected cohort.")]
Population = Annotated[int, typer.Option(help="Clients there are.")]
Rounds = Annotated[int, typer.Option(help="Rounds of training.")]
MaxNorm = Annotated[float, typer.Option(help="Longest update that is not shortened.")]
EpsilonMagnitude = Annotated[float, typer.Option(help="Budget of the magnitude.")]
Delta = Annotated[
    float | None, typer.Option(help="delta of the guarantee; by default min(1e-5, 0.1/population).")
]

# Of what the app runs.
RunFile = Annotated[
    Path, typer.Argument(metavar="RUN.toml", help="What to do: the keys of its task.")
]
AppFolder = Annotated[
    Path | None,
    typer.Option("--app", metavar="DIR", help="The Flower app; by default that of the run file."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one more key; may be repeated."),
]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON, and everything else to standard error.")
]
