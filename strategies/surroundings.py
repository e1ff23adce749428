"""What a round depends on beside the model and the strategy: configs and global generators.

Flower hands the same two configs to every round, and a strategy may change them as it goes: a
schedule of learning rates. It draws the nodes of an evaluation from Python's own generator.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from flwr_sdp.strategies.journal import require_same_settings

TRAIN, EVALUATE = "train_config", "evaluate_config"


class Surroundings:
    """The configs of a run, as they were given and as they stand, and the global generators.

    Attributes
    ----------
    configs : dict[str, ConfigRecord]
        The very records that rounds are handed, `TRAIN` and `EVALUATE`.
    """

    def __init__(self) -> None:
        self.configs: dict[str, ConfigRecord] = {}
        self._given: dict[str, dict[str, Any]] = {}

    def hand(self, name: str, config: ConfigRecord | None) -> ConfigRecord:
        """Note what rounds are handed from now on, and return it."""
        config = ConfigRecord() if config is None else config
        self.configs[name] = config
        self._given.setdefault(name, deepcopy(dict(config)))
        return config

    def hand_on(self, name: str, config: ConfigRecord | None) -> ConfigRecord:
        """Give a record the content it has in the run that is resumed, and hand it on.

        Parameters
        ----------
        name : str
            Which it is.
        config : ConfigRecord or None
            As the run was started with it, or as it stands. None is that of the run.

        Raises
        ------
        CheckpointError
            If it is another one, naming the first key that differs.
        """
        run = self.configs.get(name)
        if config is None or run is None:
            return self.hand(name, run if config is None else config)
        if _settings(config) != _settings(run):
            require_same_settings(
                {name: _settings(config)}, {name: _settings(self._given.get(name, run))}
            )
        content = deepcopy(dict(run))
        config.clear()
        config.update(content)
        return self.hand(name, config)

    def state(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "given": deepcopy(self._given),
            "configs": {name: deepcopy(dict(config)) for name, config in self.configs.items()},
            "random": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - strategies may draw from it
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned; from nothing, go on as it is."""
        if not state:
            return
        self._given = state["given"]
        self.configs = {name: ConfigRecord(config) for name, config in state["configs"].items()}
        random.setstate(state["random"])
        np.random.set_state(state["numpy"])  # noqa: NPY002


def _settings(config: Any) -> dict[str, Any]:
    """Return a config without the round, which Flower's strategies write into it."""
    return {key: value for key, value in config.items() if key != "server-round"}
