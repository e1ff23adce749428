"""The run file of an audit, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.audit.images import PIXELS
from simulations.config_reader import ConfigReader, read_toml

_TASKS = ("digits",)
_MAX_IMAGES = 1697  # of 1,797: a hundred at least are the onlooker's own


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What an audit attacks, how often, and at which budgets; one field for each key.

    Keys of a section of the run file have its name in front, as errors print them: the key
    ``trials`` of ``[linear]`` is ``linear.trials``, here ``linear_trials``.
    """

    task: str
    seed: int
    confidence: float
    # the attacks on the update of one image
    epsilon_directions: tuple[float, ...]
    epsilon_magnitude: float
    max_norm: float
    tolerance: float
    linear_trials: int
    inversion_trials: int
    inversion_steps: int
    confined_trials: int
    confined_reports: int
    # on the release of an image
    low_frequency_epsilons: tuple[float, ...]
    low_frequency_dim_target: int
    low_frequency_tolerance: float
    low_frequency_trials: int
    # on the release of a set of words
    words_epsilons: tuple[float, ...]
    words_dictionary_size: int
    words_batch_size: int
    words_precision: float
    words_recall: float
    words_trials: int
    # on the claim itself
    distinguish_epsilons: tuple[float, ...]
    distinguish_dim: int
    distinguish_outputs: int
    # the picture
    picture_rows: int
    picture_probability: float

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Return the settings of a run file.

        Raises
        ------
        ValueError
            If it cannot be read, or naming the first key that is unknown, missing or out of range.
        """
        return cls.from_config(read_toml(path))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a run file's content."""
        read = ConfigReader(_flat(config), "the run file: see conf/audit/digits.toml")
        batch_size = read.integer("words.batch-size", minimum=1)
        settings = cls(
            task=read.choice("task", _TASKS),
            seed=read.integer("seed", minimum=0),
            confidence=read.number("confidence", minimum=0.5, below=1.0),
            epsilon_directions=read.numbers("epsilon-directions", above=0.0),
            epsilon_magnitude=read.number("epsilon-magnitude", above=0.0),
            max_norm=read.number("max-norm", above=0.0),
            tolerance=read.number("tolerance", above=0.0, below=1.0),
            linear_trials=read.integer("linear.trials", minimum=1, maximum=_MAX_IMAGES),
            inversion_trials=read.integer("inversion.trials", minimum=1, maximum=_MAX_IMAGES),
            inversion_steps=read.integer("inversion.steps", minimum=1),
            confined_trials=read.integer("confined.trials", minimum=2, maximum=_MAX_IMAGES),
            confined_reports=read.integer("confined.reports", minimum=2),
            low_frequency_epsilons=read.numbers("low-frequency.epsilons", above=0.0),
            low_frequency_dim_target=read.integer(
                "low-frequency.dim-target", minimum=2, maximum=PIXELS
            ),
            low_frequency_tolerance=read.number("low-frequency.tolerance", above=0.0, below=1.0),
            low_frequency_trials=read.integer("low-frequency.trials", minimum=1),
            words_epsilons=read.numbers("words.epsilons", above=0.0),
            words_dictionary_size=read.integer("words.dictionary-size", minimum=batch_size + 1),
            words_batch_size=batch_size,
            words_precision=read.number("words.precision", above=0.0, maximum=1.0),
            words_recall=read.number("words.recall", above=0.0, maximum=1.0),
            words_trials=read.integer("words.trials", minimum=1),
            distinguish_epsilons=read.numbers("distinguish.epsilons", above=0.0),
            distinguish_dim=read.integer("distinguish.dim", minimum=2),
            distinguish_outputs=read.integer("distinguish.outputs", minimum=4),
            picture_rows=read.integer("picture.rows", minimum=1, maximum=10),
            picture_probability=read.number("picture.probability", above=0.0, below=1.0),
        )
        read.refuse_others()
        return settings


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of all sections, each with the name of its section in front."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[key] = value
    return flat
