"""ClipAndNoise: central differential privacy around any Flower strategy."""

from __future__ import annotations

import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, TypeGuard

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacySpent,
)
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from flwr_sdp import _validate
from flwr_sdp._rounding import round_up
from flwr_sdp.model_rounding import Rounding
from flwr_sdp.npy import BFLOAT16, formats_of
from flwr_sdp.randomness import KeystreamGenerator, secure_generator, seeded_generator
from flwr_sdp.records import records_of
from flwr_sdp.released import BATCH_NORM_STATISTICS, Selection
from flwr_sdp.separated import SeparatedMechanism
from flwr_sdp.strategies._quiet import quiet
from flwr_sdp.strategies.accountants import (
    as_charged,
    compose,
    default_delta,
    delta_warning,
)
from flwr_sdp.strategies.accumulator import LEAST_NOISE, Accumulator, ClippedSum
from flwr_sdp.strategies.budget import Budget
from flwr_sdp.strategies.checkpoint import Checkpoints, Snapshot
from flwr_sdp.strategies.cohort import (
    CohortGrid,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    wait_for_nodes,
)
from flwr_sdp.strategies.continuation import Continuation, EvaluateFn
from flwr_sdp.strategies.events import LEAST_MULTIPLIER, MOST_MULTIPLIER, ROUNDING, rate_of
from flwr_sdp.strategies.finite import require_finite
from flwr_sdp.strategies.journal import Journal, require_same_settings
from flwr_sdp.strategies.ledger import Ledger
from flwr_sdp.strategies.optimizer_state import (
    functions_of,
    restore_state,
    settings_of,
    state_of,
)
from flwr_sdp.strategies.projection import ProjectionEffect, projection_effect
from flwr_sdp.strategies.report import CentralGuarantee, PrivacyReport
from flwr_sdp.strategies.streaming import StreamingGrid
from flwr_sdp.strategies.surroundings import (
    EVALUATE,
    TRAIN,
    Surroundings,
    require_same_configs,
)
from flwr_sdp.strategies.tally import Tally, fold

# Flower's own logger, so that these lines appear among Flower's.
_log = logging.getLogger("flwr")

_NOT_ASKED = (
    "nobody is asked for reports that would be lost; begin with a finite model, or keep the array "
    "out (trainable, excluded) if its infinities are meant"
)
_NOT_RELEASED = "the round is charged, and nothing of it is released; the model before it is finite"


