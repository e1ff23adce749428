"""Confidence intervals of a probability that was measured by counting."""

from __future__ import annotations

from scipy.stats import beta


def at_least(successes: int, trials: int, error: float) -> float:
    """Return a probability that the true one falls below with a probability of at most `error`.

    The lower end of Clopper and Pearson (Biometrika 26, 1934), exact at every count.
    """
    if successes == 0:
        return 0.0
    return float(beta.ppf(error, successes, trials - successes + 1))


def at_most(successes: int, trials: int, error: float) -> float:
    """Return a probability that the true one exceeds with a probability of at most `error`."""
    if successes == trials:
        return 1.0
    return float(beta.isf(error, successes + 1, trials - successes))


def interval(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the two-sided interval of Clopper and Pearson."""
    error = (1.0 - confidence) / 2.0
    return at_least(successes, trials, error), at_most(successes, trials, error)
