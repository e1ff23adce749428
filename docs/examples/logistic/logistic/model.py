"""Binary logistic regression: one coefficient for each feature, and an intercept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from logistic.data import FEATURES

DIM = FEATURES + 1

Vector = NDArray[np.float64]


def initial() -> Vector:
    """Return the model that training starts from."""
    return np.zeros(DIM)


def probability(coefficients: Vector, features: NDArray[np.float64]) -> Vector:
    """Return the probability of label 1 for each row."""
    score: Vector = features @ coefficients[:-1] + coefficients[-1]
    return 0.5 * (1.0 + np.tanh(0.5 * score))  # the logistic function, without overflow


def train(
    coefficients: Vector,
    features: NDArray[np.float64],
    labels: Vector,
    *,
    steps: int,
    learning_rate: float,
) -> Vector:
    """Return the coefficients after some steps of gradient descent on all rows."""
    coefficients = coefficients.copy()
    for _ in range(steps):
        residual = probability(coefficients, features) - labels
        gradient = np.append(features.T @ residual, residual.sum()) / len(labels)
        coefficients -= learning_rate * gradient
    return coefficients


def accuracy(coefficients: Vector, features: NDArray[np.float64], labels: Vector) -> float:
    """Return the share of rows on the right side of 1/2."""
    return float(np.mean((probability(coefficients, features) > 0.5) == (labels > 0.5)))
