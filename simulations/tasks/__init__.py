"""The tasks: one file each. Adding a task is adding a file with a ``task`` function."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from simulations.tasks.task import Task

__all__ = ["Task", "load_task"]


def load_task(name: str, *, seed: int, num_clients: int) -> Task:
    """Return the task of ``simulations/tasks/<name>.py``.

    Raises
    ------
    ValueError
        If there is no such file; the message lists those there are.
    """
    folder = Path(__file__).parent
    names = sorted(p.stem for p in folder.glob("*.py") if p.stem not in ("__init__", "task"))
    if name not in names:
        raise ValueError(f"task must be one of {', '.join(names)}; got {name!r}")
    module = import_module(f"simulations.tasks.{name}")
    task: Task = module.task(seed=seed, num_clients=num_clients)
    return task
