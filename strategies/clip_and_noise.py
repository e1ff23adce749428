"""ClipAndNoise: central differential privacy around any Flower strategy."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

import numpy as np
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
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import Strategy

from flwr_sdp import _validate
from flwr_sdp.randomness import KeystreamGenerator, secure_generator, seeded_generator
from flwr_sdp.released import BATCH_NORM_STATISTICS, check_patterns
from flwr_sdp.strategies._quiet import quiet
from flwr_sdp.strategies.accountants import (
    affordable_releases,
    compose,
    poisson_event,
    poisson_rdp_accountant,
)
from flwr_sdp.strategies.accumulator import ClippedSum
from flwr_sdp.strategies.cohort import CohortGrid, poisson_cohort, wait_for_nodes
from flwr_sdp.strategies.report import CentralGuarantee, LocalGuarantee, PrivacyReport

# Flower's own logger, so that these lines appear among Flower's.
_log = logging.getLogger("flwr")

# Clients write the texts of their errors, so the report bounds how many kinds it keeps.
_MAX_EXCEPTIONS = 50

_LEAST_NOISE = 1e-6

_LOCAL_MARKS = ("ldp-epsilon-direction", "ldp-epsilon-magnitude")


class ClipAndNoise(Strategy):
    r"""Release every round as a clipped, noised sum over a Poisson cohort, and account for it.

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
    clip_norm : float
        rho, the norm to which an update is shortened; infinity clips nothing (and then
        `noise_multiplier` must be 0). Clipping an unbiased report biases it: a rho of
        ``mechanism.max_output_norm`` never binds.
    noise_multiplier : float
        z, the standard deviation of the noise on the *sum*, in units of rho. 0 gives no central
        guarantee, and the report says so.
    sampling_rate : float
        q, in (0, 1].
    server_learning_rate : float
        eta.
    require_local_dp : bool
        Refuse replies that do not carry the mark of
        :class:`flwr_sdp.clients.SeparatedDPMod`. The mark is a protection against mistakes, not
        against a device that lies about itself.
    accountant : PrivacyAccountant, optional
        Any accountant of Flower's protocol for Poisson sampling and add-or-remove-one neighbours.
        By default Flower's ``RdpAccountant`` over the connected nodes (or `population`).
    max_epsilon : float, optional
        Stop, before the cohort is asked, when one more round would exceed it.
    seed : int, optional
        Draw the cohorts from this seed instead of the operating system. **Simulation only**:
        amplification by sampling assumes that the cohort is secret.
    population : int, optional
        N. By default the accountant's, or else the number of nodes connected in the first round. It
        is fixed from then on: the divisor never depends on who replied.
    delta : float, optional
        delta of the default accountant, by default the smaller of 1e-5 and 1 / (10 N). An
        accountant that is given brings its own.
    min_available_nodes : int
        Wait for this many nodes before a round.
    node_timeout : float
        Seconds to wait for them before giving up.
    min_replies : int
        Below this number of usable replies the model is left as it is for the round (which is
        charged all the same). **Above 0, no central guarantee is claimed**: whether a round was
        skipped shows in the model, and depends on the exact number of replies, which no noise
        covers.
    excluded : iterable of str
        Name patterns of floating-point arrays that are neither summed nor noised and stay as they
        are; by default the statistics of batch normalisation, as on the device.
    rng : KeystreamGenerator, optional
        Generator of the noise. By default a secure one; anything else voids the guarantee.

    Attributes
    ----------
    last_arrays : ArrayRecord or None
        The last model released: what there is when the budget ends the training.
    last_round : dict[str, int | float]
        The metrics of the last round: ``cohort``, ``replies``, ``failures``, ``refused``,
        ``fraction-projected``, ``mean-norm``, ``noise-norm``, ``cdp-epsilon``, ``seconds``.

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
    inner strategy's evaluation collects. The guarantee is that of real numbers; noise in floating
    point does not hide the last bits.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float,
        server_learning_rate: float = 1.0,
        require_local_dp: bool = True,
        accountant: PrivacyAccountant | None = None,
        max_epsilon: float | None = None,
        seed: int | None = None,
        population: int | None = None,
        delta: float | None = None,
        min_available_nodes: int = 1,
        node_timeout: float = 600.0,
        min_replies: int = 0,
        excluded: Iterable[str] = BATCH_NORM_STATISTICS,
        rng: KeystreamGenerator | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be a flwr Strategy; got {strategy!r}")
        if clip_norm != math.inf:
            _validate.number("clip_norm", clip_norm, above=0.0)
        _validate.number("noise_multiplier", noise_multiplier, minimum=0.0)
        if 0 < noise_multiplier < _LEAST_NOISE:
            raise ValueError(
                f"noise_multiplier must be 0 or at least {_LEAST_NOISE:g}, below which accountants "
                f"lose their precision; got {noise_multiplier!r}"
            )
        if noise_multiplier > 0 and clip_norm == math.inf:
            raise ValueError("clip_norm must be finite when noise_multiplier is above 0; got inf")
        _validate.number("sampling_rate", sampling_rate, above=0.0, maximum=1.0)
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
        if rng is not None and not isinstance(rng, KeystreamGenerator):
            raise ValueError(f"rng must be a KeystreamGenerator; got {rng!r}")
        if accountant is not None:
            _check_accountant(accountant, population)
            if noise_multiplier == 0:
                raise ValueError(
                    "noise_multiplier must be above 0 when an accountant is given; got 0"
                )
            population = accountant.config.population_size
        self.strategy = strategy
        self.clip_norm = float(clip_norm)
        self.noise_multiplier = float(noise_multiplier)
        self.sampling_rate = float(sampling_rate)
        self.server_learning_rate = float(server_learning_rate)
        self.require_local_dp = bool(require_local_dp)
        self.accountant = accountant
        self.max_epsilon = max_epsilon
        self.seed = seed
        self.population = population
        self.delta = delta
        self.min_available_nodes = min_available_nodes
        self.node_timeout = node_timeout
        self.min_replies = min_replies
        self.excluded = check_patterns("excluded", excluded)
        self.last_round: dict[str, int | float] = {}
        self.last_arrays: ArrayRecord | None = None
        self._rng = rng
        self._affordable = 0
        self._affordable_state: tuple[GaussianPrivacyEvent, float, int] | None = None
        self._rounds_asked = 0
        self._rounds_released = 0
        self._local: LocalGuarantee | None = None
        self._exceptions: dict[str, int] = {}
        self._model = ArrayRecord()
        self._cohort: list[int] = []
        self._asked_at = 0.0

    # ------------------------------------------------------------------ ask
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Check the budget, draw the cohort and ask it."""
        node_ids = wait_for_nodes(grid, self.min_available_nodes, self.node_timeout)
        self._fix_population(len(node_ids))
        self._check_budget()
        cohort = poisson_cohort(node_ids, self.sampling_rate, self._cohort_rng(server_round))
        _log.info(
            "configure_train: Poisson cohort of %d of %d nodes (expected %.1f)",
            len(cohort),
            len(node_ids),
            self.expected_cohort,
        )
        self._model, self._cohort, self._asked_at = arrays, cohort, time.monotonic()
        self._rounds_asked += 1
        content, message_type = self._inner_request(server_round, arrays, config, grid, cohort)
        return [Message(content, node_id, message_type) for node_id in cohort]

    def _inner_request(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        cohort: list[int],
    ) -> tuple[RecordDict, str]:
        """Return what the inner strategy sends in this round; its own state is its own affair."""
        minimum = max(
            2,
            getattr(self.strategy, "min_available_nodes", 0),
            getattr(self.strategy, "min_train_nodes", 0),
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
        return messages[0].content, messages[0].metadata.message_type

    # ------------------------------------------------------------------ aggregate
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Charge the round, then release the clipped and noised sum through the inner strategy."""
        spent = self._charge()
        total = ClippedSum(self._model, self.clip_norm, self.excluded)
        used = failed = refused = 0
        awaited = set(self._cohort)
        for reply in replies:
            if reply.has_error():
                failed += 1
                self._note(f"a client failed: {reply.error.reason}")
                continue
            try:
                node_id = reply.metadata.src_node_id
                if node_id not in awaited:  # two replies of one client would weigh 2 rho
                    raise ValueError("its node was not asked, or has replied already")
                awaited.remove(node_id)
                self._add(total, reply.content)
            except ValueError as error:
                refused += 1
                self._note(f"a reply was refused: {error}")
            else:
                used += 1
        released = used >= self.min_replies
        metrics: dict[str, int | float] = {
            "cohort": len(self._cohort),
            "replies": used,
            "failures": failed,
            "refused": refused,
            "fraction-projected": total.projected / used if used else 0.0,
        }
        arrays: ArrayRecord | None = None
        if released:
            noise_std = self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0
            mean = total.mean(self.expected_cohort, noise_std, self._rng or secure_generator())
            metrics["mean-norm"] = float(np.linalg.norm(mean))
            metrics["noise-norm"] = noise_std * math.sqrt(total.dim) / self.expected_cohort
            arrays, inner_metrics = self._optimise(server_round, total, mean)
            self.last_arrays = arrays
            metrics.update(inner_metrics)
            self._rounds_released += 1
        else:
            self._note(f"a round was skipped: fewer than min_replies={self.min_replies} replies")
            _log.warning(
                "round %d: %d usable replies, below min_replies=%d: the model is left as it is",
                server_round,
                used,
                self.min_replies,
            )
        if not self._claims_central:
            spent = None  # charged, but not a guarantee
        if spent is not None:
            metrics["cdp-epsilon"] = spent.epsilon
        metrics["seconds"] = time.monotonic() - self._asked_at
        self.last_round = dict(metrics)
        _log.info(
            "aggregate_train: %d replies used, %d failed, %d refused, %d projected%s",
            used,
            failed,
            refused,
            total.projected,
            "" if spent is None else f"; central epsilon {spent.epsilon:.6g} at {spent.delta:g}",
        )
        return arrays, MetricRecord(dict(metrics))

    def _add(self, total: ClippedSum, content: RecordDict) -> None:
        records = list(content.array_records.values())
        if len(records) != 1:
            raise ValueError(f"it carries {len(records)} ArrayRecords, not 1")
        marks = _local_marks(content)
        if marks is None and self.require_local_dp:
            raise ValueError("it does not carry the mark of SeparatedDPMod (require_local_dp)")
        total.add(records[0])
        for name in sorted(_plain_metrics(content)):
            self._note(f"the metric {name!r} left devices as it was, with no privacy")
        if marks is None:
            self._note("a reply without local privacy was used (require_local_dp=False)")
        else:
            self._local = marks if self._local is None else self._local.widened(marks)

    def _optimise(
        self, server_round: int, total: ClippedSum, mean: np.ndarray
    ) -> tuple[ArrayRecord, dict[str, int | float]]:
        """Hand the private mean to the inner strategy, as the reply of one client."""
        moved = total.moved(self.server_learning_rate * mean)
        weight_key = getattr(self.strategy, "weighted_by_key", "num-examples")
        arrays_key = getattr(self.strategy, "arrayrecord_key", "arrays")
        content = RecordDict({arrays_key: moved, "metrics": MetricRecord({weight_key: 1})})
        reply = Message(content, 0, MessageType.TRAIN)
        with quiet("flwr", logging.WARNING):  # it sees one reply for the whole cohort
            arrays, metrics = self.strategy.aggregate_train(server_round, [reply])
        if arrays is None:
            raise ValueError(
                f"strategy must aggregate a single reply; {type(self.strategy).__name__} did not"
            )
        scalars = {
            name: value for name, value in (metrics or {}).items() if isinstance(value, int | float)
        }
        return total.like_model(arrays), scalars

    # ------------------------------------------------------------------ account
    @property
    def expected_cohort(self) -> float:
        """Expected number of clients in a round, q N: the divisor of the sum."""
        if self.population is None:
            raise ValueError("population is not known before the first round")
        return self.sampling_rate * self.population

    def privacy_spent(self) -> PrivacySpent | None:
        """Return what has been charged so far, or None if nothing was.

        It is the central guarantee unless :meth:`report` says otherwise.
        """
        if self.accountant is None or self.accountant.num_releases == 0:
            return None
        return self.accountant.get_privacy_spent()

    def report(self) -> PrivacyReport:
        """Return what has been guaranteed to whom so far, and every exception to it."""
        exceptions = [f"{text} ({count}x)" for text, count in sorted(self._exceptions.items())]
        if self.seed is not None:
            exceptions.append(
                f"the cohorts were drawn from seed {self.seed}: amplification by sampling holds "
                "only against whoever does not know it"
            )
        if self._rng is not None and not self._rng.is_secure:
            exceptions.append("the noise came from a seeded generator: no central guarantee holds")
        if self.min_replies:
            exceptions.append(
                f"min_replies={self.min_replies}: whether a round was skipped shows in the model "
                "and no noise covers it: no central guarantee is claimed"
            )
        spent = self.privacy_spent()
        central = None
        if spent is not None and self._claims_central:
            central = CentralGuarantee(
                epsilon=spent.epsilon,
                delta=spent.delta,
                releases=spent.num_releases,
                accountant=spent.accounting_method,
                noise_multiplier=self.noise_multiplier,
                clip_norm=self.clip_norm,
                sampling_rate=self.sampling_rate,
                population=int(self.population or 0),
            )
        unprotected = any("without local privacy" in text for text in self._exceptions)
        return PrivacyReport(
            rounds=self._rounds_released,
            max_reports_per_client=self._rounds_asked,
            local=None if unprotected else self._local,
            central=central,
            exceptions=tuple(exceptions),
        )

    @property
    def _claims_central(self) -> bool:
        """Whether what was charged is a guarantee; :meth:`report` says why if not."""
        return not self.min_replies and (self._rng is None or self._rng.is_secure)

    def _event(self) -> GaussianPrivacyEvent:
        return poisson_event(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            population=int(self.population or 0),
        )

    def _fix_population(self, connected: int) -> None:
        if self.population is None:
            self.population = connected
        if connected > self.population:
            self._note(
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
            self.accountant = poisson_rdp_accountant(
                population=self.population,
                delta=self.delta or min(1e-5, 0.1 / self.population),
                max_epsilon=self.max_epsilon,
            )

    def _check_budget(self) -> None:
        if self.accountant is None:
            return
        limits = (self.max_epsilon, self.accountant.config.max_epsilon)
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is None:
            return
        # Flower's check of a round replays all rounds before it: count once how many are left, and
        # again only if something but this strategy was charged, or the setting has changed.
        state = (self._event(), limit, self.accountant.num_releases)
        if state != self._affordable_state:
            self._affordable = affordable_releases(self.accountant, self._event(), limit)
        if self._affordable == 0:
            spent = self.accountant.get_privacy_spent()
            raise PrivacyBudgetExhausted(
                f"one more round would exceed max_epsilon={limit:g} (spent: {spent.epsilon:.6g} at "
                f"delta {spent.delta:g} in {spent.num_releases} rounds)"
            )
        self._affordable -= 1
        self._affordable_state = (state[0], limit, self.accountant.num_releases + 1)

    def _charge(self) -> PrivacySpent | None:
        if self.accountant is None:
            return None
        compose(self.accountant, self._event())
        return self.accountant.get_privacy_spent()

    def _cohort_rng(self, server_round: int) -> KeystreamGenerator:
        if self.seed is None:
            return secure_generator()
        return seeded_generator(self.seed, "cohort", server_round)

    def _note(self, exception: str) -> None:
        """Remember an exception to the rule for the report; repeats are counted, not listed."""
        exception = " ".join(exception.split())[:200]
        if exception not in self._exceptions and len(self._exceptions) >= _MAX_EXCEPTIONS:
            exception = "further exceptions of other kinds"
        self._exceptions[exception] = self._exceptions.get(exception, 0) + 1

    # ------------------------------------------------------------------ the rest is the inner one's
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Leave evaluation to the inner strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the settings."""
        _log.info("\t├──> ClipAndNoise settings:")
        _log.info("\t│\t├── Clip norm: %g", self.clip_norm)
        _log.info("\t│\t├── Noise multiplier: %g", self.noise_multiplier)
        _log.info("\t│\t├── Poisson sampling rate: %g", self.sampling_rate)
        _log.info("\t│\t├── Server learning rate: %g", self.server_learning_rate)
        _log.info("\t│\t└── Local privacy required: %s", self.require_local_dp)
        self.strategy.summary()


def _check_accountant(accountant: PrivacyAccountant, population: int | None) -> None:
    config = accountant.config
    if config.sampling_method is not SamplingMethod.POISSON or (
        config.neighboring_relation is not NeighboringRelation.ADD_OR_REMOVE_ONE
    ):
        raise ValueError(
            "accountant must assume Poisson sampling and add-or-remove-one neighbours, which is "
            f"what is run; got {config.sampling_method.value}, {config.neighboring_relation.value}"
        )
    if population is not None and population != config.population_size:
        raise ValueError(
            f"population must be the accountant's {config.population_size}; got {population}"
        )


def _plain_metrics(content: RecordDict) -> set[str]:
    """Return the names of the metrics in a reply that no mechanism has privatized."""
    names = {name for record in content.metric_records.values() for name in record}
    return {name for name in names if name != "num-examples" and not name.startswith("ldp-")}


def _local_marks(content: RecordDict) -> LocalGuarantee | None:
    """Return the local guarantee that a reply declares, or None."""
    for record in content.metric_records.values():
        values = [record.get(name) for name in _LOCAL_MARKS]
        if all(isinstance(value, float) and 0 < value < math.inf for value in values):
            direction, magnitude = (float(value) for value in values if isinstance(value, float))
            return LocalGuarantee(epsilon_direction=direction, epsilon_magnitude=magnitude)
    return None
