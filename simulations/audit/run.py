"""Run every attack of a run file, and leave table and picture in a folder."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from flwr_sdp import _validate
from flwr_sdp.cli.tables import table
from simulations.audit import releases
from simulations.audit.findings import Finding, to_json, write_csv
from simulations.audit.settings import Settings

T = TypeVar("T")


def run(settings: Settings, folder: Path) -> list[Finding]:
    """Attack, and write audit.csv, audit.json and reconstruction.png to `folder`."""
    # torch takes seconds to load, and mistakes in the run file should be told before.
    import torch

    from simulations.audit import picture, updates

    torch.set_num_threads(1)  # the problems are small: threads cost more than they bring
    linear = _timed("linear attack on digits", updates.linear_on_digits, settings)
    uniform = _timed("linear attack, uniform prior", updates.linear_on_uniform, settings)
    alike, in_album = (
        _timed(
            "look-alike attack",
            partial(updates.look_alike_on_digits, has_the_image=has_the_image),
            settings,
        )
        for has_the_image in (False, True)
    )
    inverted = _timed("gradient inversion", updates.inversion_on_digits, settings)
    findings = [
        *linear.findings(settings, is_uniform=False),
        *uniform.findings(settings, is_uniform=True),
        *inverted.findings(settings, is_uniform=False),
        *alike.findings(settings, is_uniform=False),
        *in_album.findings(settings, is_uniform=False),
        *_timed("confined by the server", updates.confined_digits, settings),
        *_timed("low frequencies", releases.low_frequencies, settings),
        *_timed("words", releases.word_sets, settings),
        *_timed("distinguishing", releases.distinguishing, settings),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(findings, folder / "audit.csv")
    (folder / "audit.json").write_text(to_json(findings, asdict(settings)) + "\n", "utf-8")
    picture.draw(
        folder / "reconstruction.png",
        [linear, inverted, alike],
        rows=settings.picture_rows,
        probability=settings.picture_probability,
        tolerance=settings.tolerance,
        seed=settings.seed,
    )
    return findings


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, 1 where a claim is refuted, or 2 for a mistake in the call."""
    parser = argparse.ArgumentParser(prog="python -m simulations.audit", description=__doc__)
    parser.add_argument("runfile", type=Path, help="what to attack (TOML)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    call = parser.parse_args(arguments)
    try:
        settings = Settings.read(call.runfile)
        findings = run(settings, call.output)
    except (OSError, ValueError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if call.json:
        print(to_json(findings, asdict(settings)))
    else:
        _show(findings, settings)
    refuted = [finding for finding in findings if not finding.holds]
    for finding in refuted:
        low, claimed = _validate.apart(finding.low, finding.bound, digits=4)
        print(
            f"audit: refuted: {finding.attack}, {finding.target}, at epsilon {finding.epsilon:g}: "
            f"{finding.measure} is at least {low}, claimed {claimed}",
            file=sys.stderr,
        )
    return 1 if refuted else 0


def _timed(name: str, attack: Callable[[Settings], T], settings: Settings) -> T:
    start = time.monotonic()
    found = attack(settings)
    print(f"{name:30} {time.monotonic() - start:6.1f} s", file=sys.stderr, flush=True)
    return found


def _show(findings: list[Finding], settings: Settings) -> None:
    console = Console(highlight=False)
    for attack in dict.fromkeys(finding.attack for finding in findings):
        rows = [finding for finding in findings if finding.attack == attack]
        shown = table(f"\n{attack}: {rows[0].measure}", "of")
        interval = f"{100 * settings.confidence:g}% interval"
        columns = ["epsilon_1", "epsilon", "trials", "measured", interval, "bound"]
        if rows[0].typical is not None:
            columns.insert(3, "median")
        for column in columns:
            shown.add_column(column, justify="right")
        for row in rows:
            shown.add_row(row.target, *_cells(row))
        console.print(shown)


def _cells(row: Finding) -> list[str]:
    high = f"to {row.high:.3g}" if math.isfinite(row.high) else "or more"
    return [
        _budget(row.epsilon_direction),
        _budget(row.epsilon),
        f"{row.trials:,}",
        *([] if row.typical is None else [f"{row.typical:.3f}"]),
        f"{row.measured:.3g}",
        f"{row.low:.3g} {high}",
        f"{row.bound:.3g}" if row.holds else f"[red]{row.bound:.3g} REFUTED[/red]",
    ]


def _budget(epsilon: float) -> str:
    if epsilon == 0.0:
        return "-"
    return f"{epsilon:g}" if math.isfinite(epsilon) else "no privacy"
