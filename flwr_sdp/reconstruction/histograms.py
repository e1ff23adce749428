r"""Reconstruction of a set of words, under the Zipf prior.

The data of a device are the words of a dictionary it has used, x in {0, 1}^d, at least m of them.
Beforehand, word j is in with probability :math:`\min\{m / j, 1\}`, independently of the others. An
onlooker names a set v of words: its *precision* is the share of v that is right, its *recall* the
share of x that v has. Both bounds are Bernstein's inequality, as in appendix A.1 of Bhowmick et
al., arXiv:1812.00984v2, with the constants that the proof supports. The printed ones are false:

- precision: the lemma has 2 log gamma where the proof has 4 log gamma;
- recall: it is for :math:`v^T 1 \le \gamma m` (a set of all words has recall 1), and
  :math:`4 \max(r, 1 - r)^2` stands where the lemma prints :math:`4 (1 - r^2)`;
- both at once: "gamma = (2/p) log(1/p) for any p" gives nothing, or something false, for p above
  0.0686. Here the two bounds are evaluated and gamma is chosen by minimising.
"""

from __future__ import annotations

import math

from flwr_sdp import _validate
from flwr_sdp._numerics import root
from flwr_sdp.reconstruction.posterior import largest_epsilon

_LEAST_RATIO = 2.0


def log_precision_bound(*, precision: float, batch_size: int, ratio: float) -> float:
    """Return the log of :func:`precision_bound`."""
    p = _fraction("precision", precision)
    m, gamma = _batch(batch_size), _ratio(ratio)
    return _log_precision(p, m, math.log(gamma))


def precision_bound(*, precision: float, batch_size: int, ratio: float) -> float:
    r"""Bound the prior probability that a set of words has a precision of p or more.

    Parameters
    ----------
    precision : float
        p, in (0, 1].
    batch_size : int
        m, the least number of words a device has before it takes part.
    ratio : float
        gamma >= 2: the bound holds for every set of at least :math:`\gamma m` words.

    Returns
    -------
    float
        A probability, 1 where nothing is said. After a release of loss epsilon it has become at
        most :math:`e^\epsilon` times as large.
    """
    return math.exp(log_precision_bound(precision=precision, batch_size=batch_size, ratio=ratio))


def log_recall_bound(
    *, recall: float, dictionary_size: int, batch_size: int, ratio: float
) -> float:
    """Return the log of :func:`recall_bound`."""
    r = _fraction("recall", recall)
    m, gamma = _batch(batch_size), _ratio(ratio)
    d = _dictionary(dictionary_size, m)
    return _log_recall(r, d, m, math.log(gamma))


def recall_bound(*, recall: float, dictionary_size: int, batch_size: int, ratio: float) -> float:
    r"""Bound the prior probability that a set of words has a recall of r or more.

    Parameters
    ----------
    recall : float
        r, in (0, 1].
    dictionary_size : int
        d, above `batch_size`.
    batch_size : int
        m, the least number of words a device has before it takes part.
    ratio : float
        gamma >= 2: the bound holds for every set of at most :math:`\gamma m` words.

    Returns
    -------
    float
        A probability, 1 where nothing is said.
    """
    return math.exp(
        log_recall_bound(
            recall=recall, dictionary_size=dictionary_size, batch_size=batch_size, ratio=ratio
        )
    )


