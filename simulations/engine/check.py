"""Run configs checked, and what the launcher has to know of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord

from flwr_sdp.clients import UpdateLayout
from simulations.engine.process_memory import own_memory
from simulations.server_app import check_run
from simulations.settings import Settings
from simulations.tasks import load_task


def check(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Read the settings and the data of runs, train nothing, and return facts about them.

    Returns
    -------
    dict
        ``"gpus"`` that this process sees; ``"memory"``, the bytes of its own once the first task is
        loaded, or None; and for each of ``"runs"`` how many ``"messages"`` there are at once, and
        their ``"request-bytes"`` and ``"reply-bytes"``.

    Raises
    ------
    ValueError, FileNotFoundError
        Whatever keeps a run from running.
    """
    memory: int | None = None
    runs: list[dict[str, Any]] = []
    for config in configs:
        settings = Settings.from_run_config(config)
        # Files are the same for every seed: those of one are read, and no more.
        task = load_task(settings.task, replace(settings.task_settings, seed=0))
        model = task.initial_model()
        check_run(settings, model)
        if not runs:
            memory = own_memory()
        request = message_bytes(model)
        stands_for_many = settings.num_nodes < settings.num_clients
        runs.append(
            {
                "messages": min(settings.num_nodes, math.ceil(settings.expected_cohort)),
                "request-bytes": request,
                # A node that stands for many clients replies with a sum, in double precision.
                "reply-bytes": 8 * UpdateLayout.of(model).dim if stands_for_many else request,
            }
        )
    return {"gpus": torch.cuda.device_count(), "memory": memory, "runs": runs}


def message_bytes(arrays: ArrayRecord) -> int:
    """Return the size of the arrays in a message."""
    return sum(len(array.data) for array in arrays.values())
