"""The maximum-likelihood estimator: what the same users give when they send their data."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from simulations.streams.arrays import Floats, Singles

_BLOCK = 4096
_MOST_STEPS = 40
_TOLERANCE = 1e-12  # of the squared Newton decrement, which bounds twice the loss that is left


def maximum_likelihood(covariates: Singles, labels: Singles) -> Floats:
    """Return the minimiser of the mean of log(1 + exp(-y <x, theta>)), by Newton's method.

    Parameters
    ----------
    covariates : ndarray
        ``(n, dim)`` in single precision; gradients are summed in double.
    labels : ndarray
        ``(n,)`` of -1 and 1.

    Raises
    ------
    ValueError
        If a hyperplane separates the labels, so that no minimiser exists.
    """
    theta = np.zeros(covariates.shape[1])
    loss, gradient, _ = _loss(covariates, labels, theta)
    hessian = _hessian(covariates, labels, theta)
    before = np.inf
    for _ in range(_MOST_STEPS):
        direction = np.linalg.solve(hessian, gradient)
        decrement = float(gradient @ direction)
        if decrement <= _TOLERANCE:
            return theta - direction
        if decrement > before / 10.0:  # an old Hessian does while it is as good as this
            hessian = _hessian(covariates, labels, theta)
            direction = np.linalg.solve(hessian, gradient)
        before = decrement
        new, size = _loss(covariates, labels, theta - direction), 1.0
        while new[0] > loss and size > 1e-6:
            size /= 2.0
            new = _loss(covariates, labels, theta - size * direction)
        theta = theta - size * direction
        loss, gradient, smallest_margin = new
        if smallest_margin > 0.0:  # then a longer theta is always better
            break
    raise ValueError(
        f"num-users must be larger for a maximum-likelihood estimator: a hyperplane separates the "
        f"labels of {len(labels)} users in dimension {covariates.shape[1]}; or set "
        "maximum-likelihood = false"
    )


def _loss(covariates: Singles, labels: Singles, theta: Floats) -> tuple[float, Floats, float]:
    """Return the mean loss, its gradient, and the smallest margin of any user."""
    loss, gradient, smallest = 0.0, np.zeros(len(theta)), np.inf
    for start in range(0, len(labels), _BLOCK):
        x = covariates[start : start + _BLOCK].astype(np.float64)
        y = labels[start : start + _BLOCK].astype(np.float64)
        margins = y * (x @ theta)
        smallest = min(smallest, float(margins.min()))
        loss += float(np.logaddexp(0.0, -margins).sum())
        gradient -= (y * expit(-margins)) @ x
    return loss / len(labels), gradient / len(labels), smallest


def _hessian(covariates: Singles, labels: Singles, theta: Floats) -> Floats:
    """Return the Hessian of the mean loss, to single precision: it only has to point downhill."""
    hessian = np.zeros((len(theta), len(theta)))
    single = theta.astype(np.float32)
    for start in range(0, len(labels), _BLOCK):
        x = covariates[start : start + _BLOCK]
        slopes = expit(x @ single)
        scaled = x * np.sqrt(slopes * (1.0 - slopes))[:, None]
        hessian += scaled.T @ scaled
    return hessian / len(labels)
