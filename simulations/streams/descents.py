"""Optimisers of a batch of trials, a row each: Euclidean, and mirror descent over the l1 ball."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from simulations.streams.arrays import Floats, Singles


class Descent(Protocol):
    """An optimiser and its current iterates."""

    @property
    def iterates(self) -> Floats:
        """The current iterates, ``(rows, dim)``."""
        ...

    def step(self, gradients: Singles, stepsizes: Floats) -> None:
        """Take one step of a row's own size in every row."""
        ...


class Euclidean:
    """Stochastic gradient descent from 0, projected onto an l1 ball where a radius is given."""

    def __init__(self, rows: int, dim: int, l1_radius: float | None = None) -> None:
        self._iterates = np.zeros((rows, dim))
        self._radius = l1_radius

    @property
    def iterates(self) -> Floats:
        """The current iterates."""
        return self._iterates

    def step(self, gradients: Singles, stepsizes: Floats) -> None:
        """Step against the gradients, and project."""
        self._iterates -= gradients * stepsizes.astype(np.float32)[:, None]
        if self._radius is not None:
            self._iterates = project_on_l1_ball(self._iterates, self._radius)


class Entropic:
    r"""Mirror descent over the l1 ball with the entropy: exponentiated gradient, both signs.

    A point of the ball of radius R is :math:`R (w^+ - w^-)` with :math:`(w^+, w^-)` on the simplex
    of 2d weights (Kivinen and Warmuth, Information and Computation 132, 1997). From 0, that is from
    equal weights, steps of :math:`\eta_k` on gradients :math:`z_k` lead to
    :math:`w^\pm \propto \exp(\mp\sum_k \eta_k z_k)`. The error grows with the largest coordinate of
    the gradients and only with the root of log d, which is why the l-infinity norm matters.
    """

    def __init__(self, rows: int, dim: int, l1_radius: float) -> None:
        self._sums = np.zeros((rows, dim))
        self._iterates = np.zeros((rows, dim))
        self._radius = l1_radius

    @property
    def iterates(self) -> Floats:
        """The current iterates."""
        return self._iterates

    def step(self, gradients: Singles, stepsizes: Floats) -> None:
        """Add the gradients to the sums, and weigh anew."""
        self._sums -= gradients * stepsizes.astype(np.float32)[:, None]
        peak = np.abs(self._sums).max(axis=1, keepdims=True)
        # Exponents are at most 0; single precision halves the time of the exponentials.
        plus = np.exp((self._sums - peak).astype(np.float32))
        minus = np.exp((-self._sums - peak).astype(np.float32))
        share = self._radius / (plus.sum(axis=1) + minus.sum(axis=1))
        self._iterates = ((plus - minus) * share[:, None]).astype(np.float64)


def project_on_l1_ball(points: Floats, radius: float) -> Floats:
    """Return the nearest point of the l1 ball for every row.

    Soft thresholding at the level that brings the norm down to the radius, found by sorting
    (Duchi, Shalev-Shwartz, Singer and Chandra, ICML 2008).
    """
    sizes = np.abs(points)
    outside = np.flatnonzero(sizes.sum(axis=1) > radius)
    if outside.size == 0:
        return points
    ordered = -np.sort(-sizes[outside], axis=1)
    ranks = np.arange(1, points.shape[1] + 1)
    levels = (np.cumsum(ordered, axis=1) - radius) / ranks
    # The entries above their own level are the first ones, and the last of them has the level.
    kept = np.count_nonzero(ordered > levels, axis=1)
    level = levels[np.arange(outside.size), kept - 1]
    projected = points.copy()
    projected[outside] = np.sign(points[outside]) * np.maximum(sizes[outside] - level[:, None], 0.0)
    return projected
