"""A small network, so that what the engine costs is most of a round."""

from __future__ import annotations

from functools import lru_cache

from simulations.data.digits import digits, split
from simulations.data.preparation import rows
from simulations.models.classification import Classification
from simulations.models.mlp import mlp
from simulations.tasks.task import TaskSettings


@lru_cache(maxsize=1)
def small_task(settings: TaskSettings) -> Classification:
    """Return 8x8 images and a 64-32-10 network, loaded once in a process."""
    images = split(*digits(), "digits", settings.seed)
    return Classification(settings, images, build=lambda: mlp(64, 32, 10), prepare=rows)
