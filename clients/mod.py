"""The Flower mod that privatizes a device's update before it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)

from flwr_sdp import _validate, marks
from flwr_sdp.clients.caps import DeviceCaps
from flwr_sdp.clients.context_memory import ContextMemory
from flwr_sdp.clients.device_log import device_log
from flwr_sdp.clients.ledger import (
    Admit,
    DeviceLedger,
    LedgerError,
    LocalBudgetExhausted,
    Request,
)
from flwr_sdp.clients.privatize import privatize_vector, zero_unless_finite
from flwr_sdp.clients.reply_format import ReplyFormat, metrics_named
from flwr_sdp.clients.stored_reply import decode, encode
from flwr_sdp.clients.update import UpdateLayout
from flwr_sdp.privunit import RULES, Rule
from flwr_sdp.randomness import KeystreamGenerator, secure_generator
from flwr_sdp.records import records_of
from flwr_sdp.released import BATCH_NORM_STATISTICS, Selection, check_patterns
from flwr_sdp.separated import SeparatedBudget, SeparatedMechanism

ClientAppCallable = Callable[[Message, Context], Message]

# Flower's code for "a mod could not do its work".
_MOD_FAILED = 6

_WITHHELD = "SeparatedDPMod: the device withheld its reply, see its log"

# Whether a mod of this kind is waiting for its app.
_active: ContextVar[bool] = ContextVar("flwr_sdp_mod_active", default=False)

# Runs and caps that the log was told of. In a simulation each process has many devices.
_logged: set[tuple[int, str]] = set()


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
        run config's ``sdp-local-learning-rate`` where `max_norm` comes from there too, or else 1.
    trainable, excluded, tied
        Which arrays are privatized and sent, see :class:`flwr_sdp.released.Selection`: by default
        every floating-point array but the statistics of batch normalisation. All others are
        returned as received, whatever the app did to them.
    ledger : DeviceLedger, optional
        Charge every report there before it leaves. By default the node config's ``sdp-ledger``.
        Without a ledger there is no lifetime cap, and a message that is delivered again gets the
        same bytes while this process keeps its last reply, and then an error.
    released_metrics : iterable of str
        Names of metrics that may leave as they are. **They are not privatized.** Empty by default:
        loss, accuracy and example counts are numbers computed from the data.
    rng : callable, optional
        Returns the generator for one report. **For tests and simulations only**: by default each
        report uses a new secure generator, and anything else voids the guarantee, which the reply
        then says; a node with caps on epsilon refuses it. With a ``torch.Generator`` the update is
        privatized on the generator's device.

    Notes
    -----
    **Privacy.** Each reply that carries arrays is (epsilon_1, epsilon_2)-separated differentially
    private in everything the device holds, between any two data sets, of any size. Its size, keys,
    shapes and dtypes are those of the received model.

    **The device decides.** The node config, which only the device's owner sets, may have caps
    (:class:`~flwr_sdp.clients.caps.DeviceCaps`): whoever asks for more, the server in its run
    config or the app in this constructor, gets an error, and nothing is charged.

    **It fails closed.** Whatever goes wrong once the app was called (it raises, replies with an
    error, changes keys or shapes), no number computed from the data leaves: the reply is an error
    with a fixed text, and the traceback goes to the device's own log. What goes wrong before, in
    settings and caps, is said in the error. A non-finite update is released as a zero update.

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
        trainable: Iterable[str] = ("*",),
        excluded: Iterable[str] = BATCH_NORM_STATISTICS,
        tied: Mapping[str, str] | None = None,
        ledger: DeviceLedger | None = None,
        released_metrics: Iterable[str] = (),
        rng: Callable[[], Any] = secure_generator,
    ) -> None:
        if budget is not None and not isinstance(budget, SeparatedBudget):
            raise ValueError(f"budget must be a SeparatedBudget; got {_validate.shown(budget)}")
        if max_norm is not None:
            max_norm = _validate.number("max_norm", max_norm, above=0.0)
        if rule is not None:
            _validate.choice("rule", rule, RULES)
        if local_learning_rate is not None:
            local_learning_rate = _validate.number(
                "local_learning_rate", local_learning_rate, above=0.0
            )
        self.budget = budget
        self.max_norm = max_norm
        self.rule = rule
        self.local_learning_rate = local_learning_rate
        if ledger is not None and not isinstance(ledger, DeviceLedger):
            raise ValueError(f"ledger must be a DeviceLedger; got {_validate.shown(ledger)}")
        self.selection = Selection(trainable=trainable, excluded=excluded, tied=tied or {})
        self.ledger = ledger
        self.released_metrics = check_patterns("released_metrics", released_metrics)
        if any(name in marks.WEIGHTS or name.startswith("ldp-") for name in self.released_metrics):
            raise ValueError(
                "released_metrics must not name 'num-examples' or 'ldp-...', which the mod sets; "
                f"got {self.released_metrics!r}"
            )
        if not callable(rng):
            raise ValueError(
                f"rng must be callable, and return a generator; got {type(rng).__name__}"
            )
        self._rng = rng

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message with nothing but private numbers."""
        # The envelope is addressed before the app sees the message, and so cannot carry what the
        # app may write on it, nor tell how long it took.
        reply = Message(RecordDict(), reply_to=message)
        refusal = Message(Error(_MOD_FAILED, _WITHHELD), reply_to=message)
        message_type = message.metadata.message_type
        where = (context.node_id, context.node_config.get("partition-id", "unknown"), message_type)
        try:
            if message_type.split(".")[0] == MessageType.TRAIN:
                with ExitStack() as held:  # room on disk, given back unless it is charged
                    reply.content = self._train(message, context, call_next, held)
            else:
                reply.content = self._other(message, context, call_next)
        except _Refused as error:
            device_log().error("no reply leaves this device: %s", error)
            return Message(Error(_MOD_FAILED, f"SeparatedDPMod: {error}"), reply_to=message)
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever an app may raise, Flower would send its text
            device_log().exception(
                "no reply leaves this device (node %s, partition %s, message type %s): "
                "the app or the mod failed, as follows",
                *where,
            )
            return refusal
        return reply

    # ------------------------------------------------------------------ train
    def _train(
        self, message: Message, context: Context, call_next: ClientAppCallable, held: ExitStack
    ) -> RecordDict:
        with _settings(), _ledger_in_order():
            plan = self._plan(message, context)
            earlier = plan.ledger.reply(plan.request)
            if earlier is None:
                event, cap = plan.mechanism.event, plan.total_epsilon_cap
                plan.ledger.check(plan.request, event, cap, plan.admit)
                room = held.enter_context(plan.ledger.room(plan.reply_size))
        if earlier is not None:
            return decode(earlier)
        rng = self._rng()
        if plan.needs_secure_noise and not _is_secure(rng):
            raise _Refused(
                "this device has caps on epsilon, and the app's rng is not the secure generator, "
                "without which no epsilon holds: leave rng out"
            )
        content = self._content(call_next, message, context)
        plan.format.check_status(content)
        trained = _single_array_record(content, "the app's reply")
        metrics = metrics_named(content, self.released_metrics)
        update = plan.layout.difference(trained)
        del content, trained  # as large as the model, and needed no more
        zero_unless_finite(update)
        private = privatize_vector(update, plan.mechanism, rng)
        del update
        answer = plan.format.reply(
            plan.layout.apply(private), {**_marks(plan.mechanism, rng), **metrics}
        )
        earlier = plan.ledger.charge(
            plan.request,
            plan.mechanism.event,
            encode(answer),
            max_norm=plan.mechanism.magnitude.max_norm,
            dim=plan.layout.dim,
            cap=plan.total_epsilon_cap,
            admit=plan.admit,
            time_to_live=message.metadata.ttl,
            room=room,
        )
        return answer if earlier is None else decode(earlier)

    def _plan(self, message: Message, context: Context) -> _Plan:
        """Return what will be done, from settings and the server's message alone."""
        if _active.get():
            raise ValueError("two SeparatedDPMods are attached, one around the other: keep one")
        caps = DeviceCaps.of(context.node_config)
        memory = ContextMemory(context)
        _log_caps(caps, context, memory)
        received = _single_array_record(message.content, "the server's message")
        layout = UpdateLayout.of(received, self.selection)
        budget, max_norm = self._budget(context.run_config), self._max_norm(context.run_config)
        caps.check(budget, max_norm)
        caps.check_direction(layout.dim, budget.epsilon_direction)
        rule: Any = self.rule or context.run_config.get("sdp-rule", "tight")
        if caps.total_epsilon is not None and caps.ledger is None:
            raise ValueError(
                "sdp-total-epsilon-cap needs sdp-ledger, the file that remembers, in the node "
                "config too: the app's own ledger may be a new one for each report"
            )
        ledger = self.ledger if caps.ledger is None else _ledger(caps.ledger, self.ledger)
        message_id = message.metadata.message_id
        if ledger is not None and not message_id:
            raise ValueError("the message has no id, by which the ledger would know it again")
        mechanism = SeparatedMechanism.from_budget(layout.dim, budget, max_norm, rule=rule)
        layout.check(mechanism.max_output_norm)
        return _Plan(
            format=ReplyFormat.of(message.content),
            layout=layout,
            mechanism=mechanism,
            ledger=memory if ledger is None else ledger,
            needs_secure_noise=caps.limits_epsilon,
            total_epsilon_cap=caps.total_epsilon,
            admit=caps.admission(layout.dim, budget.epsilon_direction),
            request=Request(
                data_set=caps.data_set, run_id=str(context.run_id), message_id=message_id
            ),
            reply_size=sum(map(len, encode(RecordDict({"arrays": received})))),
        )

    def _budget(self, run_config: Mapping[str, Any]) -> SeparatedBudget:
        return self.budget or SeparatedBudget(
            epsilon_direction=_setting(run_config, "sdp-epsilon-direction"),
            epsilon_magnitude=_setting(run_config, "sdp-epsilon-magnitude"),
        )

    def _max_norm(self, run_config: Mapping[str, Any]) -> float:
        """Return the longest update that is not shortened, in the units of the model."""
        max_norm, unit = self.max_norm, self.local_learning_rate
        if unit is None:
            key = "sdp-local-learning-rate"
            # A norm that the app chose is not in the server's units.
            given = run_config.get(key, 1.0) if max_norm is None else 1.0
            unit = _validate.number(key, given, above=0.0)
        if max_norm is None:
            max_norm = _setting(run_config, "sdp-max-norm")
        return max_norm * unit

    # ------------------------------------------------------------------ evaluate and query
    def _other(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> RecordDict:
        reply_format = ReplyFormat.of(message.content)
        content = self._content(call_next, message, context)
        reply_format.check_status(content)
        if records_of(content, ArrayRecord):
            raise ValueError(
                "only a reply to a train message may carry arrays: nothing but an update can be "
                "privatized"
            )
        return reply_format.reply(None, metrics_named(content, self.released_metrics))

    def _content(
        self, call_next: ClientAppCallable, message: Message, context: Context
    ) -> RecordDict:
        """Return what the app replies; the text of its error may quote data, so it stays here."""
        token = _active.set(True)
        try:
            with ContextMemory.unseen(context):
                reply = call_next(message, context)
        finally:
            _active.reset(token)
        if not isinstance(reply, Message):
            raise TypeError(f"the app must return a flwr.app.Message; got {type(reply).__name__}")
        if reply.has_error():
            raise RuntimeError(f"the app replied with an error: {reply.error.reason}")
        return reply.content


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """All that is decided before the app sees the message."""

    format: ReplyFormat
    layout: UpdateLayout
    mechanism: SeparatedMechanism
    ledger: DeviceLedger | ContextMemory
    needs_secure_noise: bool
    total_epsilon_cap: float | None
    admit: Admit | None
    request: Request
    reply_size: int


class _Refused(Exception):
    """A report that settings do not allow. Its text holds settings, and may leave."""


@contextmanager
def _settings() -> Iterator[None]:
    """Turn errors in settings, found before data is touched, into refusals that say what it was."""
    try:
        yield
    except ValueError as error:
        raise _Refused(str(error)) from error


@contextmanager
def _ledger_in_order() -> Iterator[None]:
    """Turn what is wrong with the ledger, before anything is trained, into fixed texts.

    Where it is, what is spent, and on what, may be another server's affair: that goes to the log.
    """
    try:
        yield
    except (LedgerError, LocalBudgetExhausted) as error:
        device_log().error("%s", error)
        raise _Refused(error.reply) from error


def _ledger(path: str, other: DeviceLedger | None) -> DeviceLedger:
    """Return the node's ledger; a cap of the one that it replaces holds here."""
    try:
        cap = None if other is None else other.total_epsilon_cap
        return DeviceLedger(path, total_epsilon_cap=cap)
    except (ValueError, OSError) as error:  # no text for the server: it names the device's files
        raise LedgerError(f"sdp-ledger: {error}") from error


def _log_caps(caps: DeviceCaps, context: Context, memory: ContextMemory) -> None:
    """Say once a run which caps are in force."""
    said = (context.run_id, f"caps in force on this device: {caps}")
    is_virtual = "num-partitions" in context.node_config  # as Flower's simulation sets it
    if memory.is_news(f"run {said[0]}, {said[1]}") and not (is_virtual and said in _logged):
        _logged.add(said)
        device_log().info("%s", said[1])


def _is_secure(rng: Any) -> bool:
    return rng is None or (isinstance(rng, KeystreamGenerator) and rng.is_secure)


def _marks(mechanism: SeparatedMechanism, rng: Any) -> dict[str, float]:
    """Return settings, not data: by these a server knows a private reply, and what it is worth."""
    event = mechanism.event
    return {
        **({} if _is_secure(rng) else {marks.INSECURE_GENERATOR: 1.0}),
        marks.EPSILON_DIRECTION: event.epsilon_direction,
        marks.EPSILON_MAGNITUDE: event.epsilon_magnitude,
        marks.MAX_NORM: mechanism.magnitude.max_norm,
        marks.MAX_OUTPUT_NORM: mechanism.max_output_norm,
    }


def _single_array_record(content: RecordDict, what: str) -> ArrayRecord:
    records = records_of(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(f"{what} must carry exactly one ArrayRecord; it carries {len(records)}")
    return records[0]


def _setting(config: Mapping[str, Any], key: str) -> float:
    if key not in config:
        raise ValueError(f"{key} is missing: pass it to SeparatedDPMod or set it in the run config")
    return _validate.number(key, config[key], above=0.0)
