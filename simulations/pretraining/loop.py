"""The training loop: Adam, an evaluation now and then, the best weights kept."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flwr_sdp import KeystreamGenerator, seeded_generator
from simulations.models.local_training import Loss, cross_entropy
from simulations.pretraining.settings import PretrainSettings

METRICS = "metrics.csv"

Batch = Callable[[KeystreamGenerator], tuple[torch.Tensor, torch.Tensor]]
"""Draws inputs and labels, on the device of the network."""

Evaluate = Callable[[], dict[str, float]]
"""Returns metrics of the network as it is, ``accuracy`` among them."""


def pretrain(
    network: nn.Module,
    *,
    batch: Batch,
    evaluate: Evaluate,
    settings: PretrainSettings,
    output: Path,
    loss: Loss = cross_entropy,
) -> dict[str, float]:
    """Train all of a network, leave it with its best weights, and return how good they are.

    Every evaluation is a line on the screen and a row of ``metrics.csv`` in `output`.

    Raises
    ------
    FloatingPointError
        If the loss is no longer a number.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    rng = seeded_generator(settings.seed, "pretraining", "batches")
    best: dict[str, float] = {"accuracy": -math.inf}
    weights: dict[str, torch.Tensor] = {}
    started, losses = time.perf_counter(), []
    output.mkdir(parents=True, exist_ok=True)
    with (output / METRICS).open("w", newline="", encoding="utf-8") as file:
        table = _Table(file)
        for step in range(1, settings.steps + 1):
            network.train()
            value = loss(network, *batch(rng))
            optimizer.zero_grad()
            torch.autograd.backward(value)
            optimizer.step()
            schedule.step()
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(
                    f"the loss is {losses[-1]} after {step} steps: lower learning-rate, which is "
                    f"{settings.learning_rate}"
                )
            if step % settings.evaluate_every and step != settings.steps:
                continue
            network.eval()
            scores = evaluate()
            if scores["accuracy"] > best["accuracy"]:
                best = {"step": step, **scores}
                weights = {name: each.clone() for name, each in network.state_dict().items()}
            training_loss, losses = math.fsum(losses) / len(losses), []
            table.write(
                {
                    "step": step,
                    "training-loss": training_loss,
                    **scores,
                    "seconds": time.perf_counter() - started,
                }
            )
            print(
                f"[{step}/{settings.steps}] training loss {training_loss:.4f}  "
                f"accuracy {scores['accuracy']:.4f}",
                flush=True,
            )
    network.load_state_dict(weights)
    network.eval()
    return best


class _Table:
    """A CSV file whose first row says its columns, and which can be read while it grows."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._writer: csv.DictWriter[str] | None = None

    def write(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()
