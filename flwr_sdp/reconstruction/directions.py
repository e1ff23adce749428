"""Reconstruction of a direction, such as the content of an image, under a diffuse prior.

Proposition "breach" of Bhowmick et al., arXiv:1812.00984v2, section 2.3.1.
"""

from __future__ import annotations

import math
from typing import Literal

from flwr_sdp import _validate
from flwr_sdp._numerics import MAX_DIM
from flwr_sdp.reconstruction.posterior import largest_epsilon
from flwr_sdp.sphere import MAX_THRESHOLD, Cap

BreachRule = Literal["paper", "tight"]
_RULES: tuple[BreachRule, ...] = ("paper", "tight")


def log_breach_bound(
    *,
    epsilon: float,
    dim_target: int,
    tolerance: float,
    prior: float = 0.0,
    rule: BreachRule = "paper",
) -> float:
    r"""Return the log of the bound of :func:`breach_probability`, not capped at 0.

    The parameters are those of :func:`breach_probability`.
    """
    epsilon = _validate.number("epsilon", epsilon, minimum=0.0)
    k = _validate.integer("dim_target", dim_target, minimum=2, maximum=MAX_DIM)
    a = _validate.number("tolerance", tolerance, minimum=0.0, maximum=1.0)
    prior = _validate.number("prior", prior, minimum=0.0)
    _validate.choice("rule", rule, _RULES)
    if rule == "tight":
        # Beyond MAX_THRESHOLD the cap there is an upper bound, since caps shrink as a grows.
        return epsilon + prior + Cap(k, min(a, MAX_THRESHOLD)).log_probability
    if k < 4:
        raise ValueError(
            f'dim_target must be >= 4 for rule="paper"; got {k}: use rule="tight", which is exact'
        )
    if a == 1.0:
        return -math.inf
    branches = []
    if a <= math.sqrt(0.5):
        branches.append(k / 2 * math.log1p(-a * a))
    if a >= math.sqrt(2.0 / k):
        branches.append((k - 1) / 2 * math.log1p(-a * a) - math.log(2.0 * a * math.sqrt(k)))
    return epsilon + prior + min(branches)


def breach_probability(
    *,
    epsilon: float,
    dim_target: int,
    tolerance: float,
    prior: float = 0.0,
    rule: BreachRule = "paper",
) -> float:
    r"""Bound the probability that an onlooker reconstructs a direction from a private release.

    Parameters
    ----------
    epsilon : float
        Local privacy loss of all the releases the onlooker sees, summed.
    dim_target : int
        k, the real dimension of the target direction; at least 2 (4 for ``rule="paper"``).
    tolerance : float
        a in [0, 1]: a reconstruction counts as a breach when its cosine with the truth is at least
        a, that is when its distance is at most :math:`\sqrt{2 - 2a}`.
    prior : float
        :math:`\rho_0 \ge 0`, how far the onlooker's prior may be from uniform: the log of the
        largest ratio of densities. 0 is a uniform prior.
    rule : {"paper", "tight"}
        The proposition's bounds, or the exact probability of the spherical cap.

    Returns
    -------
    float
        ``min(1, bound)``: the posterior probability of a breach, whatever was released. The bound
        itself may exceed 1, and then it says nothing; :func:`log_breach_bound` tells by how much.
    """
    log_bound = log_breach_bound(
        epsilon=epsilon, dim_target=dim_target, tolerance=tolerance, prior=prior, rule=rule
    )
    return math.exp(min(log_bound, 0.0))


def max_epsilon_for(
    *,
    probability: float,
    dim_target: int,
    tolerance: float,
    prior: float = 0.0,
    rule: BreachRule = "paper",
) -> float:
    """Return the largest epsilon at which :func:`breach_probability` is at most `probability`.

    Parameters
    ----------
    probability : float
        Allowed probability of a breach, in (0, 1].
    dim_target, tolerance, prior, rule
        As for :func:`breach_probability`.

    Raises
    ------
    ValueError
        If the bound is above `probability` without any release: the prior alone allows it.
    """
    log_bound = log_breach_bound(
        epsilon=0.0, dim_target=dim_target, tolerance=tolerance, prior=prior, rule=rule
    )
    return largest_epsilon(probability, log_bound, "choose a larger tolerance or dim_target")


def tolerance_for(
    *,
    probability: float,
    epsilon: float,
    dim_target: int,
    prior: float = 0.0,
    rule: BreachRule = "paper",
) -> float:
    """Return the smallest cosine that is reached with a probability of at most `probability`.

    Parameters
    ----------
    probability : float
        Allowed probability of a breach, in (0, 1].
    epsilon, dim_target, prior, rule
        As for :func:`breach_probability`.

    Returns
    -------
    float
        a in [0, 1], to 1e-12 from above.

    Raises
    ------
    ValueError
        If none is that improbable: at ``rule="tight"`` caps below 1.4e-3 radians count as one.
    """
    probability = _validate.number("probability", probability, above=0.0, maximum=1.0)
    limit = math.log(probability)

    def holds(a: float) -> bool:
        bound = log_breach_bound(
            epsilon=epsilon, dim_target=dim_target, tolerance=a, prior=prior, rule=rule
        )
        return bound <= limit

    if holds(0.0):
        return 0.0
    if not holds(1.0):
        raise ValueError(
            f"probability must be larger; got {probability!r}: at epsilon={epsilon!r} even the "
            "exact direction may be found with more"
        )
    low, high = 0.0, 1.0  # the bound falls with the tolerance, down a step at sqrt(2 / k)
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
