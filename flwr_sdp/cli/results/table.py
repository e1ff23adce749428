"""``results.csv``: every round of every finished run, a row each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr_sdp._files import write_whole
from flwr_sdp.cli.results.metrics import read_rows
from flwr_sdp.cli.runs.grid import Run, is_privacy_key

RESULTS = "results.csv"
_ALWAYS = ("sdp-epsilon-direction", "sdp-rule")


def result_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the run config that are columns: the swept ones, epsilon and the rule."""
    swept = list(dict.fromkeys(key for run in runs for key in run.point))
    return swept + [key for key in _ALWAYS if key not in swept and key in runs[0].config]


def write_results(runs: Sequence[Run], keys: Sequence[str], path: Path) -> None:
    """Write the table of these runs, all at once: whoever reads it never sees half of one.

    Parameters
    ----------
    runs : sequence of Run
        Those that are finished.
    keys : sequence of str
        The columns that tell them apart, see :func:`result_keys`. A key of privacy is empty in
        the rows of a baseline, which stands for all its values.
    path : Path
        The file.
    """
    head = ["task", "data", "privacy", *keys, "trial", "seed"]
    columns: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    for run in runs:
        facts = _facts(run, keys)
        for row in read_rows(run.metrics):
            columns.update(dict.fromkeys(row))
            rows.append({**row, **facts})
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*head, *(name for name in columns if name not in head)])
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def _facts(run: Run, keys: Sequence[str]) -> dict[str, Any]:
    task = run.config.get("task", "")
    return {
        "task": task,
        "data": data_name(run.report) or task,
        "privacy": "none" if run.baseline else "private",
        **{
            key: "" if run.baseline and is_privacy_key(key) else run.config.get(key, "")
            for key in keys
        },
        "trial": run.trial,
        "seed": run.config.get("seed", ""),
    }


def data_name(report: Path) -> str:
    """Return what the task calls its data and model, which names a stand-in as one.

    Empty where there is no report, or one that does not say.
    """
    try:
        facts = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(facts.get("data") or "") if isinstance(facts, dict) else ""
