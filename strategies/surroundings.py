"""What a round depends on beside the model and the strategy: configs and global generators.

Flower hands the same two configs to every round, and a strategy may change them as it goes: a
schedule of learning rates. It draws the nodes of an evaluation from Python's own generator.
"""

from __future__ import annotations

import random
import sys
from copy import deepcopy
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from flwr_sdp.strategies.journal import is_same, require_same_settings

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

        None is the run's own; others have passed :func:`require_same_configs`.
        """
        run = self.configs.get(name)
        if config is None or run is None:
            return self.hand(name, run if config is None else config)
        content = deepcopy(dict(run))
        config.clear()
        config.update(content)
        return self.hand(name, config)

    def state(self) -> dict[str, Any]:
        """Return all of it as plain data; two names of one config stay that."""
        content = {id(config): deepcopy(dict(config)) for config in self.configs.values()}
        state = {
            "given": deepcopy(self._given),
            "configs": {name: content[id(config)] for name, config in self.configs.items()},
            "random": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - strategies may draw from it
        }
        if "torch" in sys.modules:  # so they may from this one
            state["torch"] = sys.modules["torch"].get_rng_state().numpy()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned; from nothing, go on as it is."""
        if not state:
            return
        self._given = state["given"]
        made = {id(content): ConfigRecord(content) for content in state["configs"].values()}
        self.configs = {name: made[id(content)] for name, content in state["configs"].items()}
        random.setstate(state["random"])
        np.random.set_state(state["numpy"])  # noqa: NPY002
        if "torch" in state:
            import torch

            torch.set_rng_state(torch.from_numpy(state["torch"]))


def require_same_configs(configs: dict[str, ConfigRecord | None], state: dict[str, Any]) -> None:
    """Raise :class:`CheckpointError` if a config is not that of a run, naming the key that differs.

    Parameters
    ----------
    configs : dict
        As the run was started with them, or as they stand; None is whatever the run has.
    state : dict
        What :meth:`Surroundings.state` returned in the run.
    """
    for name, config in configs.items():
        run = state.get("configs", {}).get(name)
        if config is None or run is None:
            continue
        ours, given = _settings(config), _settings(state["given"].get(name, run))
        if not is_same(ours, _settings(run)):
            require_same_settings({name: ours}, {name: given})


def _settings(config: Any) -> dict[str, Any]:
    """Return a config without the round, which Flower's strategies write into it."""
    return {key: value for key, value in config.items() if key != "server-round"}
