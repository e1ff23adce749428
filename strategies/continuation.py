"""The rest of a run, numbered as if it had not been broken off."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Continuation(Strategy):
    """A strategy whose rounds start after those that are done.

    ``Strategy.start`` counts from 1; streams of random numbers, bias corrections and metrics go by
    the round of the whole run.
    """

    def __init__(self, strategy: Strategy, rounds_done: int) -> None:
        self._strategy = strategy
        self._done = rounds_done

    def run(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
        *,
        is_evaluated: bool,
    ) -> Result:
        """Run the rounds up to `num_rounds`; the model is evaluated as it stands first.

        By the devices too, unless `is_evaluated`: they had not been asked, or had not all replied.
        """

        def evaluate(server_round: int, model: ArrayRecord) -> MetricRecord | None:
            return None if evaluate_fn is None else evaluate_fn(server_round + self._done, model)

        missed: dict[int, MetricRecord] = {}
        if not is_evaluated:
            messages = self.configure_evaluate(0, arrays, evaluate_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            metrics = self.aggregate_evaluate(0, replies)
            missed = {} if metrics is None else {0: metrics}
        result = self.start(
            grid,
            arrays,
            max(0, num_rounds - self._done),
            timeout,
            train_config,
            evaluate_config,
            None if evaluate_fn is None else evaluate,
        )
        if not result.arrays:  # no round was left to run, or all were skipped
            result.arrays = arrays
        result.train_metrics_clientapp = self._renumbered(result.train_metrics_clientapp)
        result.evaluate_metrics_clientapp = self._renumbered(
            {**missed, **result.evaluate_metrics_clientapp}
        )
        result.evaluate_metrics_serverapp = self._renumbered(result.evaluate_metrics_serverapp)
        return result

    def _renumbered(self, metrics: dict[int, MetricRecord]) -> dict[int, MetricRecord]:
        return {server_round + self._done: record for server_round, record in metrics.items()}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the round of the whole run."""
        return self._strategy.configure_train(server_round + self._done, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the round of the whole run."""
        return self._strategy.aggregate_train(server_round + self._done, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the evaluation of the whole run's round."""
        return self._strategy.configure_evaluate(server_round + self._done, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the evaluation of the whole run's round."""
        return self._strategy.aggregate_evaluate(server_round + self._done, replies)

    def summary(self) -> None:
        """Log the settings."""
        self._strategy.summary()
