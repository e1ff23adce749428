"""How much noise a central guarantee takes."""

from __future__ import annotations

import math

from flwr_sdp import _validate
from flwr_sdp.strategies.events import LEAST_MULTIPLIER, MOST_MULTIPLIER
from flwr_sdp.strategies.privacy_loss import PrivacyLoss, SampledGaussian

# Of the target; what is asked for is 0.99.
_CLOSE = 0.997


def noise_multiplier_for(
    *, epsilon: float, delta: float, sampling_rate: float, rounds: int
) -> float:
    """Return the smallest noise multiplier z that keeps a training within (epsilon, delta).

    The release of every round is charged as :class:`~flwr_sdp.strategies.PldAccountant` charges it,
    for Poisson cohorts and neighbours that differ by one client more or less. For cohorts of fixed
    size, take twice the result at ``sampling_rate=1``.

    Parameters
    ----------
    epsilon : float
        Target of the whole training, positive.
    delta : float
        In (0, 1). Take it well below one over the number of clients: from there on it permits to
        publish one of them outright.
    sampling_rate : float
        q, in (0, 1]. (Accountants other than ours charge the next larger whole number of clients.)
    rounds : int
        Number of releases.

    Returns
    -------
    float
        z: its accounted epsilon is at most `epsilon`, and at least 0.99 of it.

    Raises
    ------
    ValueError
        If a number is out of range, or no noise multiplier between 1e-6 and 1e12 is the answer.
    """
    epsilon = _validate.number("epsilon", epsilon, above=0.0)
    delta = _validate.number("delta", delta, above=0.0, below=1.0)
    sampling_rate = _validate.number("sampling_rate", sampling_rate, above=0.0, maximum=1.0)
    rounds = _validate.integer("rounds", rounds, minimum=1)

    def accounted(noise_multiplier: float) -> float:
        release = SampledGaussian(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
        return PrivacyLoss().epsilon({release: rounds}, delta)

    high = low = 1.0
    spent = accounted(high)
    if spent > epsilon:
        while spent > epsilon:
            if high > MOST_MULTIPLIER:
                least, asked = _validate.apart(spent, epsilon, digits=3)
                raise ValueError(
                    f"epsilon must be above {least}, which a noise multiplier of {high:.3g} "
                    f"does not get below; got {asked}"
                )
            low, high = high, 4.0 * high
            spent = accounted(high)
    else:
        low = high / 4.0
        while (cost := accounted(low)) <= epsilon:
            if low < LEAST_MULTIPLIER:
                raise ValueError(_too_easy(epsilon, delta, cost))
            low, high, spent = low / 4.0, low, cost
    # Invariant: `high` keeps within epsilon, `low` does not.
    while spent < _CLOSE * epsilon and high > low * (1.0 + 1e-9):
        middle = math.sqrt(low * high)
        cost = accounted(middle)
        if cost <= epsilon:
            high, spent = middle, cost
        else:
            low = middle
    return high


def _too_easy(epsilon: float, delta: float, cost: float) -> str:
    if cost < 1.0:
        return (
            "delta must be below the probability that a client is ever asked, or it permits to "
            f"leave the noise out altogether; got {delta!r}"
        )
    most, asked = _validate.apart(cost, epsilon, digits=3)
    return (
        f"epsilon must be at most {most}, the cost of hardly any noise "
        f"(noise multiplier {LEAST_MULTIPLIER:g}); got {asked}"
    )
