"""The privacy reports that finished runs have left in their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.runs.grid import REPORT
from flwr_sdp.strategies import PrivacyReport


def find_reports(path: Path) -> list[Path]:
    """Return the reports in a folder and below it, or the file itself.

    Raises
    ------
    CommandError
        If there is none.
    """
    if path.is_file():
        return [path]
    found = sorted(path.rglob(REPORT))
    if not found:
        raise CommandError(
            f"no {REPORT} in {path}: pass the folder of a run that ended, or a report"
            if path.is_dir()
            else f"{path} is not there: pass the folder of a run, or a {REPORT}"
        )
    return found


def read_report(path: Path) -> tuple[PrivacyReport, dict[str, Any]]:
    """Return a report, and all that stands in its file.

    Raises
    ------
    CommandError
        If the file cannot be read, or holds no privacy report.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CommandError(f"{path} holds no privacy report: it is not a JSON object")
    try:
        return PrivacyReport.from_dict(content), content
    except ValueError as error:
        raise CommandError(f"{path} holds no privacy report: {error}") from None
