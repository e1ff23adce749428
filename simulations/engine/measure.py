"""One client of a run, measured: seconds, memory, sizes of messages."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from flwr_sdp.clients import UpdateLayout
from flwr_sdp.clients.testing import enter_run
from flwr_sdp.records import records_of
from flwr_sdp.strategies.tally import Tally
from simulations import client_app
from simulations.engine.check import message_bytes
from simulations.engine.cohort_message import CohortRequest
from simulations.engine.local_grid import LocalGrid
from simulations.engine.process_memory import (
    gpu_memory,
    own_memory,
    peak_memory,
    reset_peak_memory,
    resident_memory,
)
from simulations.server_app import check_run
from simulations.settings import Settings
from simulations.tasks import load_task

_ASKED = 2  # the first has the start of everything in it


def measure(config: Mapping[str, Any]) -> dict[str, Any]:
    """Have two clients of a run train and privatize, and evaluate the model once, as on Ray.

    A node stands for the clients, as a few do where many clients are to be run fast.

    Returns
    -------
    dict
        Seconds of the first and the second client and of the evaluation; bytes of this process
        before it trained, at its peak, and what training added; of the GPU, or None; of messages;
        and what the run says about cohorts.

    Raises
    ------
    ValueError, FileNotFoundError
        Whatever keeps the run from running.
    RuntimeError
        If a client fails.
    """
    enter_run()
    settings = Settings.from_run_config({**config, "num-nodes": 1})
    task = load_task(settings.task, settings.task_settings)
    model = task.initial_model()
    own, before = own_memory(), resident_memory()
    reset_peak_memory()
    seconds, reply_bytes = _asked(config, settings, model)
    peak = peak_memory()
    start = time.perf_counter()
    task.evaluate(model)
    evaluation_seconds = time.perf_counter() - start
    gpu = gpu_memory()
    return {
        "dim": UpdateLayout.of(model).dim,
        "first-seconds": seconds[0],
        "second-seconds": seconds[1],
        "evaluation-seconds": evaluation_seconds,
        "memory": own,
        "peak-memory": peak,
        "client-memory": None if peak is None or before is None else max(0, peak - before),
        "gpus": torch.cuda.device_count(),
        "gpu-memory": None if gpu is None else asdict(gpu),
        "request-bytes": message_bytes(model),
        "reply-bytes": reply_bytes,
        "num-clients": settings.num_clients,
        "cohort": settings.expected_cohort,
        "evaluate-every": settings.evaluate_every,
    }


def _asked(
    config: Mapping[str, Any], settings: Settings, model: ArrayRecord
) -> tuple[list[float], int]:
    """Ask clients one after the other, by messages that are those of the run.

    Returns the seconds of each, and the size of the last reply.
    """
    grid = LocalGrid(client_app.app, 1, config)
    seconds, size = [], 0
    for number in range(_ASKED):
        message = Message(
            _content(settings, model, client=number % settings.num_clients),
            1,
            MessageType.TRAIN,
        )
        start = time.perf_counter()
        (reply,) = grid.send_and_receive([message])
        seconds.append(time.perf_counter() - start)
        reason = _failure(reply)
        if reason is not None:
            raise RuntimeError(
                f"a client failed, flwr-sdp simulate --engine local shows how: {reason}"
            )
        size = sum(message_bytes(record) for record in records_of(reply.content, ArrayRecord))
    return seconds, size


def _failure(reply: Message) -> str | None:
    """Return why a client failed, or None; a node that stands for many says it in its tally."""
    if reply.has_error():
        return str(reply.error.reason)
    if "tally" not in reply.content:
        return None
    tally = Tally.from_dict(json.loads(str(reply.content["tally"]["json"])))
    return None if tally.used else "; ".join(tally.exceptions)


def _content(settings: Settings, model: ArrayRecord, *, client: int) -> RecordDict:
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})})
    if settings.num_nodes == settings.num_clients:
        return content
    strategy = check_run(settings, model)
    return CohortRequest(
        clients=(client,),
        clip_norm=strategy.clip_norm,
        selection=strategy.selection,
        require_local_dp=strategy.require_local_dp,
    ).added_to(content)
