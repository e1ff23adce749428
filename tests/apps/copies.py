"""Copies of the apps in this folder, with their patches or without, and what runs of them say."""

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from simulations.engine.local_grid import LocalGrid

FOLDER = Path(__file__).resolve().parent
NODES = 20
"""What the patches call the population."""

# How Flower logs what a server's own test finds, in the message API and in the legacy one.
_ACCURACY = re.compile(
    r"(?:└──> MetricRecord: \{|fit progress: \(\d+, [^{]*\{)'accuracy': ([\d.]+)"
)


def copy_app(name: str, to: Path, *patches: str, only: Iterable[str] = ()) -> Path:
    """Copy an app to a folder and apply patches of its own, or the `only` files of them."""
    shutil.copytree(FOLDER / name, to, ignore=shutil.ignore_patterns("__pycache__", "*.patch"))
    for patch in patches:
        included = (f"--include={file}" for file in only)
        command = ["git", "apply", *included, FOLDER / name / patch]
        subprocess.run(command, cwd=to, check=True)
    return to


def final_accuracy(log: str) -> float:
    """Return the last accuracy in a log of a ServerApp."""
    return float(_ACCURACY.findall(log)[-1])


# ------------------------------------------------------------------ in one process
@dataclass(frozen=True, kw_only=True)
class App:
    """An app that was imported."""

    client: Any
    server: Any
    run_config: dict[str, Any]


@contextmanager
def imported(folder: Path, **run_config: Any) -> Iterator[App]:
    """Import an app from its folder, and forget it in the end; `run_config` overrides its own."""
    facts = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        parts = {}
        for part, place in facts["components"].items():
            module, name = place.split(":")
            parts[part] = getattr(importlib.import_module(module), name)
        yield App(
            client=parts["clientapp"],
            server=parts["serverapp"],
            run_config={**facts["config"], **run_config},
        )
    finally:
        sys.path.remove(str(folder))
        package = facts["components"]["clientapp"].split(".")[0]
        for module in set(sys.modules) - known:
            if module.split(".")[0] == package:
                del sys.modules[module]


class RecordingGrid(LocalGrid):
    """Keeps every request and its reply."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exchanges: list[tuple[Message, Message]] = []

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)  # the legacy server asks for it

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        requests = {message_id: self._requests[message_id] for message_id in message_ids}
        replies = list(super().pull_messages(message_ids))
        self.exchanges += [(requests[each.metadata.reply_to_message_id], each) for each in replies]
        return replies

    def exchanged(self, message_type: str) -> list[tuple[Message, Message]]:
        return [pair for pair in self.exchanges if pair[0].metadata.message_type == message_type]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What there is after a run."""

    accuracy: float
    log: str
    grid: RecordingGrid
    folder: Path


def run_here(folder: Path, caplog: pytest.LogCaptureFixture, **run_config: Any) -> Run:
    """Run an app in this process, one node after the other; its files are in its folder."""
    caplog.clear()
    with imported(folder, **run_config) as app, chdir(folder), caplog.at_level("INFO", "flwr"):
        grid = RecordingGrid(app.client, NODES, app.run_config)
        context = Context(
            run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=app.run_config
        )
        app.server(grid, context)
    return Run(accuracy=final_accuracy(caplog.text), log=caplog.text, grid=grid, folder=folder)
