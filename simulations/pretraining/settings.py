"""What a pretraining does, and the file that says it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from flwr_sdp import _validate
from simulations.config_reader import ConfigReader
from simulations.tasks import ModelSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainSettings:
    """One pretraining; a field for each key of its file, of which only two have no default.

    Attributes
    ----------
    task : str
        The task whose model it is.
    steps : int
        Steps of Adam.
    data, data_dir, download, image_size
        The **public** data, as for :class:`simulations.tasks.TaskSettings`.
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
    data: str = ""
    data_dir: Path | None = None
    download: bool = False
    image_size: int = 224
    seed: int = 0
    batch_size: int = 64
    learning_rate: float = 1e-3
    evaluate_every: int = 200
    model: ModelSettings = field(default_factory=ModelSettings)

    @classmethod
    def from_file(cls, path: Path) -> PretrainSettings:
        """Return the settings in a TOML file.

        Raises
        ------
        ValueError
            Naming the first key that is missing, unknown or out of range.
        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
        for key in content:
            _validate.choice("a key of the file", key, ("task", "steps", *_DEFAULTS))
        read = ConfigReader({**_DEFAULTS, **content})
        return cls(
            task=read.text("task"),
            steps=read.integer("steps", minimum=1),
            data=read.text("data"),
            data_dir=read.path("data-dir"),
            download=read.flag("download"),
            image_size=read.integer("image-size", minimum=32),
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
