"""Rows of a CSV file: the features, and a label of 0 or 1 in the last column."""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

FEATURES = 20

Rows = tuple[NDArray[np.float64], NDArray[np.float64]]


def read_csv(path: str) -> Rows:
    """Return the features and the labels of a file without a header."""
    table = np.loadtxt(path, delimiter=",", ndmin=2)
    if table.shape[1] != FEATURES + 1:
        # An app that fails is seen by the server, so this text has nothing of the data in it.
        raise ValueError(f"the data must have {FEATURES} features and a label in each row")
    return table[:, :-1], table[:, -1]


def draw(rows: int, seed: int) -> Rows:
    """Return made-up rows, with the same true coefficients for every seed."""
    truth = np.random.default_rng(0).normal(size=FEATURES)
    rng = np.random.default_rng([1, seed])
    features = rng.normal(size=(rows, FEATURES))
    probability = 1.0 / (1.0 + np.exp(-features @ truth))
    return features, (rng.random(rows) < probability).astype(np.float64)


def main() -> None:
    """Write a file of made-up rows."""
    parser = argparse.ArgumentParser(description="Write made-up rows, to try the app with.")
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    np.savetxt(options.path, np.column_stack(draw(options.rows, options.seed)), delimiter=",")


if __name__ == "__main__":
    main()
