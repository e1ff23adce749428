"""Show what a device has spent; make its ledger, and charge by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from flwr_sdp import _validate
from flwr_sdp._rounding import round_up
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.tables import table
from flwr_sdp.clients import DeviceLedger, LedgerEntry, LedgerError
from flwr_sdp.clients.ledger import basic_composition, renyi_composition


def change(
    path: Path, *, new: bool, charge: float | None, data_set: str | None, order: float
) -> None:
    """Make a ledger, charge one by hand, or both at once, before it is shown at a Renyi `order`.

    Raises
    ------
    CommandError
        If it cannot be done; nothing has changed then.
    """
    if charge is not None and data_set is None:
        raise CommandError("--charge needs --data-set: whose budget was spent")
    if charge is None and data_set is not None:
        raise CommandError("--data-set needs --charge where --new is given: nothing is spent yet")
    spent = {} if charge is None or data_set is None else {data_set: charge}
    try:
        _validate.number("order", order, minimum=1.0)
        if new:
            DeviceLedger.create(path, spent=spent)
        else:
            ledger = DeviceLedger(path)
            known = ledger.data_sets()
            for name, epsilon in spent.items():
                ledger.charge_by_hand(name, epsilon)
                if known and name not in known:
                    print(
                        f"data set {name!r} is new in this ledger, which had "
                        f"{', '.join(map(repr, known))}: if it is a slip, what those may spend is "
                        "as before",
                        file=sys.stderr,
                    )
    except (LedgerError, ValueError) as error:
        raise CommandError(str(error)) from error


def show(path: Path, *, data_set: str | None, order: float, as_json: bool) -> None:
    """Print the reports of a ledger and their totals, as a table or as JSON.

    Raises
    ------
    CommandError
        If there is no ledger at `path`, or nothing is known of `data_set`.
    """
    if not path.is_file():
        raise CommandError(
            f"{path} is not there: give the file that sdp-ledger names, or make it with --new"
        )
    try:
        facts = _facts(DeviceLedger(path), data_set, order)
    except (LedgerError, ValueError) as error:
        raise CommandError(str(error)) from error
    if data_set is not None and not facts["totals"]:
        raise CommandError(f"{path} has no data set {data_set!r}: leave --data-set out to see all")
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print_tables(facts)


def _facts(ledger: DeviceLedger, data_set: str | None, order: float) -> dict[str, Any]:
    by_name: dict[str, list[LedgerEntry]] = {}
    entries = ledger.entries(data_set)
    for entry in entries:
        by_name.setdefault(entry.request.data_set, []).append(entry)
    return {
        "reports": [
            {
                "time": entry.time,
                "data_set": entry.request.data_set,
                "run_id": entry.request.run_id,
                "message_id": entry.request.message_id,
                "epsilon_direction": entry.event.epsilon_direction,
                "epsilon_magnitude": entry.event.epsilon_magnitude,
                "epsilon": entry.event.epsilon,
                "max_norm": entry.max_norm,
                "dim": entry.dim,
            }
            for entry in entries
        ],
        "totals": [
            {
                "data_set": name,
                "reports": len(charged),
                "epsilon": basic_composition(charged),
                "renyi_order": order,
                "renyi_epsilon": renyi_composition(charged, order),
            }
            for name, charged in sorted(by_name.items())
        ],
    }


def _print_tables(facts: dict[str, Any]) -> None:
    console = Console()
    if not facts["reports"]:
        console.print("No reports have been charged.")
        return
    reports = table("Reports", "time (UTC)", "data set", "message")
    for column in ("epsilon", "direction", "magnitude"):
        reports.add_column(column, justify="right", no_wrap=True)
    for report in facts["reports"]:
        reports.add_row(
            report["time"].removesuffix("+00:00").replace("T", " "),
            Text(report["data_set"]),
            Text("by hand" if report["dim"] == 0 else _short(report["message_id"])),
            round_up(report["epsilon"], 6),
            round_up(report["epsilon_direction"], 6),
            round_up(report["epsilon_magnitude"], 6),
        )
    totals = table("Spent in all", "data set")
    for column in ("reports", "epsilon (basic composition)", "Renyi epsilon"):
        totals.add_column(column, justify="right")
    for total in facts["totals"]:
        totals.add_row(
            Text(total["data_set"]),
            f"{total['reports']:,}",
            round_up(total["epsilon"], 6),
            f"{round_up(total['renyi_epsilon'], 6)} at order {total['renyi_order']:g}",
        )
    console.print(reports)
    console.print(totals)


def _short(name: str) -> str:
    return name if len(name) <= 10 else f"{name[:8]}.."
