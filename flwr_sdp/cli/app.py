"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="flwr-sdp",
    help="Separated differential privacy for Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Separated differential privacy for Flower."""


@app.command()
def simulate(
    config: Annotated[
        Path, typer.Argument(help="Run file (TOML): the keys of the app's run config to set.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one more key; may be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
    app_dir: Annotated[
        Path | None,
        typer.Option("--app", help="The Flower app; by default the one around the run file."),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Results go to OUTPUT/<run file's name>/<time>/.")
    ] = Path("runs"),
    num_cpus: Annotated[int, typer.Option(min=1, help="CPUs for each client.")] = 1,
    num_gpus: Annotated[float, typer.Option(min=0.0, help="GPUs for each client.")] = 0.0,
    baseline: Annotated[
        bool, typer.Option(help="Also train without privacy, on the same seeds, and compare.")
    ] = True,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Go on with the run whose results are in DIR, from its checkpoints."
        ),
    ] = None,
) -> None:
    """Simulate private federated training on Ray, follow it, and leave the results in a folder.

    Example: flwr-sdp simulate simulations/conf/digits.toml --set sdp-epsilon-direction=100
    """
    from flwr_sdp.cli.simulate import Simulation

    overrides = [*(set_ or []), *([] if seed is None else [f"seed={seed}"])]
    simulation = Simulation.prepare(
        config,
        overrides=overrides,
        app_dir=app_dir,
        output=output,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resume=resume,
    )
    raise typer.Exit(simulation.run(with_baseline=baseline))


@app.command()
def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger's file, as the node config names it.")],
    data_set: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    order: Annotated[float, typer.Option(help="Order of the Renyi total.", min=1.0)] = 2.0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a device's reports have cost: each, and in all.

    Example: flwr-sdp ledger /var/lib/flwr-sdp/ledger.db
    """
    from flwr_sdp.cli.ledger import show

    show(path, data_set=data_set, order=order, as_json=json_)
