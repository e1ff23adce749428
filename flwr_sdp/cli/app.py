"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_sdp.cli.options import (
    AppFolder,
    AsJson,
    Clients,
    Delta,
    Dim,
    EpsilonMagnitude,
    MaxNorm,
    Population,
    Rounds,
    RunFile,
    Set,
    choice,
)

app = typer.Typer(
    name="flwr-sdp",
    help="Separated differential privacy for Flower.",
    epilog="Exit status: 0 done; 1 a run failed, or a claim was refuted; 2 a mistake in the call "
    "or a file it names; 130 stopped by hand.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Separated differential privacy for Flower."""


@app.command()
def simulate(
    config: RunFile,
    set_: Set = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=V1,V2,...", help="Run with each of these; may be repeated."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Runs of each point, on the seeds seed, seed + 1, ...")
    ] = None,
    engine: Annotated[
        str | None, choice("ray", "local", help="Ray, or one process without Ray.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
    app_dir: AppFolder = None,
    output: Annotated[
        Path,
        typer.Option(
            help="Results go to OUTPUT/<name>/<time>/, where conf/digits.toml is named digits, and "
            "conf/mnist/cpu.toml mnist-cpu."
        ),
    ] = Path("runs"),
    num_cpus: Annotated[int, typer.Option(min=1, help="CPUs for each client on Ray.")] = 1,
    num_gpus: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="GPUs for each client on Ray, or a part of one. Without it clients train on the "
            "CPU there, even if there is a GPU.",
        ),
    ] = 0.0,
    baseline: Annotated[
        bool, typer.Option(help="Also train without privacy, on the same seeds, and compare.")
    ] = True,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with the run or sweep whose results are in DIR, from its checkpoints.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check settings and data, say what would run, stop.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Simulate private federated training, follow it, and leave the results in a folder.

    Example: flwr-sdp simulate simulations/conf/digits.toml --set sdp-epsilon-direction=100

    A sweep: flwr-sdp simulate simulations/conf/digits.toml --trials 5
    --sweep sdp-epsilon-direction=500,100,50
    """
    from flwr_sdp.cli.commands.simulate import simulate as run
    from flwr_sdp.cli.engines.engine import Resources
    from flwr_sdp.cli.runs.run_file import Options

    options = Options(set_=set_ or (), sweep=sweep or (), trials=trials, engine=engine, seed=seed)
    status = run(
        config,
        options=options,
        app_dir=app_dir,
        output=output,
        resources=Resources(num_cpus=num_cpus, num_gpus=num_gpus),
        with_baseline=baseline,
        resume=resume,
        dry_run=dry_run,
        as_json=json_,
    )
    raise typer.Exit(status)


@app.command()
def preflight(
    config: RunFile, set_: Set = None, app_dir: AppFolder = None, json_: AsJson = False
) -> None:
    """Measure one client of a run here, and say how many to run at once, and with which options.

    Example: flwr-sdp preflight simulations/conf/mnist/cpu.toml
    """
    from flwr_sdp.cli.commands.preflight import show

    show(config, set_=set_ or (), app_dir=app_dir, as_json=json_)


@app.command()
def pretrain(
    config: RunFile,
    set_: Set = None,
    app_dir: AppFolder = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the weights; by default weights/<task>.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Train a task's model without privacy on public data, for private runs to refit.

    Example: flwr-sdp pretrain simulations/conf/reddit/pretrain.toml
    """
    from flwr_sdp.cli.commands.pretrain import run

    raise typer.Exit(run(config, set_=set_ or [], app_dir=app_dir, output=output, as_json=json_))


@app.command()
def plot(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders that simulate printed; merged.")
    ],
    kind: Annotated[
        str | None,
        choice("gap", "accuracy", "frontier", "box", help="By default all that there is data for."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A PNG, or a folder; by default the folder of the results.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="What is drawn: a column of results.csv, as top-5-accuracy.")
    ] = "accuracy",
    json_: AsJson = False,
) -> None:
    """Draw figures of finished runs: the gap to no privacy, accuracy, frontier, spread.

    Example: flwr-sdp plot runs/digits/20270101-120000 --kind gap
    """
    from flwr_sdp.cli.commands.plot import show

    show(folders, kind=kind, output=output, metric=metric, as_json=json_)


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Folders of runs or sweeps, or report.json files."),
    ],
    json_: AsJson = False,
) -> None:
    """Show what finished runs guarantee, and to whom; several are put side by side.

    Example: flwr-sdp report runs/digits/20270101-120000
    """
    from flwr_sdp.cli.commands.report import show

    show(paths, as_json=json_)


