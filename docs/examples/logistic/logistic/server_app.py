"""The server: a strategy by name, a test on made-up rows, the results in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.app.user_config import UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from flwr_sdp import SeparatedBudget, SeparatedMechanism
from flwr_sdp.strategies import ClipAndNoise
from logistic import model
from logistic.data import draw

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and keep what came of them."""
    config = context.run_config
    strategy = make_strategy(config)
    result = strategy.start(
        grid,
        ArrayRecord({"coefficients": Array(model.initial())}),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=evaluate,
    )
    if config["output-dir"]:
        save(Path(str(config["output-dir"])), strategy, result)


def make_strategy(config: UserConfig) -> Strategy:
    """Return the strategy that the run config names."""
    nodes = int(config["min-nodes"])
    # What a device would say of its data in an evaluation is not private, so none is asked.
    average = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    if config["strategy"] == "fedavg":
        return average
    if config["strategy"] != "clip-and-noise":
        raise ValueError(f"strategy must be fedavg or clip-and-noise; got {config['strategy']!r}")
    budget = SeparatedBudget(
        epsilon_direction=float(config["sdp-epsilon-direction"]),
        epsilon_magnitude=float(config["sdp-epsilon-magnitude"]),
    )
    mechanism = SeparatedMechanism.from_budget(model.DIM, budget, float(config["sdp-max-norm"]))
    return ClipAndNoise(
        average,
        mechanism=mechanism,
        noise_multiplier=float(config["sdp-noise-multiplier"]),
        sampling_rate=float(config["sdp-sampling-rate"]),
        population=int(config["sdp-population"]) or None,
        min_available_nodes=nodes,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test on rows that are nobody's."""
    coefficients = arrays["coefficients"].numpy()
    return MetricRecord({"accuracy": model.accuracy(coefficients, *draw(2000, seed=0))})


def save(folder: Path, strategy: Strategy, result: Result) -> None:
    """Write the model, the metrics of each round, and what was guaranteed to whom."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "coefficients.npy", result.arrays["coefficients"].numpy())
    rounds = {
        "train": result.train_metrics_clientapp,
        "test": result.evaluate_metrics_serverapp,
    }
    metrics = {
        name: {number: dict(record) for number, record in by_round.items()}
        for name, by_round in rounds.items()
    }
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    if isinstance(strategy, ClipAndNoise):
        (folder / "report.json").write_text(strategy.report().to_json())
        (folder / "report.txt").write_text(strategy.report().to_text() + "\n")
