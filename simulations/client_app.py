"""The simulated device: train locally, let the mod privatize what leaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.records import records_of
from simulations.engine.report_generator import report_generator
from simulations.engine.virtual_clients import virtual_clients
from simulations.settings import Settings
from simulations.tasks import Task, load_task

app = ClientApp()

# A generator of the GPU is fast, and not secure: the report says so.
_protect = SeparatedDPMod(rng=report_generator)


def protect_unless_baseline(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Apply the mod, except in the baseline run that a simulation is compared with.

    A device that is to be shipped has neither this switch nor the mod around it: it attaches
    ``SeparatedDPMod`` itself, first.
    """
    if context.run_config["baseline"] is True:
        return call_next(message, context)
    return _protect(message, context, call_next)


@app.train(mods=[virtual_clients, protect_unless_baseline])
def train(message: Message, context: Context) -> Message:
    """Train the received model on this client's data."""
    # The workers share the cores among them; and more threads may sum in another order.
    torch.set_num_threads(1)
    task = _task(tuple(context.run_config.items()))
    (config,) = records_of(message.content, ConfigRecord)
    (model,) = records_of(message.content, ArrayRecord)
    trained = task.local_update(
        model,
        client=int(context.node_config["partition-id"]),
        server_round=int(str(config["server-round"])),
    )
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


@lru_cache(maxsize=4)
def _task(run_config: tuple[tuple[str, Any], ...]) -> Task:
    """Return the task of a run config, which is read once for all clients of a worker."""
    settings = Settings.from_run_config(dict(run_config))
    return load_task(settings.task, settings.task_settings)


@app.query()
def partition(message: Message, context: Context) -> Message:
    """Tell which partition this simulated node is; Flower draws node ids anew for every run."""
    answer = MetricRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"partition": answer}), reply_to=message)