@app.command()
def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger's file, as the node config names it.")],
    data_set: Annotated[str | None, typer.Option(help="Only this data set.")] = None,
    order: Annotated[float, typer.Option(help="Order of the Renyi total.", min=1.0)] = 2.0,
    new: Annotated[
        bool, typer.Option("--new", help="Make the file first, once in the life of a device.")
    ] = False,
    charge: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Charge this to --data-set by hand: what was spent and is not in the file, as "
            "after a backup was restored.",
        ),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Show what a device's reports have cost: each, and in all.

    Example: flwr-sdp ledger /var/lib/flwr-sdp/ledger.db

    A new device: flwr-sdp ledger /var/lib/flwr-sdp/ledger.db --new
    """
    from flwr_sdp.cli.commands.ledger import change, show

    if new or charge is not None:
        change(path, new=new, charge=charge, data_set=data_set, order=order)
    show(path, data_set=data_set, order=order, as_json=json_)


@app.command()
def plan(
    dim: Dim,
    clients_per_round: Clients,
    population: Population,
    rounds: Rounds,
    target_breach: Annotated[
        float, typer.Option(help="Largest probability of a reconstruction.")
    ] = 1e-3,
    dim_target: Annotated[
        int | None, typer.Option(help="Dimensions of what is protected; by default all.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Cosine from which on it counts as reconstructed.")
    ] = 0.5,
    reports: Annotated[int, typer.Option(help="Reports of a client that are seen together.")] = 1,
    epsilon_direction: Annotated[
        float | None, typer.Option(help="Say what this budget protects, in place of choosing one.")
    ] = None,
    epsilon_magnitude: EpsilonMagnitude = 10.0,
    max_norm: MaxNorm = 1.0,
    update_norm: Annotated[
        float | None, typer.Option(help="Norm of an update; by default the longest.")
    ] = None,
    agreement: Annotated[
        float, typer.Option(help="Norm of the average update over that of one.")
    ] = 1.0,
    noise_multiplier: Annotated[float, typer.Option(help="Of the server's noise.")] = 1.0,
    delta: Delta = None,
    rule: Annotated[str, choice("tight", "paper", help="How the mechanism is calibrated.")] = (
        "tight"
    ),
    json_: AsJson = False,
) -> None:
    """Work out budget, noise and guarantees of a deployment before anyone trains.

    Example: flwr-sdp plan --dim 3274634 --clients-per-round 10000 --population 10000000
    --rounds 100 --dim-target 1000
    """
    from flwr_sdp.cli.commands.plan import show

    show(
        as_json=json_,
        dim=dim,
        clients_per_round=clients_per_round,
        population=population,
        rounds=rounds,
        target_breach=target_breach,
        dim_target=dim_target,
        tolerance=tolerance,
        reports=reports,
        epsilon_direction=epsilon_direction,
        epsilon_magnitude=epsilon_magnitude,
        max_norm=max_norm,
        update_norm=update_norm,
        agreement=agreement,
        noise_multiplier=noise_multiplier,
        delta=delta,
        rule=rule,
    )


@app.command()
def calibrate(
    dim: Dim,
    epsilon_direction: Annotated[float, typer.Option(help="Budget of the direction.")],
    epsilon_magnitude: EpsilonMagnitude = 10.0,
    max_norm: MaxNorm = 1.0,
    json_: AsJson = False,
) -> None:
    """Show a mechanism's constants, the paper's rule beside the tight one.

    Example: flwr-sdp calibrate --dim 3274634 --epsilon-direction 500
    """
    from flwr_sdp.cli.commands.calibrate import show

    show(
        dim,
        epsilon_direction,
        epsilon_magnitude=epsilon_magnitude,
        max_norm=max_norm,
        as_json=json_,
    )


@app.command()
def account(
    clients_per_round: Clients,
    population: Population,
    rounds: Rounds,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="What epsilon does this noise give?")
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="What noise does this epsilon take?")
    ] = None,
    delta: Delta = None,
    json_: AsJson = False,
) -> None:
    """Account for a training before it runs: epsilon from the noise, or the noise from epsilon.

    Example: flwr-sdp account --clients-per-round 1000 --population 1000000 --rounds 500
    --delta 1e-8 --target-epsilon 2
    """
    from flwr_sdp.cli.commands.account import show

    show(
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        clients_per_round=clients_per_round,
        population=population,
        rounds=rounds,
        delta=delta,
        as_json=json_,
    )


@app.command()
def audit(
    config: RunFile,
    set_: Set = None,
    app_dir: AppFolder = None,
    output: Annotated[
        Path, typer.Option(help="Results go to OUTPUT/audit/<run file's name>/<time>/.")
    ] = Path("runs"),
    json_: AsJson = False,
) -> None:
    """Attack the mechanism, and compare what is recovered with what is claimed.

    Example: flwr-sdp audit simulations/conf/audit/digits.toml
    """
    from flwr_sdp.cli.commands.audit import run

    raise typer.Exit(run(config, set_=set_ or (), app_dir=app_dir, output=output, as_json=json_))
