"""The Polyak average of the released models: post-processing, and so free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_sdp._files import write_whole

_ROUND, _COUNT = "/last-round", "/count"


class PolyakAverage:
    """The average of all models from one round on (Polyak and Juditsky, 1992).

    Parameters
    ----------
    first_round : int
        The first round whose model counts.
    path : Path, optional
        Where to keep the average after each round, for a run that may be resumed.
    """

    def __init__(self, first_round: int, path: Path | None = None) -> None:
        self._first_round = first_round
        self._path = path
        self._last_round = 0
        self._count = 0
        self._means: dict[str, NDArray[Any]] = {}

    def resume(self, server_round: int) -> None:
        """Take up the average as it was after a round, or before it.

        Raises
        ------
        ValueError
            If what is kept is of another round: the models in between are gone.
        """
        if server_round < self._first_round:
            return
        if self._path is None or not self._path.exists():
            if server_round == self._first_round:
                return
            raise ValueError(
                f"average-from={self._first_round} cannot be resumed: no average is kept at "
                f"{self._path}; start a new run"
            )
        with np.load(self._path) as kept:
            self._means = {name: kept[name] for name in kept.files if name[0] != "/"}
            self._last_round, self._count = int(kept[_ROUND]), int(kept[_COUNT])
        if self._last_round not in (server_round - 1, server_round):
            raise ValueError(
                f"average-from={self._first_round} cannot be resumed after round {server_round}: "
                f"the average at {self._path} is that after round {self._last_round}; start a new "
                "run"
            )

    def add(self, server_round: int, model: ArrayRecord) -> ArrayRecord | None:
        """Take in the model of a round, and return the average; None before the first round."""
        if server_round < self._first_round:
            return None
        if server_round > self._last_round:
            self._count += 1
            for name, array in model.items():
                numbers = array.numpy()
                if not np.issubdtype(numbers.dtype, np.floating) or self._count == 1:
                    self._means[name] = np.array(numbers)  # a counter is the last one's
                else:
                    mean = self._means[name].astype(np.float64)
                    self._means[name] = mean + (numbers - mean) / self._count
            self._last_round = server_round
            self._keep()
        return ArrayRecord(
            {
                name: Array(np.asarray(self._means[name], dtype=array.numpy().dtype))
                for name, array in model.items()
            }
        )

    def _keep(self) -> None:
        if self._path is None:
            return
        facts: dict[str, Any] = {_ROUND: self._last_round, _COUNT: self._count}
        write_whole(
            self._path,
            lambda file: np.savez(file, allow_pickle=False, **facts, **self._means),
        )
