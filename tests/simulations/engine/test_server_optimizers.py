"""Server optimisers by name, inside ClipAndNoise."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from simulations.engine.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer

CLASSES = {
    "fedavg": FedAvg, "fedavgm": FedAvgM, "fedadagrad": FedAdagrad, "fedadam": FedAdam,
    "fedyogi": FedYogi,
}  # fmt: skip


def test_every_name_has_its_strategy():
    assert set(SERVER_OPTIMIZERS) == set(CLASSES)
    for name, kind in CLASSES.items():
        optimizer = ServerOptimizer(name=name, learning_rate=0.5, momentum=0.8)
        assert type(optimizer.strategy()) is kind
        assert optimizer.strategy().fraction_evaluate == 0.0


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_learning_rate_counts_once(name):
    """In the mean or in the optimiser, never in both."""
    optimizer = ServerOptimizer(name=name, learning_rate=0.5, momentum=0.8)
    strategy = optimizer.strategy()
    inner = getattr(strategy, "eta", getattr(strategy, "server_learning_rate", 1.0))
    assert optimizer.mean_learning_rate * inner == np.float64(0.5)


def test_momentum_is_given_on():
    momentum = {
        name: ServerOptimizer(name=name, learning_rate=0.5, momentum=0.8).strategy()
        for name in ("fedavgm", "fedadam", "fedyogi")
    }
    assert momentum["fedavgm"].server_momentum == 0.8
    assert momentum["fedadam"].beta_1 == momentum["fedyogi"].beta_1 == 0.8
