"""The engine: one user after the other, a whole batch of trials at once.

Section asymptotics-local of Bhowmick et al., arXiv:1812.00984v2: a user computes the gradient of
the logistic loss at the current iterate, releases it privately, and the server takes one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from flwr_sdp import KeystreamGenerator
from simulations.streams.arrays import Floats, Singles
from simulations.streams.descents import Descent
from simulations.streams.users import Users

Measure = Callable[[Floats], tuple[Floats, Floats]]
"""Returns the excess risk and the distance to the true parameter of each row."""


class Release(Protocol):
    """What a user does to a gradient before it leaves."""

    @property
    def epsilon(self) -> float:
        """Exact pure-DP loss of one release; infinite without privacy."""
        ...

    def __call__(self, gradients: Singles, rng: KeystreamGenerator) -> Singles:
        """Return what leaves, a row for a row."""
        ...


@dataclass(frozen=True, slots=True)
class Curves:
    """What was recorded along a stream; arrays are ``(records, rows)``.

    Attributes
    ----------
    iterations : ndarray
        ``(records,)``; 0 is the start.
    gap, error : ndarray
        Excess risk and distance to the true parameter of the current iterate.
    average_gap, average_error : ndarray
        The same of the average of all iterates after the first user's.
    """

    iterations: NDArray[np.int64]
    gap: Floats
    error: Floats
    average_gap: Floats
    average_error: Floats


def recorded_iterations(num_users: int, records: int) -> NDArray[np.int64]:
    """Return the start and `records` evenly spaced iterations, the last of them `num_users`."""
    return np.unique(np.linspace(0, num_users, records + 1).round().astype(np.int64))


def run_stream(
    users: Users,
    release: Release,
    descent: Descent,
    measure: Measure,
    *,
    iterations: NDArray[np.int64],
    stepsizes: Floats,
    exponent: float,
    rng: KeystreamGenerator,
) -> Curves:
    """Ask users one after the other, and record the iterates.

    Parameters
    ----------
    users : Users
        Where the data of each row come from.
    release : Release
        The private mechanism.
    descent : Descent
        The optimiser, at its start.
    measure : callable
        Evaluates iterates.
    iterations : ndarray
        When to record, ascending and from 0 on; the last is the number of users.
    stepsizes : ndarray
        ``(rows,)``; the k-th step has the size ``stepsizes * k**-exponent``.
    exponent : float
        See `stepsizes`.
    rng : KeystreamGenerator
        Of the mechanism's noise, and nothing else.
    """
    total = np.zeros(descent.iterates.shape)
    recorded = [(*measure(descent.iterates), *measure(descent.iterates))]
    due, done = set(iterations.tolist()), 0
    for covariates, labels in users.blocks(int(iterations[-1])):
        for x, y in zip(covariates, labels, strict=True):
            done += 1
            private = release(gradients(descent.iterates, x, y), rng)
            descent.step(private, stepsizes * done**-exponent)
            total += descent.iterates
            if done in due:
                recorded.append((*measure(descent.iterates), *measure(total / done)))
    return Curves(iterations, *(np.array(column) for column in zip(*recorded, strict=True)))


def gradients(iterates: NDArray[np.floating], x: Singles, y: Singles) -> Singles:
    """Return the gradients of log(1 + exp(-y <x, theta>)), row by row, in single precision."""
    current = iterates.astype(np.float32, copy=False)
    margins = y * np.einsum("rd,rd->r", x, current)
    slopes = -y * expit(-margins.astype(np.float64)).astype(np.float32)
    product: Singles = slopes[:, None] * x
    return product
