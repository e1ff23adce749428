"""What a task provides, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr.app import ArrayRecord

from flwr_sdp import _validate
from simulations.config_reader import ConfigReader


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """How a client trains, see :mod:`simulations.models.local_training`.

    Attributes
    ----------
    steps : int
        Gradient steps.
    learning_rate : float
        Their stepsize.
    optimizer : str
        ``"sgd"`` or ``"adam"``.
    batch_size : int or None
        Examples of a step; None for all that the client holds.
    proximal_stepsize : float or None
        The stepsize in the proximal term ``||theta - theta_0||^2 / (2 stepsize)`` of the local
        objective; None for the objective without it.
    """

    steps: int
    learning_rate: float
    optimizer: str = "sgd"
    batch_size: int | None = None
    proximal_stepsize: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Which data a run or a pretraining uses.

    Attributes
    ----------
    name : str
        Of the data set, see :mod:`simulations.data.sources` and
        :mod:`simulations.data.text.sources`; empty for the task's own.
    folder : Path or None
        Where its files are; None for the usual place.
    download : bool
        Whether missing files may be fetched.
    image_size : int
        Pixels along an axis, of images that are in files of any size.
    """

    name: str = ""
    folder: Path | None = None
    download: bool = False
    image_size: int = 224

    @classmethod
    def read(cls, read: ConfigReader) -> DataSettings:
        """Return what a run config, or the file of a pretraining, says."""
        return cls(
            name=read.text("data"),
            folder=read.path("data-dir"),
            download=read.flag("download"),
            image_size=read.integer("image-size", minimum=32),
        )

    def one_of(self, names: tuple[str, ...]) -> str:
        """Return the name of the data set, the first of `names` if none is given.

        Raises
        ------
        ValueError
            If it is another one.
        """
        return _validate.choice("data", self.name or names[0], names)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """What a run says about its model, where its task leaves a choice.

    Attributes
    ----------
    weights : Path or None
        Folder of pretrained weights; None for an untrained model. They say the sizes that follow.
    width : int or None
        Units of a hidden layer; None for the task's own.
    vocabulary_size : int or None
        Words that an untrained language model knows; None for the task's own.
    sequence_length : int
        Tokens of a sentence that a language model reads; the rest is cut off.
    trained_part : str
        What is trained of a model with frozen weights; empty for the task's own.
    adapter_rank : int
        Of low-rank adapters.
    """

    weights: Path | None = None
    width: int | None = None
    vocabulary_size: int | None = None
    sequence_length: int = 32
    trained_part: str = ""
    adapter_rank: int = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSettings:
    """What a run says about its task; a task is the same for equal settings.

    Attributes
    ----------
    num_clients : int
        The population.
    seed : int
        From it, a purpose, a client and a round, everything random in a task is drawn.
    data : DataSettings
        Which data.
    partition : str
        Which examples a client holds, see :mod:`simulations.data.partition`.
    examples_per_client : int or None
        For the partitions that draw them.
    dirichlet_alpha : float
        For ``"dirichlet"``.
    training : LocalTraining
        How a client trains.
    model : ModelSettings
        Which model.
    """

    num_clients: int
    seed: int
    training: LocalTraining
    data: DataSettings = DataSettings()
    partition: str = "deal"
    examples_per_client: int | None = None
    dirichlet_alpha: float = 0.5
    model: ModelSettings = ModelSettings()


class Task(Protocol):
    """A model, its data, its local update and its evaluation.

    Everything random in a task is drawn from the run's seed, the purpose, the client and the round,
    so that data and training are the same however many workers run them.
    """

    data_name: str
    """What figures call data and model: a stand-in is named as one."""

    metrics: tuple[str, ...]
    """What `evaluate` returns beside ``accuracy`` and ``loss``."""

    def initial_model(self) -> ArrayRecord:
        """Return what is trained of the model, before training.

        This alone is sent, to clients and back. What is frozen, whoever loads the task has.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write what a model of the run cannot be used without, such as a vocabulary."""
        ...

    def local_update(self, model: ArrayRecord, *, client: int, server_round: int) -> ArrayRecord:
        """Return `model` after local training on one client's data; as it is if there are none."""
        ...

    def evaluate(self, model: ArrayRecord) -> dict[str, float]:
        """Return metrics of `model` on data that no client holds, ``accuracy`` among them."""
        ...