def log_histogram_bound(
    *, precision: float, recall: float, dictionary_size: int, batch_size: int
) -> float:
    r"""Return the log of a bound on the prior probability of precision >= p and recall >= r.

    For any set of words and any gamma >= 2, the set has either at least :math:`\gamma m` words, and
    the precision bound holds, or fewer, and the recall bound does: so the larger of the two holds
    for all sets. gamma is chosen to make it small.
    """
    p, r = _fraction("precision", precision), _fraction("recall", recall)
    m = _batch(batch_size)
    d = _dictionary(dictionary_size, m)
    low, high = math.log(_LEAST_RATIO), math.log(max(d / m, _LEAST_RATIO))

    def difference(log_ratio: float) -> float:
        return _log_precision(p, m, log_ratio) - _log_recall(r, d, m, log_ratio)

    # From gamma = 1/p on the precision bound falls; the recall bound rises throughout.
    low = min(max(low, -math.log(p)), high)
    if difference(low) <= 0.0:
        best = low
    elif difference(high) >= 0.0:
        best = high
    else:
        best = root(difference, low, high)
    return max(_log_precision(p, m, best), _log_recall(r, d, m, best))


def histogram_breach_probability(
    *, epsilon: float, precision: float, recall: float, dictionary_size: int, batch_size: int
) -> float:
    r"""Bound the probability that an onlooker of a private release reconstructs a set of words.

    Parameters
    ----------
    epsilon : float
        Local privacy loss of all the releases the onlooker sees, summed.
    precision, recall : float
        Both are to be reached for a breach; in (0, 1].
    dictionary_size, batch_size : int
        d and m.

    Returns
    -------
    float
        ``min(1, e^epsilon bound)``. (The paper prints the loss of its proposition the wrong way
        round: it has to be 0 where the words are found.)
    """
    epsilon = _validate.number("epsilon", epsilon, minimum=0.0)
    log_bound = log_histogram_bound(
        precision=precision,
        recall=recall,
        dictionary_size=dictionary_size,
        batch_size=batch_size,
    )
    return math.exp(min(epsilon + log_bound, 0.0))


def histogram_max_epsilon(
    *, probability: float, precision: float, recall: float, dictionary_size: int, batch_size: int
) -> float:
    """Return the largest epsilon at which :func:`histogram_breach_probability` is `probability`.

    Raises
    ------
    ValueError
        If the bound is above `probability` without any release.
    """
    log_bound = log_histogram_bound(
        precision=precision,
        recall=recall,
        dictionary_size=dictionary_size,
        batch_size=batch_size,
    )
    advice = "let devices collect more words (batch_size), or ask for less"
    return largest_epsilon(probability, log_bound, advice)


def recommended_batch_size(dictionary_size: int, power: float) -> int:
    r"""Return m = ceil(d^rho), how many words the paper has a device collect before it takes part.

    Its recommendation goes on: at most :math:`\epsilon = c m` with a small constant c. What c may
    be is :func:`histogram_max_epsilon` over m.

    Parameters
    ----------
    dictionary_size : int
        d, at least 2.
    power : float
        rho, in (0, 1).
    """
    d = _validate.integer("dictionary_size", dictionary_size, minimum=2)
    power = _validate.number("power", power, above=0.0, below=1.0)
    return math.ceil(math.pow(d, power) * (1.0 - 1e-12))


def _log_precision(p: float, m: int, log_ratio: float) -> float:
    gain = p * math.exp(log_ratio) - 1.0 - log_ratio
    return _bernstein(gain, m, 4.0 * log_ratio)


def _log_recall(r: float, d: int, m: int, log_ratio: float) -> float:
    gain = r * (1.0 + math.log(d / (m + 1))) - 1.0 - log_ratio
    return _bernstein(gain, m, 4.0 * max(r, 1.0 - r) ** 2 * math.log(d / m))


def _bernstein(gain: float, m: int, variance: float) -> float:
    if gain <= 0.0:
        return 0.0
    return -m * gain * min(gain / variance, 0.75)


def _fraction(name: str, value: float) -> float:
    return _validate.number(name, value, above=0.0, maximum=1.0)


def _batch(value: int) -> int:
    return _validate.integer("batch_size", value, minimum=1)


def _ratio(value: float) -> float:
    return _validate.number("ratio", value, minimum=_LEAST_RATIO)


def _dictionary(value: int, m: int) -> int:
    return _validate.integer("dictionary_size", value, minimum=m + 1)
