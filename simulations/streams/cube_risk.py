"""The risk of logistic regression on the hypercube, over a large set of held-out users."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator
from simulations.streams.arrays import Floats
from simulations.streams.users import on_cube


class CubeRisk:
    """Excess risk over held-out covariates.

    Labels are not drawn: for each covariate the expected loss is taken, so that the excess is a
    mean of Kullback-Leibler divergences, never negative, and as exact as the mean over covariates.

    Parameters
    ----------
    truths : ndarray
        ``(rows, dim)`` true parameters.
    held_out : int
        Number of covariates, the same for every row.
    rng : KeystreamGenerator
        Of the covariates.
    """

    def __init__(self, truths: Floats, held_out: int, rng: KeystreamGenerator) -> None:
        self._truths = truths
        self._covariates = on_cube(held_out, truths.shape[1], rng)
        margins = self._margins(truths)
        self._chances = np.exp(-np.logaddexp(np.float32(0.0), -margins))
        self._least = self._loss(margins)

    def __call__(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Return the excess risk and the l2 distance to the true parameter of each row."""
        gap = self._loss(self._margins(parameters)) - self._least
        return gap, np.linalg.norm(parameters - self._truths, axis=1)

    def _margins(self, parameters: Floats) -> NDArray[np.float32]:
        margins: NDArray[np.float32] = parameters.astype(np.float32) @ self._covariates.T
        return margins

    def _loss(self, margins: NDArray[np.float32]) -> Floats:
        losses = np.logaddexp(np.float32(0.0), margins) - self._chances * margins
        mean: Floats = losses.mean(axis=1, dtype=np.float64)
        return mean
