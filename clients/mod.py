"""The Flower mod that privatizes a device's update before it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp.clients.update import UpdateLayout
from flwr_sdp.privunit import RULES, Rule
from flwr_sdp.randomness import KeystreamGenerator, secure_generator
from flwr_sdp.released import BATCH_NORM_STATISTICS, check_patterns
from flwr_sdp.separated import SeparatedBudget, SeparatedMechanism

ClientAppCallable = Callable[[Message, Context], Message]

# Stays on the device: Flower uploads the log of a ServerApp, never that of a ClientApp.
_log = logging.getLogger("flwr_sdp.device")

# Flower's code for "a mod could not do its work".
_MOD_FAILED = 6

_WEIGHT_KEY = "num-examples"


class SeparatedDPMod:
    """A Flower mod: train as usual, send only a separated-DP view of the update.

    Attach it to the whole app, ``ClientApp(mods=[SeparatedDPMod(...)])``, or to one train function,
    ``@app.train(mods=[SeparatedDPMod(...)])``. The reply is an ordinary model (the received one and
    the private update on it), so any Flower strategy can aggregate it. List it **first**: Flower's
    first mod is the outermost, and one before it could add to the private reply.

    Parameters
    ----------
    budget : SeparatedBudget, optional
        Local privacy budget of one report. By default it is read from the run config when a message
        arrives: ``sdp-epsilon-direction`` and ``sdp-epsilon-magnitude``. **The run config is the
        server's**: a device that does not trust the server with its privacy sets the budget here.
    max_norm : float, optional
        Longest update that is released without being shortened (r_max), in units of
        ``local_learning_rate``. By default the run config's ``sdp-max-norm``.
    rule : {"tight", "paper"}, optional
        See :meth:`flwr_sdp.PrivUnit.from_epsilon`. By default the run config's ``sdp-rule``, or
        ``"tight"``.
    local_learning_rate : float, optional
        Unit of `max_norm`: with the stepsize of local training here, `max_norm` bounds the gradient
        mapping (trained - received) / stepsize of the paper, whatever the stepsize. By default the
        run config's ``sdp-local-learning-rate``, or 1.
    excluded : iterable of str
        Name patterns of floating-point arrays that are not trained on the server's behalf and are
        returned as received; by default the statistics of batch normalisation.
    released_metrics : iterable of str
        Names of metrics that may leave as they are. **They are not privatized.** Empty by default:
        loss, accuracy and example counts are numbers computed from the data.
    rng : callable, optional
        Returns the generator for one report. **For tests only**: by default each report uses a new
        secure generator, and anything else voids the guarantee.

    Notes
    -----
    **Privacy.** Each reply that carries arrays is (epsilon_1, epsilon_2)-separated differentially
    private in everything the device holds, between any two data sets, of any size. Its size, keys,
    shapes and dtypes are those of the received model.

    **It fails closed.** Whatever goes wrong (the app raises, replies with an error, changes keys or
    shapes), no number computed from the data leaves: the reply is an error with a fixed text, and
    the traceback goes to the device's own log. A non-finite update is released as a zero update.

    **Not protected**: *whether* the app failed, so an app should not fail because of its data; how
    long it took; how often the server asks; an exception of a Flower lifespan function, which runs
    outside every mod and whose text Flower sends to the server.

    **Other messages** (evaluate, query): arrays are refused, metrics are dropped unless named in
    `released_metrics`, and errors are replaced as above.
    """

    def __init__(
        self,
        budget: SeparatedBudget | None = None,
        max_norm: float | None = None,
        *,
        rule: Rule | None = None,
        local_learning_rate: float | None = None,
        excluded: Iterable[str] = BATCH_NORM_STATISTICS,
        released_metrics: Iterable[str] = (),
        rng: Callable[[], KeystreamGenerator] = secure_generator,
    ) -> None:
        if budget is not None and not isinstance(budget, SeparatedBudget):
            raise ValueError(f"budget must be a SeparatedBudget; got {budget!r}")
        if max_norm is not None:
            _validate.number("max_norm", max_norm, above=0.0)
        if rule is not None:
            _validate.choice("rule", rule, RULES)
        if local_learning_rate is not None:
            _validate.number("local_learning_rate", local_learning_rate, above=0.0)
        self.budget = budget
        self.max_norm = max_norm
        self.rule = rule
        self.local_learning_rate = local_learning_rate
        self.excluded = check_patterns("excluded", excluded)
        self.released_metrics = check_patterns("released_metrics", released_metrics)
        if any(name == _WEIGHT_KEY or name.startswith("ldp-") for name in self.released_metrics):
            raise ValueError(
                f"released_metrics must not name {_WEIGHT_KEY!r} or 'ldp-...', which the mod sets; "
                f"got {self.released_metrics!r}"
            )
        self._rng = rng

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message with nothing but private numbers."""
        # Both envelopes are addressed before the app sees the message, and so cannot carry what
        # the app may write on it, nor tell how long it took.
        reply = Message(RecordDict(), reply_to=message)
        refusal = Message(
            Error(_MOD_FAILED, "SeparatedDPMod: the device withheld its reply, see its log"),
            reply_to=message,
        )
        message_type = message.metadata.message_type
        where = (context.node_id, context.node_config.get("partition-id", "unknown"), message_type)
        try:
            if message_type.split(".")[0] == MessageType.TRAIN:
                reply.content = self._train(message, context, call_next)
            else:
                reply.content = self._other(message, context, call_next)
        except (Exception, SystemExit):
            _log.exception(
                "no reply leaves this device (node %s, partition %s, message type %s): "
                "the app or the mod failed, as follows",
                *where,
            )
            return refusal
        return reply

    # ------------------------------------------------------------------ train
    def _train(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> RecordDict:
        record_name, received = _single_array_record(message, "the server's message")
        layout = UpdateLayout.of(received, self.excluded)
        mechanism = self._mechanism(layout.dim, context)
        reply = _content(call_next(message, context))
        _, trained = _single_array_record(reply, "the app's reply")
        update = layout.difference(trained)
        if not np.all(np.isfinite(update)):
            _log.warning("the update is not finite: a zero update is released in its place")
            update[...] = 0.0
        private: NDArray[Any] = mechanism.privatize(update, self._rng())
        event = mechanism.event
        metrics = MetricRecord(
            {
                _WEIGHT_KEY: 1,
                # Settings, not data: the mark by which a server knows a private reply.
                "ldp-epsilon-direction": event.epsilon_direction,
                "ldp-epsilon-magnitude": event.epsilon_magnitude,
                "ldp-max-norm": mechanism.magnitude.max_norm,
                "ldp-max-output-norm": mechanism.max_output_norm,
            }
        )
        self._release_metrics(reply.content, metrics)
        return RecordDict({record_name: layout.apply(private), "metrics": metrics})

    def _mechanism(self, dim: int, context: Context) -> SeparatedMechanism:
        config = context.run_config
        budget = self.budget or SeparatedBudget(
            epsilon_direction=_setting(config, "sdp-epsilon-direction"),
            epsilon_magnitude=_setting(config, "sdp-epsilon-magnitude"),
        )
        max_norm = self.max_norm if self.max_norm is not None else _setting(config, "sdp-max-norm")
        rule: Any = self.rule or config.get("sdp-rule", "tight")
        unit = self.local_learning_rate
        if unit is None:
            unit = _validate.number(
                "sdp-local-learning-rate", config.get("sdp-local-learning-rate", 1.0), above=0.0
            )
        return SeparatedMechanism.from_budget(dim, budget, max_norm * unit, rule=rule)

    # ------------------------------------------------------------------ evaluate and query
    def _other(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> RecordDict:
        reply = _content(call_next(message, context))
        if reply.content.array_records:
            raise ValueError(
                "only a reply to a train message may carry arrays: nothing but an update can be "
                "privatized"
            )
        metrics = MetricRecord({_WEIGHT_KEY: 1})
        self._release_metrics(reply.content, metrics)
        return RecordDict({"metrics": metrics})

    def _release_metrics(self, content: RecordDict, metrics: MetricRecord) -> None:
        """Copy the metrics that may leave as they are."""
        for record in content.metric_records.values():
            for name in self.released_metrics:
                if name in record:
                    metrics[name] = record[name]


def _content(reply: Message) -> Message:
    """Return `reply` if it has content; an app's error text may quote data, so it stays here."""
    if not isinstance(reply, Message):
        raise TypeError(f"the app must return a flwr.app.Message; got {type(reply).__name__}")
    if reply.has_error():
        raise RuntimeError(f"the app replied with an error: {reply.error.reason}")
    return reply


def _single_array_record(message: Message, what: str) -> tuple[str, ArrayRecord]:
    records = message.content.array_records
    if len(records) != 1:
        raise ValueError(f"{what} must carry exactly one ArrayRecord; it carries {len(records)}")
    return next(iter(records.items()))


def _setting(config: Any, key: str) -> float:
    if key not in config:
        raise ValueError(f"{key} is missing: pass it to SeparatedDPMod or set it in the run config")
    return _validate.number(key, config[key], above=0.0)
