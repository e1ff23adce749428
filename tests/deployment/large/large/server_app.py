"""One round of ClipAndNoise over Flower's own grid, and how many replies it was given at once."""

import json
import resource
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flwr_sdp.strategies import ClipAndNoise, poisson_accountant

DIM = 3_274_634  # 13 MB in single precision

app = ServerApp()


class CountingGrid:
    """The grid of the run; it notes what each pull brought."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.pulled: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        self.pulled += [len(replies)] if replies else []
        return replies


@app.main()
def main(grid: Grid, context: Context) -> None:
    counting = CountingGrid(grid)
    nodes = int(context.run_config["min-nodes"])
    strategy = ClipAndNoise(
        FedAvg(fraction_evaluate=0.0),
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        min_available_nodes=nodes,
    )
    poisson_accountant(population=nodes, delta=1e-5)  # what it imports is none of the replies
    weights = np.random.default_rng(0).normal(size=DIM).astype(np.float32)
    model = ArrayRecord({"weights": Array(weights)})
    del weights
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    strategy.start(counting, model, num_rounds=1, timeout=120.0)
    results = {
        "grid": type(grid).__name__,
        "model-mib": 4 * DIM / 2**20,
        "before-mib": before,
        "pulled": counting.pulled,
        "last-round": strategy.last_round,
    }
    Path(str(context.run_config["output-dir"]), "memory.json").write_text(json.dumps(results))
