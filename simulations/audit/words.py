r"""Recovering a set of words from the private release of its histogram.

A device has the words x in {0, 1}^d, of the Zipf prior :math:`P(X_j = 1) = \min(m/j, 1)` (Bhowmick
et al., arXiv:1812.00984v2, Eq. (zipf-model)), and releases Z, PrivUnit of x / |x|. The onlooker
names as many words as are to be expected, those of the highest score. There are two:

- the release alone: :math:`Z_j`;
- with the prior, the log-odds of the word given :math:`Z_j`. A word that was used has
  :math:`E Z_j = s = 1/|x|`, another one 0, and each coordinate has a noise of variance about
  :math:`\sigma^2 = E|Z - u|^2 / d`, close to normal where d is large. So the log-odds are
  :math:`\log\frac{\pi_j}{1 - \pi_j} + (s Z_j - s^2/2) / \sigma^2`, with the expected number of
  words for :math:`|x|^2`. That takes the coordinates for independent, which at large d they nearly
  are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator
from simulations.audit.images import Floats

Words = NDArray[np.bool_]


def zipf(dictionary_size: int, batch_size: int) -> Floats:
    """Return the prior probability of each word."""
    return np.minimum(batch_size / np.arange(1.0, dictionary_size + 1.0), 1.0)


def draw(prior: Floats, count: int, rng: KeystreamGenerator) -> Words:
    """Return the words of `count` devices, a row each."""
    return rng.uniforms(count * prior.size).reshape(count, -1) < prior


def log_odds(released: Floats, prior: Floats, squared_error: float) -> Floats:
    """Return the score that combines prior and release.

    Parameters
    ----------
    released : ndarray
        ``(n, d)`` outputs of PrivUnit.
    prior : ndarray
        ``(d,)``, positive.
    squared_error : float
        ``E|Z - u|^2`` of the mechanism.
    """
    height = 1.0 / math.sqrt(prior.sum())
    variance = squared_error / prior.size
    with np.errstate(divide="ignore"):
        before = np.log(prior) - np.log1p(-prior)  # infinite for a word that is always there
    scores: Floats = before + height * (released - height / 2.0) / variance
    return scores


def name_likeliest(scores: Floats, count: int) -> Words:
    """Return the `count` words of the highest score in each row."""
    named = np.zeros(scores.shape, dtype=np.bool_)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    np.put_along_axis(named, best, True, axis=1)
    return named


def precision_and_recall(named: Words, used: Words) -> tuple[Floats, Floats]:
    """Return which share of the named words is right, and which share of the used ones is named."""
    right = np.count_nonzero(named & used, axis=1)
    precision = right / np.maximum(np.count_nonzero(named, axis=1), 1)
    recall = right / np.maximum(np.count_nonzero(used, axis=1), 1)
    return precision, recall
