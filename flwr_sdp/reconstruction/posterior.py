"""How far a private release can move a belief: the two lemmas that all other bounds rest on."""

from __future__ import annotations

import math

from flwr_sdp import _validate


def log_posterior_bound(*, log_prior: float, epsilon: float) -> float:
    r"""Return the log of :func:`posterior_bound`, from the log of the prior probability."""
    log_prior = _validate.number("log_prior", log_prior, maximum=0.0)
    epsilon = _validate.number("epsilon", epsilon, minimum=0.0)
    if log_prior == 0.0:
        return 0.0
    # log of 1 / (1 + e^(-log odds)), for odds e^epsilon q / (1 - q) too large or small for floats
    log_odds = epsilon + log_prior - math.log(-math.expm1(log_prior))
    return min(log_odds, 0.0) - math.log1p(math.exp(-abs(log_odds)))


def largest_epsilon(probability: float, log_bound: float, advice: str) -> float:
    """Return the epsilon that raises a bound, given without any release, to `probability`.

    Raises
    ------
    ValueError
        If the bound is above it already; the text ends with `advice`.
    """
    probability = _validate.number("probability", probability, above=0.0, maximum=1.0)
    epsilon = math.log(probability) - log_bound
    if epsilon < -4.0 * math.ulp(max(1.0, abs(log_bound))):  # more than equal decimals differ by
        least, got = _validate.apart(math.exp(min(log_bound, 700.0)), probability, digits=3)
        raise ValueError(
            f"probability must be >= {least}, the bound without any release; got {got}: {advice}"
        )
    return max(epsilon, 0.0)


def posterior_bound(*, prior: float, epsilon: float) -> float:
    r"""Bound what the probability of any event can become when a private release is seen.

    Parameters
    ----------
    prior : float
        Probability q of the event beforehand, in [0, 1]: that a certain guess is right, say.
    epsilon : float
        Pure local privacy loss of everything that is seen.

    Returns
    -------
    float
        :math:`e^\epsilon q / (1 - q + e^\epsilon q)`, at most 1.

    Notes
    -----
    Lemma bayesian-updating: the odds of an event against its complement grow by at most
    :math:`e^\epsilon`, whatever is released. Lemma preserve-difficulty has the simpler, slightly
    weaker :math:`\min(1, e^\epsilon q)`.
    """
    prior = _validate.number("prior", prior, minimum=0.0, maximum=1.0)
    epsilon = _validate.number("epsilon", epsilon, minimum=0.0)
    if prior == 0.0:
        return 0.0
    return math.exp(log_posterior_bound(log_prior=math.log(prior), epsilon=epsilon))
