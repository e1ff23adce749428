"""The table of a run, a row a round, while another process writes it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the complete rows of a CSV file that another process may be writing."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def last_row(path: Path) -> dict[str, str] | None:
    """Return the last complete row, or None if there is none."""
    rows = read_rows(path)
    return rows[-1] if rows else None


def last_known(rows: Sequence[dict[str, str]], column: str) -> float | None:
    """Return the last number in a column; a round that was not evaluated has none."""
    for row in reversed(rows):
        if row.get(column):
            return float(row[column])
    return None
