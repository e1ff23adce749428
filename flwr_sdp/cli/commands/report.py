"""Show what finished runs have guaranteed, and to whom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flwr_sdp._rounding import round_up
from flwr_sdp.cli.folders import shown
from flwr_sdp.cli.results.reports import find_reports, read_report
from flwr_sdp.cli.tables import table
from flwr_sdp.strategies import CentralGuarantee, PrivacyReport


def show(paths: Sequence[Path], *, as_json: bool) -> None:
    """Print the one report there is, several side by side in a table, or all of them as JSON.

    Raises
    ------
    CommandError
        If there is no report, or one cannot be read.
    """
    files = list(dict.fromkeys(file for path in paths for file in find_reports(path.resolve())))
    read = {file: read_report(file) for file in files}
    if as_json:
        reports = [  # what reports of before lack is said as well
            {"file": str(file), **content, **report.to_dict()}
            for file, (report, content) in read.items()
        ]
        print(json.dumps({"reports": reports}, indent=2))
        return
    console = Console(highlight=False)
    if len(read) == 1:
        [(report, _)] = read.values()
        console.print(report.to_text(), markup=False, soft_wrap=True)
        return
    console.print(_side_by_side({file: report for file, (report, _) in read.items()}))
    console.print(f"flwr-sdp report {shown(files[0].parent)} has the whole of one", markup=False)


def _delta(central: CentralGuarantee) -> str:
    return f"{central.delta:g}" if central.warning is None else f"{central.delta:g} (>= 1/N!)"


def _side_by_side(reports: dict[Path, PrivacyReport]) -> Table:
    made = table("Privacy reports: each stands for its own run", "run")
    for column in ("local ε a report", "in total", "central ε", "delta", "notes"):
        made.add_column(column, justify="right", no_wrap=True)
    for file, report in reports.items():
        local, central = report.local, report.central
        made.add_row(
            Text(shown(file.parent)),
            *(
                ("none", "none")
                if local is None
                else (
                    round_up(local.epsilon_per_report, 6),
                    round_up(local.total(report.max_reports_per_client), 6),
                )
            ),
            *(("none", "") if central is None else (round_up(central.epsilon, 4), _delta(central))),
            str(len(report.exceptions)),
        )
    return made
