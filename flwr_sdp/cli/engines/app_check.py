"""Ask the app itself whether it takes the run configs, before anything starts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr_sdp.cli.engines.app_facts import AppFacts
from flwr_sdp.cli.engines.app_module import ask
from flwr_sdp.cli.engines.local_engine import MODULE, has_engine
from flwr_sdp.cli.runs.grid import Run
from flwr_sdp.cli.runs.run_config import whole_run_config


def check_with_app(runs: Iterable[Run], app_dir: Path) -> AppFacts | None:
    """Have the app read the settings and the data of its runs, if it has ``simulations/engine``.

    Ray takes half a minute to start; a wrong value or a missing file is found before that. An app
    without the module finds out in its first run.

    Returns
    -------
    AppFacts or None
        What the check has found out; None for an app that does not say.

    Raises
    ------
    CommandError
        If a value is out of range or a file is missing, in the app's words.
    """
    if not has_engine(app_dir):
        return None
    configs = [whole_run_config(run, resume=False) for run in runs]
    facts = ask_app(app_dir, "--check", configs)
    return None if facts is None else AppFacts.from_json(facts)


def ask_app(app_dir: Path, option: str, question: Any) -> dict[str, Any] | None:
    """Return what the app's engine prints for an option, the JSON object in its last line.

    Raises
    ------
    CommandError
        If it fails, with the last line of its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "question.json"
        path.write_text(json.dumps(question), encoding="utf-8")
        printed = ask(app_dir, MODULE, option, str(path))
    lines = printed.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return None
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer
