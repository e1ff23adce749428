"""The held-out risk on the hypercube, against all of its corners."""

import itertools

import numpy as np

from flwr_sdp import seeded_generator
from simulations.streams.cube_risk import CubeRisk
from tests.statistics_helpers import assert_detects

TRUTH = np.array([2.0, -1.0, 0.0, 0.0, 0.5, 0.0, 0.0])
THETA = np.array([0.5, 1.0, 0.3, 0.0, 0.0, -0.2, 0.1])


def exact_gap(theta, truth=TRUTH):
    x = np.array(list(itertools.product((-1.0, 1.0), repeat=len(truth))))
    chance = 1.0 / (1.0 + np.exp(-x @ truth))

    def risk(parameter):
        margins = x @ parameter
        return np.mean(chance * np.logaddexp(0, -margins) + (1 - chance) * np.logaddexp(0, margins))

    return risk(theta) - risk(truth)


def test_gap_agrees_with_all_corners():
    """40,000 covariates: 3 standard errors are about 1% of the gap; a truth 10% off is noticed."""
    risk = CubeRisk(TRUTH[None], 40_000, seeded_generator(0))
    gap, error = risk(THETA[None])
    assert error[0] == np.linalg.norm(THETA - TRUTH)

    def check(truth):
        assert abs(gap[0] / exact_gap(THETA, truth) - 1.0) < 0.015

    check(TRUTH)
    assert_detects(check, 1.1 * TRUTH)


def test_gap_is_a_divergence():
    truths = np.stack([TRUTH, -TRUTH])
    risk = CubeRisk(truths, 500, seeded_generator(1))
    np.testing.assert_allclose(risk(truths)[0], 0.0, atol=1e-7)
    others = seeded_generator(2).normal(2 * TRUTH.size).reshape(2, -1)
    assert risk(others)[0].min() > 0.0
    np.testing.assert_allclose(
        risk(np.stack([THETA, -THETA]))[0][0], risk(np.stack([THETA, THETA]))[0][0]
    )
