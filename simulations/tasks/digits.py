"""Handwritten digits: scikit-learn's 1,797 real 8x8 images; a 64-128-10 network, d = 9,610."""

from __future__ import annotations

from torch import nn

from simulations.data.digits import HELD_OUT, digits, split
from simulations.data.preparation import rows
from simulations.data.sources import refuse_data_dir
from simulations.models.classification import Classification
from simulations.models.mlp import mlp
from simulations.tasks.task import TaskSettings

__all__ = ["HELD_OUT", "Digits", "task"]


class Digits(Classification):
    """The digits; which of them are held out, and which a client gets, the run's seed decides."""

    def __init__(self, settings: TaskSettings) -> None:
        name = settings.data.one_of(("digits",))
        refuse_data_dir(name, settings.data.folder)
        super().__init__(
            settings,
            split(*digits(), name, settings.seed),
            build=network,
            prepare=rows,
            shuffled=True,
        )


def task(settings: TaskSettings) -> Digits:
    """Return the task."""
    return Digits(settings)


def network() -> nn.Module:
    """Return a network of the task."""
    return mlp(64, 128, 10)
