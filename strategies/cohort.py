"""Who is asked in a round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar, Protocol

from flwr.app import Message
from flwr.serverapp import (
    GaussianPrivacyEvent,
    Grid,
    PrivacyAccountant,
    SamplingMethod,
)

from flwr_sdp.randomness import KeystreamGenerator
from flwr_sdp.strategies.accountants import (
    fixed_size_accountant,
    fixed_size_event,
    poisson_accountant,
    poisson_event,
)
from flwr_sdp.strategies.grid_view import GridView


class Sampling(Protocol):
    """How a cohort is drawn, and what a release over it is charged as: a dataclass of settings."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    setting: ClassVar[str]
    """The argument of the strategy that chooses it."""
    method: ClassVar[SamplingMethod]
    """What an accountant has to assume."""

    @property
    def least_nodes(self) -> int:
        """Nodes that have to be connected for a draw."""

    def draw(self, node_ids: list[int], rng: KeystreamGenerator) -> list[int]:
        """Return a cohort, in the order of `node_ids`."""

    def expected_cohort(self, population: int) -> float:
        """Return what the sum is divided by, whoever replies."""

    def event(self, noise_multiplier: float, population: int) -> GaussianPrivacyEvent:
        """Return what one round is charged as."""

    def accountant(
        self, *, population: int, delta: float, max_epsilon: float | None
    ) -> PrivacyAccountant:
        """Return the default accountant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoissonSampling:
    """Each node is in with probability `sampling_rate`, whatever the others do.

    **Privacy.** One client more or less changes the sum by rho, and only when it is drawn: the
    release is amplified by the secrecy of the draw.
    """

    sampling_rate: float
    name: ClassVar[str] = "poisson"
    setting: ClassVar[str] = "sampling_rate"
    method: ClassVar[SamplingMethod] = SamplingMethod.POISSON

    @property
    def least_nodes(self) -> int:
        """Nodes that have to be connected: none, an empty cohort is a draw like any other."""
        return 0

    def draw(self, node_ids: list[int], rng: KeystreamGenerator) -> list[int]:
        """Return one Poisson draw."""
        return poisson_cohort(node_ids, self.sampling_rate, rng)

    def expected_cohort(self, population: int) -> float:
        """Return q N."""
        return self.sampling_rate * population

    def event(self, noise_multiplier: float, population: int) -> GaussianPrivacyEvent:
        """Return the Poisson-sampled Gaussian."""
        return poisson_event(
            noise_multiplier=noise_multiplier,
            sampling_rate=self.sampling_rate,
            population=population,
        )

    def accountant(
        self, *, population: int, delta: float, max_epsilon: float | None
    ) -> PrivacyAccountant:
        """Return the default accountant."""
        return poisson_accountant(population=population, delta=delta, max_epsilon=max_epsilon)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedSizeSampling:
    """Always `cohort_size` nodes, every set of that many as likely as any other.

    **Privacy.** With one client more, a cohort that has it is a cohort of the others with one of
    them exchanged for it. The two sums are 2 rho apart at most, so a round is charged as a
    Gaussian release with half of the noise multiplier, and nothing is claimed from the secrecy of
    the draw. The same charge covers the exchange of one client for another.
    """

    cohort_size: int
    name: ClassVar[str] = "fixed-size"
    setting: ClassVar[str] = "cohort_size"
    method: ClassVar[SamplingMethod] = SamplingMethod.NO_AMPLIFICATION

    @property
    def least_nodes(self) -> int:
        """Nodes that have to be connected."""
        return self.cohort_size

    def draw(self, node_ids: list[int], rng: KeystreamGenerator) -> list[int]:
        """Return one draw without replacement."""
        return fixed_size_cohort(node_ids, self.cohort_size, rng)

    def expected_cohort(self, population: int) -> float:
        """Return the size of the cohort."""
        return float(self.cohort_size)

    def event(self, noise_multiplier: float, population: int) -> GaussianPrivacyEvent:
        """Return the Gaussian at sensitivity 2 rho."""
        return fixed_size_event(
            noise_multiplier=noise_multiplier,
            cohort_size=self.cohort_size,
            population=population,
        )

    def accountant(
        self, *, population: int, delta: float, max_epsilon: float | None
    ) -> PrivacyAccountant:
        """Return the default accountant."""
        return fixed_size_accountant(population=population, delta=delta, max_epsilon=max_epsilon)


def poisson_cohort(
    node_ids: Iterable[int], sampling_rate: float, rng: KeystreamGenerator
) -> list[int]:
    """Return the nodes of one Poisson draw: each is in with probability `sampling_rate`, alone.

    In the given order. The cohort may be empty; that is part of the law that the accountant
    assumes.
    """
    pool = list(node_ids)
    if sampling_rate >= 1.0:
        return pool
    log_odds = math.log(sampling_rate) - math.log1p(-sampling_rate)
    return list(compress(pool, rng.bernoullis(log_odds, len(pool)).tolist()))


def fixed_size_cohort(
    node_ids: Iterable[int], cohort_size: int, rng: KeystreamGenerator
) -> list[int]:
    """Return `cohort_size` of the nodes, every set of that many with the same probability.

    In the given order. Fewer nodes than that are returned as they are.
    """
    pool = list(node_ids)
    order = list(range(len(pool)))
    for place in range(min(cohort_size, len(pool))):  # the first steps of a Fisher-Yates shuffle
        other = place + int(rng.integers(len(order) - place, 1)[0])
        order[place], order[other] = order[other], order[place]
    return [pool[index] for index in sorted(order[:cohort_size])]


def wait_for_nodes(
    grid: Grid, least: int, timeout: float, setting: str = "min_available_nodes"
) -> list[int]:
    """Return the connected nodes, once there are `least` of them, as `setting` wants.

    Raises
    ------
    TimeoutError
        After `timeout` seconds, naming the setting to change.
    """
    deadline = time.monotonic() + timeout
    while True:
        node_ids = list(grid.get_node_ids())
        if len(node_ids) >= least:
            return node_ids
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"{len(node_ids)} of {setting}={least} nodes connected within "
                f"node_timeout={timeout:g} s: start more nodes or lower {setting}"
            )
        time.sleep(0.1)


class CohortGrid(GridView):
    """A grid that shows an inner strategy the cohort and nothing else.

    Flower's strategies wait for a minimum number of nodes, even for a cohort that chance made
    smaller; stand-in ids, up to `minimum` nodes in all, keep them from waiting. Nothing can be sent
    through it.
    """

    def __init__(self, grid: Grid, cohort: list[int], minimum: int) -> None:
        super().__init__(grid)
        padding = (-1 - index for index in range(max(0, minimum - len(cohort))))
        self._node_ids = [*cohort, *padding]

    def get_node_ids(self) -> Iterable[int]:
        """Return the cohort."""
        return list(self._node_ids)

    def set_run(self, run: Any) -> None:
        """Refuse: the run is the real grid's."""
        raise NotImplementedError("the inner strategy only configures a round")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: the wrapper decides what is sent."""
        raise NotImplementedError("the inner strategy only configures a round")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: the wrapper collects the replies."""
        raise NotImplementedError("the inner strategy only configures a round")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Refuse: the wrapper decides what is sent."""
        raise NotImplementedError("the inner strategy only configures a round")