class ClipAndNoise(Strategy):
    r"""Release every round as a clipped, noised sum over a random cohort, and account for it.

    With the replies :math:`\Delta_i` of a cohort in which each of N clients is with probability q,

    .. math:: \theta \leftarrow \theta + \frac{\eta}{qN}\Big(\sum_i \mathrm{proj}_\rho(\Delta_i)
              + z\rho\,N(0, I)\Big)

    (Eq. server-agg of Bhowmick et al., arXiv:1812.00984v2, with the noise stated as a multiplier).
    The inner strategy is the server optimiser: it sees the noised mean as the reply of one client.

    Parameters
    ----------
    strategy : Strategy
        A Flower strategy that can aggregate one reply: ``FedAvg`` takes the private mean as it is,
        ``FedAdam`` and others treat it as a pseudo-gradient. Robust aggregators such as ``Krum``
        need to see every reply, and cannot be used. Evaluation is left to it entirely.
    clip_norm : float, optional
        rho, the norm to which an update is shortened; infinity clips nothing (and then
        `noise_multiplier` must be 0). Clipping an unbiased report biases it. By default the
        ``max_output_norm`` of `mechanism`, which clips none of its reports.
    noise_multiplier : float
        z, the standard deviation of the noise on the *sum*, in units of rho. 0 gives no central
        guarantee, and the report says so.
    sampling_rate : float, optional
        q, in (0, 1]: each connected node is asked with this probability, on its own, and the round
        is charged as a Poisson-sampled release at this rate (by Flower's accountants at that of
        the next larger whole number of clients). Give this or `cohort_size`.
    cohort_size : int, optional
        Ask exactly this many nodes, drawn without replacement. One client more or less exchanges a
        member of the cohort, so that a round is charged as a release at sensitivity 2 rho, with
        no amplification by sampling.
    server_learning_rate : float
        eta.
    mechanism : SeparatedMechanism, optional
        What the devices run: the report then says what the clip norm does to their updates. No
        guarantee rests on it.
    require_local_dp : bool
        Refuse replies that do not carry the mark of
        :class:`flwr_sdp.clients.SeparatedDPMod`. The mark is a protection against mistakes, not
        against a device that lies about itself.
    accountant : PrivacyAccountant, optional
        Any accountant of Flower's protocol for add-or-remove-one neighbours, and for Poisson
        sampling or (with `cohort_size`) none. By default a
        :class:`~flwr_sdp.strategies.BestAccountant` over the connected nodes (or `population`).
    max_epsilon : float, optional
        Stop, before the cohort is asked, when one more round would exceed it.
    seed : int, optional
        Draw the cohorts from this seed instead of the operating system. **Simulation only**:
        amplification by sampling assumes that the cohort is secret.
    population : int, optional
        N. By default the accountant's, or else the number of nodes connected in the first round,
        which the report then calls public: the divisor tells it. It is fixed from then on, and
        never depends on who replied.
    delta : float, optional
        delta of the default accountant, by default the smaller of 1e-5 and 1 / (10 N). An
        accountant that is given brings its own.
    min_available_nodes : int
        Wait for this many nodes (or `cohort_size`) before a round.
    node_timeout : float
        Seconds to wait for them before giving up.
    min_replies : int
        Below this number of usable replies the model is left as it is for the round (which is
        charged all the same). **Above 0, no central guarantee is claimed**: whether a round was
        skipped shows in the model, and depends on the exact number of replies, which no noise
        covers.
    trainable, excluded, tied
        Which arrays are summed and noised, as given to the mod on the devices: see
        :class:`flwr_sdp.released.Selection`. All others stay as they are.
    rng : KeystreamGenerator or callable, optional
        Generator of the noise. By default a secure one; anything else voids the guarantee. A
        function of the round, such as ``lambda r: seeded_generator(1, "noise", r)``, makes runs
        repeatable, those included that were resumed from a checkpoint.
    accumulator : callable
        The server's half of what the devices send: given the model sent out, rho and the
        :class:`~flwr_sdp.released.Selection` of arrays, it returns an
        :class:`flwr_sdp.strategies.accumulator.Accumulator` for one round. By default
        :class:`~flwr_sdp.strategies.accumulator.ClippedSum`, for devices that send a whole model.
    checkpoints : Checkpoints, optional
        Where to write the charge of every round before anyone is asked, and the model with all that
        belongs to it before it is released. :meth:`resume` goes on from there.

    Attributes
    ----------
    last_arrays : ArrayRecord or None
        The last model released: what there is when the budget ends the training.
    last_round : dict[str, int | float]
        The metrics of the last round: ``cohort``, ``replies``, ``failures``, ``refused``,
        ``fraction-projected``, ``kept-length`` (of the updates, by the projection), ``mean-norm``
        (of the noised mean), ``noise-norm`` (its expectation), ``signal-to-noise`` (an estimate
        from these two), ``cdp-epsilon`` (so far), ``seconds``, ``peak-memory-mib`` (of the
        process).

    Raises
    ------
    ValueError
        If a setting is out of range, or the accountant assumes another sampling or adjacency.
    flwr.serverapp.exception.PrivacyBudgetExhausted
        From ``configure_train``, when one more round would exceed `max_epsilon`.

    Notes
    -----
    **Privacy.** For whoever sees the models: :math:`(\epsilon, \delta)`-differential privacy of one
    client's participation (add or remove one client), with the epsilon of
    :meth:`privacy_spent`. One client moves the noiseless sum by at most rho, whatever it sends:
    weights are equal, the divisor is the expected cohort, and a second reply of a node or one with
    other keys, shapes or non-finite numbers is left out. A round is charged before its result is
    formed.

    **Not covered**: the metrics of a round (``cohort``, ``replies``, ``fraction-projected`` and so
    on are exact, for the operator of the server, and no part of the release), and whatever the
    inner strategy's evaluation collects; nor how many nodes are connected, for which a round may
    have to wait. The guarantee is that of real numbers, rounded to a grid which hides the digits
    that floating-point noise could be told by; no theorem bounds what is left.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        clip_norm: float | None = None,
        noise_multiplier: float,
        sampling_rate: float | None = None,
        cohort_size: int | None = None,
        server_learning_rate: float = 1.0,
        mechanism: SeparatedMechanism | None = None,
        require_local_dp: bool = True,
        accountant: PrivacyAccountant | None = None,
        max_epsilon: float | None = None,
        seed: int | None = None,
        population: int | None = None,
        delta: float | None = None,
        min_available_nodes: int = 1,
        node_timeout: float = 600.0,
        min_replies: int = 0,
        trainable: Iterable[str] = ("*",),
        excluded: Iterable[str] = BATCH_NORM_STATISTICS,
        tied: Mapping[str, str] | None = None,
        rng: KeystreamGenerator | Callable[[int], KeystreamGenerator] | None = None,
        accumulator: Callable[[ArrayRecord, float, Selection], Accumulator] = ClippedSum,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be a flwr Strategy; got {strategy!r}")
        if mechanism is not None and not isinstance(mechanism, SeparatedMechanism):
            raise ValueError(f"mechanism must be a SeparatedMechanism; got {mechanism!r}")
        if clip_norm is None:
            if mechanism is None:
                raise ValueError("clip_norm must be a number > 0, or mechanism be given; got None")
            clip_norm = mechanism.max_output_norm
        if clip_norm != math.inf:
            _validate.number("clip_norm", clip_norm, above=0.0)
        _validate.number("noise_multiplier", noise_multiplier, minimum=0.0)
        if noise_multiplier and not LEAST_MULTIPLIER <= noise_multiplier <= MOST_MULTIPLIER:
            raise ValueError(
                f"noise_multiplier must be 0 or at least {LEAST_MULTIPLIER:g}, below which "
                f"accountants lose their precision, and at most {MOST_MULTIPLIER:g}; got "
                f"{noise_multiplier!r}"
            )
        if noise_multiplier > 0 and not LEAST_NOISE <= noise_multiplier * clip_norm < math.inf:
            raise ValueError(
                "clip_norm must be finite when noise_multiplier is above 0, and the noise, the "
                f"product of the two, from {LEAST_NOISE:g} on; got {clip_norm!r}"
            )
        self.sampling = _sampling(sampling_rate, cohort_size)
        _validate.number("server_learning_rate", server_learning_rate, above=0.0)
        if max_epsilon is not None:
            _validate.number("max_epsilon", max_epsilon, above=0.0)
            if noise_multiplier == 0:
                raise ValueError(
                    "noise_multiplier must be above 0 when max_epsilon is set; got 0: without "
                    "noise no epsilon is finite"
                )
        if seed is not None:
            _validate.integer("seed", seed, minimum=0)
        if population is not None:
            _validate.integer("population", population, minimum=1)
        if delta is not None:
            _validate.number("delta", delta, above=0.0, below=1.0)
        _validate.integer("min_available_nodes", min_available_nodes, minimum=1)
        _validate.number("node_timeout", node_timeout, minimum=0.0)
        _validate.integer("min_replies", min_replies, minimum=0)
        if rng is not None and not isinstance(rng, KeystreamGenerator) and not callable(rng):
            raise ValueError(f"rng must be a KeystreamGenerator or make one; got {rng!r}")
        if checkpoints is not None:
            if not isinstance(checkpoints, Checkpoints):
                raise ValueError(f"checkpoints must be Checkpoints; got {checkpoints!r}")
            if isinstance(rng, KeystreamGenerator) and not rng.is_secure:
                raise ValueError(
                    "rng must be a function of the round when it is seeded and checkpoints are "
                    "written: a stream cannot be taken up in its middle"
                )
            state_of(strategy)  # it can be saved
        if accountant is not None:
            _check_accountant(accountant, population, self.sampling)
            if noise_multiplier == 0:
                raise ValueError(
                    "noise_multiplier must be above 0 when an accountant is given; got 0"
                )
            population = accountant.config.population_size
        if population is not None and self.sampling.least_nodes > population:
            raise ValueError(f"cohort_size must be <= population={population}; got {cohort_size}")
        self.strategy = strategy
        self.clip_norm = float(clip_norm)
        self.noise_multiplier = float(noise_multiplier)
        self.server_learning_rate = float(server_learning_rate)
        self.mechanism = mechanism
        self.require_local_dp = bool(require_local_dp)
        self.accountant = accountant
        self.max_epsilon = max_epsilon
        self.seed = seed
        self.population = population
        self.delta = delta
        self.min_available_nodes = min_available_nodes
        self.node_timeout = node_timeout
        self.min_replies = min_replies
        self.selection = Selection(trainable=trainable, excluded=excluded, tied=tied or {})
        self.last_round: dict[str, int | float] = {}
        self.last_arrays: ArrayRecord | None = None
        self._rng = rng
        self._seeded_noise = isinstance(rng, KeystreamGenerator) and not rng.is_secure
        self._accumulator = accumulator
        self.checkpoints = checkpoints
        self._strategy_settings = {} if checkpoints is None else settings_of(strategy)
        self._functions = functions_of(strategy)
        self._journal = Journal(checkpoints)
        self._surroundings = Surroundings()
        self._at_start: dict[str, Any] | None = None  # where the run stands before it begins
        self._saved_model = ArrayRecord()
        self._is_evaluated = True  # by the devices
        self._asks_evaluation = False
        self._paid_round: int | None = None
        self._budget = Budget()
        self._rounds_asked = 0
        self._rounds_released = 0
        self._tally = Tally()  # of all rounds
        self._dim: int | None = None
        self._counts_nodes = False  # population is what was connected
        self._events: set[GaussianPrivacyEvent] = set()
        self._charged_before = 0 if accountant is None else accountant.num_releases
        self._model = ArrayRecord()
        self._cohort: list[int] = []
        self._asked_at = 0.0

    # ------------------------------------------------------------------ run
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds, as ``flwr.serverapp.strategy.Strategy.start`` does.

        Replies are folded in one by one as they arrive (:class:`StreamingGrid`), so that memory
        stays that of a few models. A node that has not replied `timeout` seconds after the round
        began is not waited for.

        Raises
        ------
        CheckpointError
            If the folder of the checkpoints holds a run, or another one is at work there.
        """
        with self._journal.run():
            self._journal.require_unused()
            train_config = self._surroundings.hand(TRAIN, train_config)
            evaluate_config = self._surroundings.hand(EVALUATE, evaluate_config)
            self._at_start = deepcopy(self._stand())
            return super().start(
                StreamingGrid(grid),
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )

    def resume(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Go on with the run in the checkpoints, to `num_rounds` rounds in all.

        As :meth:`start`, with the same arguments as the run was started with. The configs go on as
        the strategy has changed them since; left out, they are those of the run. An evaluation that
        was broken off is repeated, and `evaluate_fn` called for the last finished round, first. The
        results are those of the rounds run now.

        Raises
        ------
        CheckpointError
            As :meth:`restore` does, or if a config is another one than the run was started with.
        """
        with self._journal.run():
            arrays = self._restore(initial_arrays, {TRAIN: train_config, EVALUATE: evaluate_config})
            continuation = Continuation(self, self.rounds_done)
            return continuation.run(
                StreamingGrid(grid),
                arrays,
                num_rounds,
                timeout,
                self._surroundings.hand_on(TRAIN, train_config),
                self._surroundings.hand_on(EVALUATE, evaluate_config),
                evaluate_fn,
                is_evaluated=self._is_evaluated,
            )

    # ------------------------------------------------------------------ ask
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Check the model and the budget, draw the cohort and ask it."""
        self._require_finite(arrays, arrays, "the strategy was given", _NOT_ASKED)
        least, setting = max(
            (self.min_available_nodes, "min_available_nodes"),
            (self.sampling.least_nodes, self.sampling.setting),
        )
        node_ids = wait_for_nodes(grid, least, self.node_timeout, setting)
        self._fix_population(len(node_ids))
        formats = formats_of(arrays)
        if self._rounds_asked == 0 and (held_back := self.selection.held_back(formats)):
            _log.warning(
                "%d arrays, such as %r, are excluded and stay as they are. Statistics of batch "
                "normalisation have to be estimated before the model is used, on public data or on "
                "each device (torch.optim.swa_utils.update_bn)",
                len(held_back),
                held_back[0],
            )
        self._surroundings.hand(TRAIN, config)
        self._at_start = self._at_start or self._stand()
        self._journal.open(
            server_round,
            lambda: self._settings(arrays),
            0 if self.accountant is None else self.accountant.num_releases,
            lambda ledger: self._snapshot(0, arrays, ledger),
        )
        if self.accountant is not None and not self._is_paid(server_round):
            self._budget.spend(self.accountant, self._event(), self.max_epsilon)
        cohort = self.sampling.draw(node_ids, self._cohort_rng(server_round))
        _log.info(
            "configure_train: %s cohort of %d of %d nodes (expected %.1f)",
            self.sampling.name,
            len(cohort),
            len(node_ids),
            self.expected_cohort,
        )
        self._model, self._cohort, self._asked_at = arrays, cohort, time.monotonic()
        messages = self._requests(server_round, arrays, config, grid, cohort)
        if self.checkpoints is not None:
            state_of(self.strategy, self._functions)  # it can still be saved
        self._journal.charge(server_round, None if self.accountant is None else self._event())
        self._rounds_asked += 1
        return messages

    def _require_finite(
        self, model: ArrayRecord, arrays: ArrayRecord, origin: str, consequence: str
    ) -> None:
        trained = {*self.selection.released(formats_of(model)), *self.selection.tied}
        require_finite(arrays, trained, origin, consequence)

    def _requests(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        cohort: list[int],
    ) -> list[Message]:
        """Ask each of the cohort what the inner strategy asks; its own state is its own affair."""
        minimum = max(
            2,
            getattr(self.strategy, "min_available_nodes", 0),
            getattr(self.strategy, "min_train_nodes", 0),
        )
        if not _averages(self.strategy) and any(
            array.dtype == BFLOAT16 for array in arrays.values()
        ):
            raise ValueError(
                f"strategy must only average, as FedAvg does, when the model is in {BFLOAT16}; got "
                f"{type(self.strategy).__name__}, which cannot compute with it: keep the model in "
                "float32 on the server"
            )
        view = CohortGrid(grid, cohort, minimum)
        with quiet("flwr", logging.WARNING):  # it sees stand-ins beside a small cohort
            messages = list(self.strategy.configure_train(server_round, arrays, config, view))
        if not messages:
            raise ValueError(
                "strategy must ask the whole cohort: it configured no message for round "
                f"{server_round} (is fraction_train 0?)"
            )
        # Every member of the cohort is asked the same thing, whatever sample the inner one drew.
        content, message_type = messages[0].content, messages[0].metadata.message_type
        for sent in records_of(content, ArrayRecord):
            if sent is not arrays:
                origin = f"{type(self.strategy).__name__} sends"
                self._require_finite(arrays, sent, origin, _NOT_ASKED)
        # Most of the time of a large round goes into making messages: those there are serve.
        made = {
            message.metadata.dst_node_id: message
            for message in messages
            if message.content is content and message.metadata.message_type == message_type
        }
        return [
            made[node_id] if node_id in made else Message(content, node_id, message_type)
            for node_id in cohort
        ]

    # ------------------------------------------------------------------ aggregate
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Charge the round, then release the clipped and noised sum through the inner strategy."""
        rng = self._noise_rng(server_round)
        self._journal.require_charge(server_round)
        spent = self._charge(server_round)
        total = self._accumulator(self._model, self.clip_norm, self.selection)
        self._dim, rounding = total.dim, Rounding.on(self._model, self.selection)
        tally, awaited = Tally(), set(self._cohort)
        try:
            for reply in replies:
                self.fold(reply, total, tally, awaited=awaited, rounding=rounding)
                del reply  # or it would stay in memory until the next one has arrived
            if tally.used and self.mechanism is not None:
                # Who was not asked may send longer reports than those that were seen.
                longest = rounding.of(self.mechanism.max_output_norm)
                tally.longest_report = max(tally.longest_report, longest)
            tally.projected, tally.kept = total.projected, tally.used * total.kept_length
            missing = len(self._cohort) - tally.used - tally.failed - tally.refused
            if missing > 0:
                tally.note("a client did not reply", missing)
        finally:  # what has left a device is spent, whatever becomes of the round
            self._tally.add(tally)
        released = tally.used >= self.min_replies
        metrics: dict[str, int | float] = {
            "cohort": len(self._cohort),
            "replies": tally.used,
            "failures": tally.failed,
            "refused": tally.refused,
            "fraction-projected": tally.projected / tally.used if tally.used else 0.0,
            "kept-length": total.kept_length,
        }
        arrays: ArrayRecord | None = None
        if released:
            noise_std = self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0
            release = total.release(
                divisor=self.expected_cohort,
                noise_std=noise_std,
                learning_rate=self.server_learning_rate,
                rng=rng,
            )
            noise_norm = noise_std * math.sqrt(total.dim) / self.expected_cohort
            metrics["mean-norm"] = release.mean_norm
            metrics["noise-norm"] = noise_norm
            if noise_norm > 0:
                metrics["signal-to-noise"] = _signal_to_noise(release.mean_norm, noise_norm)
            arrays, inner_metrics = self._optimise(server_round, total, release.arrays)
            # The inner strategy has looked at them through such views as `records_of` avoids.
            del release
            gc.collect(1)
            metrics.update(inner_metrics)
            self._rounds_released += 1
        else:
            self._tally.note(
                f"a round was skipped: fewer than min_replies={self.min_replies} replies"
            )
            _log.warning(
                "round %d: %d usable replies, below min_replies=%d: the model is left as it is",
                server_round,
                tally.used,
                self.min_replies,
            )
        if not self._claims_central:
            spent = None  # charged, but not a guarantee
        if spent is not None:
            metrics["cdp-epsilon"] = spent.epsilon
        metrics["seconds"] = time.monotonic() - self._asked_at
        metrics.update(_peak_memory())
        self.last_round = dict(metrics)
        # Whatever fails from here on has released nothing: the model leaves with the return.
        model = self._model if arrays is None else arrays
        self._is_evaluated = False
        self._journal.save(server_round, lambda ledger: self._snapshot(server_round, model, ledger))
        self._saved_model = model
        if arrays is not None:
            self.last_arrays = arrays
        _log.info(
            "aggregate_train: %d replies used, %d failed, %d refused, %d projected%s",
            tally.used,
            tally.failed,
            tally.refused,
            tally.projected,
            ""
            if spent is None
            else f"; central epsilon {round_up(spent.epsilon, 6)} at {spent.delta:g}",
        )
        return arrays, MetricRecord(dict(metrics))

    def fold(
        self,
        reply: Message,
        total: Accumulator,
        tally: Tally,
        *,
        awaited: set[int],
        rounding: Rounding,
    ) -> None:
        """Fold one reply into the sum of the round; never raises because of what it carries.

        For strategies whose nodes stand for more than one client, to be overridden. **Privacy.**
        Whatever it does, one client must move the sum by the clip norm at most.

        Parameters
        ----------
        reply : Message
            What a node has sent.
        total : Accumulator
            The sum of the round.
        tally : Tally
            The counts of the round.
        awaited : set of int
            The clients asked that have not replied.
        rounding : Rounding
            That of the model sent out.
        """
        fold(
            reply.metadata.src_node_id,
            reply,
            total,
            tally,
            awaited=awaited,
            rounding=rounding,
            require_local_dp=self.require_local_dp,
        )

    def _optimise(
        self, server_round: int, total: Accumulator, moved: ArrayRecord
    ) -> tuple[ArrayRecord, dict[str, int | float]]:
        """Hand the model moved by the private mean to the inner strategy, as one client's reply."""
        weight_key = getattr(self.strategy, "weighted_by_key", "num-examples")
        arrays_key = getattr(self.strategy, "arrayrecord_key", "arrays")
        content = RecordDict({arrays_key: moved, "metrics": MetricRecord({weight_key: 1})})
        reply = Message(content, 0, MessageType.TRAIN)
        arrays: ArrayRecord | None
        metrics: MetricRecord | None
        if _averages(self.strategy):  # the average of one is that one, without four copies of it
            arrays = moved
            metrics = self.strategy.train_metrics_aggr_fn([content], weight_key)
        else:
            with quiet("flwr", logging.WARNING):  # it sees one reply for the whole cohort
                arrays, metrics = self.strategy.aggregate_train(server_round, [reply])
        if arrays is None:
            raise ValueError(
                f"strategy must aggregate a single reply; {type(self.strategy).__name__} did not"
            )
        scalars = {
            name: value for name, value in (metrics or {}).items() if isinstance(value, int | float)
        }
        arrays = total.like_model(arrays)
        origin = f"{type(self.strategy).__name__} has returned"
        self._require_finite(self._model, arrays, origin, _NOT_RELEASED)
        return arrays, scalars

    # ------------------------------------------------------------------ account
    @property
    def train_config(self) -> ConfigRecord:
        """The config that rounds are handed, as it stands; a resumed run's is that of the run."""
        return self._surroundings.configs.setdefault(TRAIN, ConfigRecord())

    @property
    def evaluate_config(self) -> ConfigRecord:
        """The config that evaluations are handed, as it stands."""
        return self._surroundings.configs.setdefault(EVALUATE, ConfigRecord())

    @property
    def expected_cohort(self) -> float:
        """Expected number of clients in a round, q N or the cohort size: the divisor of the sum."""
        if self.population is None:
            raise ValueError("population is not known before the first round")
        return self.sampling.expected_cohort(self.population)

    @property
    def rounds_done(self) -> int:
        """Rounds whose result has been saved; 0 without checkpoints."""
        return self._journal.rounds_done

    def privacy_spent(self) -> PrivacySpent | None:
        """Return what has been charged so far, or None if nothing was.

        It is the central guarantee unless :meth:`report` says otherwise.
        """
        if self.accountant is None or self.accountant.num_releases == 0:
            return None
        return self.accountant.get_privacy_spent()

    def report(self) -> PrivacyReport:
        """Return what has been guaranteed to whom so far, and every exception to it."""
        tally = self._tally
        exceptions = [f"{text} ({count}x)" for text, count in sorted(tally.exceptions.items())]
        if self.seed is not None:
            exceptions.append(
                f"the cohorts were drawn from seed {self.seed}: amplification by sampling holds "
                "only against whoever does not know it"
            )
        if self._seeded_noise:
            exceptions.append("the noise came from a seeded generator: no central guarantee holds")
        if self.min_replies:
            exceptions.append(
                f"min_replies={self.min_replies}: whether a round was skipped shows in the model "
                "and no noise covers it: no central guarantee is claimed"
            )
        if tally.projected:
            exceptions.append(
                f"{tally.projected / tally.used:.1%} of the replies were longer than "
                f"clip_norm={self.clip_norm:g}: shortening them left {tally.kept / tally.used:.3f} "
                "of their length and biases the mean by about that factor"
            )
        if warning := self._delta_warning():
            exceptions.append(warning)
        spent = self.privacy_spent()
        central = None
        if spent is not None and self._claims_central:
            # Where not all were charged at the rate drawn with, the figure is that of the largest.
            drawn = rate_of(self.sampling.event(self.noise_multiplier, int(self.population or 0)))
            rate = max([drawn, *map(rate_of, self._events)])
            if rate > drawn * (1.0 + 2.0 * ROUNDING):
                exceptions.append(
                    f"clients were drawn at rate {drawn:g} and rounds charged at {rate:g}, as a "
                    "whole number of clients: central epsilons may be lower than stated"
                )
            if self._charged_before:
                exceptions.append(
                    f"{self._charged_before} of the {spent.num_releases} releases were charged to "
                    "the accountant before this run: the central epsilon is that of all, the "
                    "rate and the noise multiplier are those of this run alone"
                )
            central = CentralGuarantee(
                epsilon=spent.epsilon,
                delta=spent.delta,
                releases=spent.num_releases,
                accountant=spent.accounting_method,
                noise_multiplier=self.noise_multiplier,
                clip_norm=self.clip_norm,
                sampling_rate=rate,
                population=int(self.population or 0),
                sampling=self.sampling.name,
                expected_cohort=self.expected_cohort,
            )
        mechanism, declared = self.mechanism, tally.declared
        known = math.inf if mechanism is None else mechanism.max_output_norm
        if known * (1.0 + 1e-9) < declared < sys.float_info.max:
            longest, claimed = _validate.apart(known, declared)
            exceptions.append(
                f"devices declared reports of norms up to {claimed}, beyond the {longest} of "
                "the mechanism given to the server: they run another one"
            )
        unmarked = {"used": tally.unmarked_used, "refused": tally.unmarked_refused}
        for what, count in unmarked.items():
            if count:
                exceptions.append(
                    f"{count} replies without the mark of SeparatedDPMod were {what}: nothing is "
                    "claimed for the devices that sent them"
                )
        if self._counts_nodes and central is not None:
            exceptions.append(
                f"population={self.population} is the number of nodes connected in the first "
                "round: the central guarantee takes it to be public (set population)"
            )
        return PrivacyReport(
            rounds=self._rounds_released,
            max_reports_per_client=self._rounds_asked,
            local=None if tally.unmarked_used or tally.insecure else tally.local,
            dim=self._dim,
            central=central,
            without_projection=None if central is None else self._without_projection(central),
            projection=self._projection_effect(),
            exceptions=tuple(exceptions),
        )

    def _without_projection(self, central: CentralGuarantee) -> CentralGuarantee | None:
        """Return what the noise amounts to beside the longest reports that devices can send."""
        longest = self._tally.longest_report
        # No reply, no length: the noise alone has been released, and the run's figure says so.
        # Releases that are not this strategy's, or not of this noise, are not known well enough.
        noises = {event.noise_multiplier for event in self._events}
        if longest == 0.0 or self._charged_before or noises != {self._event().noise_multiplier}:
            return None
        if self.mechanism is None:
            longest = max(longest, self.clip_norm)
        if longest == self.clip_norm:
            return central
        multiplier = self.noise_multiplier * (self.clip_norm / longest)
        if multiplier < LEAST_MULTIPLIER:
            return None
        population = int(self.population or 0)
        accountant = self.sampling.accountant(
            population=population, delta=central.delta, max_epsilon=None
        )
        event = self.sampling.event(multiplier, population)
        compose(accountant, event, central.releases)
        spent = accountant.get_privacy_spent()
        return replace(
            central,
            epsilon=spent.epsilon,
            accountant=spent.accounting_method,
            noise_multiplier=multiplier,
            clip_norm=longest,
            sampling_rate=rate_of(event),
        )

    def _projection_effect(self) -> ProjectionEffect | None:
        if self.mechanism is None or self.clip_norm == math.inf:
            return None
        return projection_effect(self.mechanism, self.clip_norm)

    def _delta_warning(self) -> str | None:
        config = None if self.accountant is None else self.accountant.config
        delta = self.delta if config is None else config.target_delta
        if delta is None or self.population is None or self.noise_multiplier == 0:
            return None
        return delta_warning(delta, self.population)

    @property
    def _claims_central(self) -> bool:
        """Whether what was charged is a guarantee; :meth:`report` says why if not."""
        return not self.min_replies and not self._seeded_noise

    def _event(self) -> GaussianPrivacyEvent:
        event = self.sampling.event(self.noise_multiplier, int(self.population or 0))
        return event if self.accountant is None else as_charged(self.accountant, event)

    def _fix_population(self, connected: int) -> None:
        if self.population is None:
            self.population = connected
            self._counts_nodes = True
        if connected > self.population:
            self._tally.note(
                f"more nodes were connected than population={self.population}: the step was larger "
                "than an average (the guarantee is not concerned)"
            )
            _log.warning(
                "%d nodes are connected, more than population=%d: set population to the number of "
                "clients there are, or the sum is divided by too little",
                connected,
                self.population,
            )
        if self.accountant is None and self.noise_multiplier > 0:
            self.accountant = self.sampling.accountant(
                population=self.population,
                delta=self.delta or default_delta(self.population),
                max_epsilon=self.max_epsilon,
            )

    def _charge(self, server_round: int) -> PrivacySpent | None:
        if self.accountant is None:
            return None
        self._events.add(self._event())
        if not self._is_paid(server_round):
            compose(self.accountant, self._event())
        self._paid_round = None
        return self.accountant.get_privacy_spent()

    def _is_paid(self, server_round: int) -> bool:
        """Whether the charge of a round that was broken off is there for its repetition."""
        return self._paid_round == server_round

    def _cohort_rng(self, server_round: int) -> KeystreamGenerator:
        if self.seed is None:
            return secure_generator()
        return seeded_generator(self.seed, "cohort", server_round)

    def _noise_rng(self, server_round: int) -> KeystreamGenerator:
        rng = self._rng
        if rng is None:
            return secure_generator()
        if not isinstance(rng, KeystreamGenerator):
            rng = rng(server_round)
            if not isinstance(rng, KeystreamGenerator):
                raise ValueError(f"rng must make a KeystreamGenerator; it made {rng!r}")
            self._seeded_noise |= not rng.is_secure
        return rng

    # ------------------------------------------------------------------ outlive the process
    def restore(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """Take up the run in the checkpoints where it ended, and return its model.

        For training loops of one's own; :meth:`resume` does this and runs the rounds. The charge
        of a round that was under way stays charged, and is that of its repetition: its result was
        not saved, and so has not been released. :attr:`train_config` and :attr:`evaluate_config`
        are as the run left them, and so are the global generators. No other process can go on with
        the run until this strategy is deleted, or the process ends; another strategy of this
        process can, and then this one is refused.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The model the run began with, or one of the same arrays.

        Raises
        ------
        CheckpointError
            If there is no run, no ledger, a damaged file, or another configuration, which is named;
            or if the run is not over, here or in another process.
        ValueError
            If this strategy or its accountant has been used before.
        """
        return self._restore(initial_arrays, {})

    def _restore(
        self, initial_arrays: ArrayRecord, configs: dict[str, ConfigRecord | None]
    ) -> ArrayRecord:
        accountant = self.accountant
        if self._rounds_asked or (accountant is not None and accountant.num_releases):
            raise ValueError(
                "a run can be resumed by a new strategy with a new accountant only: the ledger "
                "would be charged on top of what is there"
            )
        try:
            return self._take_up(initial_arrays, configs)
        except BaseException:
            self._journal.release()
            raise

    def _take_up(
        self, initial_arrays: ArrayRecord, configs: dict[str, ConfigRecord | None]
    ) -> ArrayRecord:
        ledger, snapshot = self._journal.load()
        population = ledger.settings.get("population")
        if self.population is None and isinstance(population, int):
            self.population = population
        require_same_settings(self._settings(initial_arrays), ledger.settings)
        require_same_configs(configs, snapshot.surroundings)  # from here on, nothing is refused
        self._fix_population(0)
        if self.accountant is not None:
            for event, count in ledger.charges:
                event = as_charged(self.accountant, event)
                compose(self.accountant, event, count)
                self._events.add(event)
        done = snapshot.server_round
        ledger, is_paid = self._journal.go_on(ledger, done)
        self._paid_round = done + 1 if is_paid else None
        restore_state(self.strategy, snapshot.optimizer)
        facts = snapshot.facts
        self._rounds_asked = ledger.rounds_asked
        self._rounds_released = facts["rounds_released"]
        self._tally = Tally.from_dict(facts["tally"])
        self._dim = facts["dim"]
        self._counts_nodes = facts["counts_nodes"]
        self._seeded_noise |= facts["seeded_noise"]
        self.last_round = dict(facts["last_round"])
        self._saved_model = self.last_arrays = snapshot.model
        self._is_evaluated = snapshot.is_evaluated
        self._surroundings.restore(snapshot.surroundings)
        _log.info(
            "resumed after round %d: %d rounds asked, %d releases charged",
            done,
            ledger.rounds_asked,
            ledger.num_charges,
        )
        return snapshot.model

    def _settings(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Return what a checkpoint has to have been made with, JSON-ready."""
        return {
            "clip_norm": "inf" if self.clip_norm == math.inf else self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            **asdict(self.sampling),
            "population": self.population,
            "seed": self.seed,
            "min_replies": self.min_replies,
            "trainable": list(self.selection.trainable),
            "excluded": list(self.selection.excluded),
            "tied": dict(self.selection.tied),
            "strategy": type(self.strategy).__qualname__,
            "strategy_settings": self._strategy_settings,
            "arrays": {name: [array.dtype, list(array.shape)] for name, array in arrays.items()},
        }

    def _stand(self) -> dict[str, Any]:
        """Return what is saved beside the model, as it is now."""
        if self.checkpoints is None:
            return {}
        return {
            "optimizer": state_of(self.strategy, self._functions),
            "surroundings": self._surroundings.state(),
        }

    def _snapshot(self, server_round: int, arrays: ArrayRecord, ledger: Ledger) -> Snapshot:
        stand = (server_round == 0 and self._at_start) or self._stand()
        return Snapshot(
            server_round=server_round,
            model=arrays,
            facts={
                "rounds_released": self._rounds_released,
                "tally": self._tally.to_dict(),
                "dim": self._dim,
                "counts_nodes": self._counts_nodes,
                "seeded_noise": self._seeded_noise,
                "last_round": self.last_round,
            },
            ledger=ledger,
            is_evaluated=self._is_evaluated,
            **stand,
        )

    # ------------------------------------------------------------------ the rest is the inner one's
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        self._journal.require_unchanged()
        self._surroundings.hand(EVALUATE, config)
        messages = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self._asks_evaluation = bool(messages)
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Leave evaluation to the inner strategy, and note what devices told for it."""
        listed = list(replies)
        for reply in listed:
            if reply.has_content():
                self._tally.note_metrics(reply.content)
        metrics = self.strategy.aggregate_evaluate(server_round, listed)
        self._is_evaluated = True
        if self._asks_evaluation:  # one that asked nobody is as well repeated
            self._journal.save_again(
                server_round,
                lambda ledger: self._snapshot(server_round, self._saved_model, ledger),
            )
        return metrics

    def summary(self) -> None:
        """Log the settings."""
        _log.info("\t├──> ClipAndNoise settings:")
        _log.info("\t│\t├── Clip norm: %g", self.clip_norm)
        _log.info("\t│\t├── Noise multiplier: %g", self.noise_multiplier)
        _log.info("\t│\t├── Sampling: %s", self.sampling)
        _log.info("\t│\t├── Server learning rate: %g", self.server_learning_rate)
        _log.info("\t│\t└── Local privacy required: %s", self.require_local_dp)
        self.strategy.summary()


def _sampling(sampling_rate: float | None, cohort_size: int | None) -> Sampling:
    if cohort_size is None:
        if sampling_rate is None:
            raise ValueError("sampling_rate must be a number in (0, 1], or cohort_size; got None")
        rate = _validate.number("sampling_rate", sampling_rate, above=0.0, maximum=1.0)
        return PoissonSampling(sampling_rate=rate)
    if sampling_rate is not None:
        raise ValueError(
            "cohort_size must be left out when sampling_rate is given, or the other way round; got "
            f"{cohort_size!r} and {sampling_rate!r}"
        )
    return FixedSizeSampling(cohort_size=_validate.integer("cohort_size", cohort_size, minimum=1))


def _check_accountant(
    accountant: PrivacyAccountant, population: int | None, sampling: Sampling
) -> None:
    config = accountant.config
    if config.sampling_method is not sampling.method or (
        config.neighboring_relation is not NeighboringRelation.ADD_OR_REMOVE_ONE
    ):
        raise ValueError(
            f"accountant must assume {sampling.method.value} sampling and add-or-remove-one "
            f"neighbours, which is what {sampling.name} cohorts are; got "
            f"{config.sampling_method.value}, {config.neighboring_relation.value}"
        )
    if population is not None and population != config.population_size:
        raise ValueError(
            f"population must be the accountant's {config.population_size}; got {population}"
        )


def _signal_to_noise(mean_norm: float, noise_norm: float) -> float:
    """Estimate the norm of the mean without its noise, over the norm of the noise.

    The noise is independent of the signal, so the squares of their norms add up, in expectation.
    """
    return math.sqrt(max(mean_norm**2 - noise_norm**2, 0.0)) / noise_norm


def _peak_memory() -> dict[str, float]:
    """Return the largest memory the process has had, where the system tells."""
    try:
        import resource
    except ImportError:
        return {}
    unit = 1 if sys.platform == "darwin" else 2**10  # bytes there, kibibytes elsewhere
    return {"peak-memory-mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20}


def _averages(strategy: Strategy) -> TypeGuard[FedAvg]:
    """Return whether a strategy does nothing but average, as FedAvg and FedProx do."""
    return type(strategy).aggregate_train is FedAvg.aggregate_train
