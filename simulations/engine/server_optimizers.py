"""Server optimisers by name: Flower's strategies, to be put inside ``ClipAndNoise``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

Name = Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]
SERVER_OPTIMIZERS: tuple[Name, ...] = get_args(Name)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptimizer:
    """How the server moves the model along the private mean.

    Attributes
    ----------
    name : str
        One of ``SERVER_OPTIMIZERS``.
    learning_rate : float
        eta. The adaptive ones divide the mean by its size, so that it is a length there.
    momentum : float
        Of ``fedavgm``; beta_1 of ``fedadam`` and ``fedyogi``.
    """

    name: Name
    learning_rate: float
    momentum: float

    def strategy(self) -> Strategy:
        """Return the inner strategy. It leaves evaluation to the server."""
        quiet: dict[str, Any] = {"fraction_evaluate": 0.0}
        eta, momentum = self.learning_rate, self.momentum
        match self.name:
            case "fedavg":
                return FedAvg(**quiet)
            case "fedavgm":
                return FedAvgM(**quiet, server_learning_rate=eta, server_momentum=momentum)
            case "fedadagrad":
                return FedAdagrad(**quiet, eta=eta)
            case "fedadam":
                return FedAdam(**quiet, eta=eta, beta_1=momentum)
            case "fedyogi":
                return FedYogi(**quiet, eta=eta, beta_1=momentum)

    @property
    def mean_learning_rate(self) -> float:
        """How much of the mean the inner strategy is given: all of it, if it has its own rate."""
        return self.learning_rate if self.name == "fedavg" else 1.0
