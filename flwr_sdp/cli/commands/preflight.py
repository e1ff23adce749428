"""Measure one client of a run on this machine, and say how many to run at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flwr_sdp.cli.engines.app_check import ask_app
from flwr_sdp.cli.engines.local_engine import LocalEngine
from flwr_sdp.cli.engines.machine import this_machine
from flwr_sdp.cli.engines.ray_checks import MIB
from flwr_sdp.cli.engines.sizing import Measurement, Proposal, propose
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import find_app, read_toml
from flwr_sdp.cli.runs.grid import runs_of
from flwr_sdp.cli.runs.run_config import whole_run_config
from flwr_sdp.cli.runs.run_file import Options, app_defaults, read_engine, read_run_file


def show(config_file: Path, *, set_: Sequence[str], app_dir: Path | None, as_json: bool) -> None:
    """Measure, and print the measurement and the proposal; of a sweep, for its first run.

    Raises
    ------
    CommandError
        If something is missing, cannot be given to the app, or fails there.
    """
    content = read_toml(config_file)
    root = find_app(config_file, app_dir)
    options = Options(set_=set_)
    engine = read_engine(content, options, ["ray", "local", "stream"])
    if engine == "stream":
        raise CommandError("a stream runs without Ray, one trial a process: nothing to plan")
    LocalEngine.check(root)
    file = read_run_file(content, options, engine=engine, app_dir=root, defaults=app_defaults(root))
    run = runs_of(file, Path(), with_baseline=False)[0]
    # No folder: a measurement leaves nothing behind.
    config = {**whole_run_config(run, resume=False), "output-dir": ""}
    facts = ask_app(root, "--measure", config)
    if facts is None:
        raise CommandError(f"the app at {root} does not measure: its engine printed no JSON")
    measured, machine = Measurement.from_json(facts), this_machine()
    proposal = propose(measured, machine)
    if as_json:
        print(json.dumps(_as_dict(measured, asdict(machine), proposal), indent=2))
        return
    _print(measured, proposal, config_file)


def _as_dict(measured: Measurement, machine: dict[str, Any], proposal: Proposal) -> dict[str, Any]:
    return {
        "measured": asdict(measured),
        "machine": machine,
        "proposal": {**asdict(proposal), "is_safe": proposal.is_safe},
    }


def _print(measured: Measurement, proposal: Proposal, config_file: Path) -> None:
    console = Console()
    table = Table("one client", "", box=None, header_style="bold", title_justify="left")
    table.add_row("update and privatization, first", f"{measured.first_seconds:.3f} s")
    table.add_row("and then", f"{measured.second_seconds:.3f} s")
    table.add_row("evaluation at the server", f"{measured.evaluation_seconds:.3f} s")
    table.add_row("memory of the process, at its peak", _mib(measured.peak_memory))
    table.add_row("of which for training", _mib(measured.client_memory))
    gpu = measured.gpu_memory
    if gpu is not None:
        table.add_row("GPU: tensors, at their peak", _mib(gpu.allocated))
        table.add_row("set aside for them", _mib(gpu.reserved))
        table.add_row("context, and other processes", _mib(gpu.context))
        table.add_row("in all on the GPU", _mib(gpu.total))
    table.add_row("a request, and a reply", f"{_mib(measured.request_bytes)}, "
                  f"{_mib(measured.reply_bytes)}")  # fmt: skip
    console.print(table)
    limits = Table("limit", "clients at once", "because", box=None, header_style="bold")
    for limit in proposal.limits:
        limits.add_row(limit.what, str(limit.clients), limit.reason)
    console.print(limits)
    if not proposal.is_safe:
        console.print(
            "warning: not even one client is within every limit; what follows may fail",
            style="yellow",
        )
    best, worst = proposal.seconds_at_best, proposal.seconds_at_worst
    console.print(
        f"{proposal.clients_at_once} at once: a round of {measured.cohort:g} clients takes from "
        f"{best:.2g} s, if none slows another down, to {worst:.2g} s, as one after another",
        highlight=False,
        soft_wrap=True,
    )
    num_gpus = proposal.resources.num_gpus
    gpus = f" --num-gpus {num_gpus:g}" if num_gpus else ""
    console.print(
        f"flwr-sdp simulate {config_file} --num-cpus {proposal.resources.num_cpus}{gpus} "
        f"--set num-nodes={proposal.num_nodes}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _mib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / MIB:.3g} MiB"
