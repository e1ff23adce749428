"""The tasks: one file each. Adding a task is adding a file with a ``task`` function."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from simulations.tasks.task import DataSettings, LocalTraining, ModelSettings, Task, TaskSettings

__all__ = [
    "DataSettings",
    "LocalTraining",
    "ModelSettings",
    "Task",
    "TaskSettings",
    "load_task",
    "task_module",
]


@lru_cache(maxsize=4)
def load_task(name: str, settings: TaskSettings) -> Task:
    """Return the task of ``simulations/tasks/<name>.py``; a worker loads it once for all clients.

    Raises
    ------
    ValueError
        If there is no such file; the message lists those there are. Whatever else is wrong with
        the settings, the task says.
    """
    task: Task = task_module(name).task(settings)
    return task


def task_module(name: str) -> ModuleType:
    """Return ``simulations/tasks/<name>.py``, or raise ``ValueError`` with the names there are."""
    folder = Path(__file__).parent
    names = sorted(p.stem for p in folder.glob("*.py") if p.stem not in ("__init__", "task"))
    if name not in names:
        raise ValueError(f"task must be one of {', '.join(names)}; got {name!r}")
    return import_module(f"simulations.tasks.{name}")
