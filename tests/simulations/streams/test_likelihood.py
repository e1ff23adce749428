"""The maximum-likelihood estimator."""

import numpy as np
import pytest
from scipy.optimize import minimize

from flwr_sdp import seeded_generator
from simulations.streams import theory
from simulations.streams.likelihood import maximum_likelihood
from simulations.streams.sphere_risk import SphereRisk
from simulations.streams.users import Users, on_sphere
from tests.statistics_helpers import assert_detects, assert_mean_close


def sample(dim, count, trial, signal=2.0):
    truth = np.zeros((1, dim))
    truth[0, 0] = signal
    blocks = list(Users(truth, [seeded_generator(3, trial)], on_sphere).blocks(count))
    x = np.concatenate([x[:, 0] for x, _ in blocks])
    y = np.concatenate([y[:, 0] for _, y in blocks])
    return truth[0], x, y


def test_estimate_is_where_another_optimiser_ends():
    _, x, y = sample(6, 3_000, 0)
    double = x.astype(np.float64)

    def loss(theta):
        margins = y * (double @ theta)
        gradient = -double.T @ (y / (1.0 + np.exp(margins)))
        return np.logaddexp(0.0, -margins).mean(), gradient / len(y)

    found = minimize(loss, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-9})
    theta = maximum_likelihood(x, y)
    np.testing.assert_allclose(theta, found.x, atol=1e-5)
    np.testing.assert_allclose(loss(theta)[1], 0.0, atol=1e-7)


def test_square_error_is_that_of_theory():
    """100 samples of 2,000 in 5 dimensions, 3 standard errors; half as many more are noticed."""
    errors = []
    for trial in range(100):
        truth, x, y = sample(5, 2_000, trial)
        errors.append(np.sum((maximum_likelihood(x, y) - truth) ** 2))
    risk = SphereRisk(5, 2.0)

    def check(count):
        expected = theory.asymptotic_square_error(risk, theory.second_moment(risk, None), count)
        assert_mean_close(errors, expected, n_sigma=3.0)

    check(2_000)
    assert_detects(check, 3_000)


def test_separated_labels_have_no_estimate():
    _, x, y = sample(50, 60, 0)
    with pytest.raises(ValueError, match=r"num-users must be larger .*60 users in dimension 50"):
        maximum_likelihood(x, y)
