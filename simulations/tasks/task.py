"""What a task provides."""

from __future__ import annotations

from typing import Protocol

from flwr.app import ArrayRecord


class Task(Protocol):
    """A model, its data, its local update and its evaluation.

    Everything random in a task is drawn from the run's seed, the purpose and the partition, so that
    data and training are the same however many workers run them.
    """

    def initial_model(self) -> ArrayRecord:
        """Return the model before training."""
        ...

    def local_update(
        self, model: ArrayRecord, *, partition: int, steps: int, learning_rate: float
    ) -> ArrayRecord:
        """Return `model` after local training on one client's data."""
        ...

    def evaluate(self, model: ArrayRecord) -> dict[str, float]:
        """Return metrics of `model` on data that no client holds, ``accuracy`` among them."""
        ...
