"""What a pretraining does, and the file that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_sdp import _validate
from simulations.config_reader import ConfigReader, read_toml
from simulations.tasks import DataSettings, ModelSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainSettings:
    """One pretraining; a field for each key of its file, of which only two have no default.

    Attributes
    ----------
    task : str
        The task whose model it is.
    steps : int
        Steps of Adam.
    data : DataSettings
        The **public** data.
    seed : int
        From it the initial weights and the batches are drawn.
    batch_size : int
        Examples of a step.
    learning_rate : float
        Of Adam at the first step; it falls to zero with the last along half a cosine.
    evaluate_every : int
        Steps between evaluations; the best of the models that were evaluated is kept.
    model : ModelSettings
        Which model.
    """

    task: str
    steps: int
    data: DataSettings
    seed: int
    batch_size: int
    learning_rate: float
    evaluate_every: int
    model: ModelSettings

    @classmethod
    def from_file(cls, path: Path) -> PretrainSettings:
        """Return the settings in a TOML file.

        Raises
        ------
        ValueError
            If it cannot be read, or naming the first key that is missing, unknown or out of range.
        """
        return cls.from_config(read_toml(path))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PretrainSettings:
        """Return the settings of a file's content."""
        for key in config:
            _validate.choice("a key of the file", key, ("task", "steps", *_DEFAULTS))
        read = ConfigReader({**_DEFAULTS, **config}, "the file")
        return cls(
            task=read.text("task"),
            steps=read.integer("steps", minimum=1),
            data=DataSettings.read(read),
            seed=read.integer("seed", minimum=0),
            batch_size=read.integer("batch-size", minimum=1),
            learning_rate=read.number("learning-rate", above=0.0),
            evaluate_every=read.integer("evaluate-every", minimum=1),
            model=ModelSettings(
                width=read.integer("model-width", minimum=0) or None,
                vocabulary_size=read.integer("vocabulary-size", minimum=0) or None,
                sequence_length=read.integer("sequence-length", minimum=1),
            ),
        )


_DEFAULTS = {
    "data": "",
    "data-dir": "",
    "download": False,
    "image-size": 224,
    "seed": 0,
    "batch-size": 64,
    "learning-rate": 1e-3,
    "evaluate-every": 200,
    "model-width": 0,
    "vocabulary-size": 0,
    "sequence-length": 32,
}
