"""The whole run config of one run, the launcher's own keys among it."""

from __future__ import annotations

from typing import Any

from flwr_sdp.cli.runs.grid import Run
from flwr_sdp.cli.runs.run_file import RESUME_KEY


def whole_run_config(run: Run, *, resume: bool) -> dict[str, Any]:
    """Return the run config that the app is to see."""
    return {
        **run.config,
        "baseline": run.baseline,
        "output-dir": str(run.folder),
        RESUME_KEY: resume,
    }
