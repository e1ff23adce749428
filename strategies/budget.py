"""What a limit on epsilon still affords."""

from __future__ import annotations

import logging

from flwr.serverapp import GaussianPrivacyEvent, PrivacyAccountant
from flwr.serverapp.exception import PrivacyBudgetExhausted

from flwr_sdp import _validate
from flwr_sdp.strategies._quiet import quiet


class Budget:
    """The rounds that are left under a limit on epsilon, counted down.

    Flower's check of a round replays all rounds before it. Here they are counted once, and again
    only if something but these rounds was charged, or the round or the limit has changed.
    """

    def __init__(self) -> None:
        self._left = 0
        self._counted_for: tuple[GaussianPrivacyEvent, float, int] | None = None

    def spend(
        self, accountant: PrivacyAccountant, event: GaussianPrivacyEvent, max_epsilon: float | None
    ) -> None:
        """Take off one round, which the accountant is charged before the next one.

        Parameters
        ----------
        accountant : PrivacyAccountant
            What has been charged so far. Its own limit holds as well.
        event : GaussianPrivacyEvent
            What the round is charged as.
        max_epsilon : float or None
            The limit, if there is one.

        Raises
        ------
        flwr.serverapp.exception.PrivacyBudgetExhausted
            If the round would exceed the lower of the limits.
        """
        limits = (max_epsilon, accountant.config.max_epsilon)
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is None:
            return
        if self._counted_for != (event, limit, accountant.num_releases):
            self._left = affordable_releases(accountant, event, limit)
        if self._left == 0:
            spent = accountant.get_privacy_spent()
            allowed, epsilon = _validate.apart(limit, spent.epsilon)
            raise PrivacyBudgetExhausted(
                f"one more round would exceed max_epsilon={allowed} (spent: "
                f"{epsilon} at delta {spent.delta:g} in {spent.num_releases} "
                "rounds)"
            )
        self._left -= 1
        self._counted_for = (event, limit, accountant.num_releases + 1)


def affordable_releases(
    accountant: PrivacyAccountant, event: GaussianPrivacyEvent, max_epsilon: float
) -> int:
    """Return how many more releases of `event` keep `accountant` within `max_epsilon`.

    At most ``2**20``, which no training reaches.
    """

    def fits(count: int) -> bool:
        return not accountant.would_exceed(event, max_epsilon, count)

    with quiet("absl", logging.ERROR):
        if not fits(1):
            return 0
        low = 1
        while low < 2**20 and fits(2 * low):
            low *= 2
        high = 2 * low
        while high - low > 1 and low < 2**20:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    return low
