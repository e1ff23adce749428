"""The users' data."""

import numpy as np
import pytest
from scipy import stats

from flwr_sdp import seeded_generator
from simulations.streams.users import Users, on_cube, on_sphere, trial_generators
from tests.statistics_helpers import (
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_mean_close,
)


def drawn(truths, trials, covariates=on_sphere, count=100, seed=0):
    generators = trial_generators(seed, "test", "users", trials)
    blocks = list(Users(truths, generators, covariates).blocks(count))
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


@pytest.mark.parametrize("covariates", [on_sphere, on_cube])
def test_a_trial_sees_the_same_users_in_every_batch(covariates):
    truths = seeded_generator(1).normal(5 * 7).reshape(5, 7)
    x, y = drawn(truths, range(5), covariates)
    assert x.shape == (100, 5, 7)
    assert y.shape == (100, 5)
    alone_x, alone_y = drawn(truths[3:4], range(3, 4), covariates)
    np.testing.assert_array_equal(x[:, 3:4], alone_x)
    np.testing.assert_array_equal(y[:, 3:4], alone_y)
    other, _ = drawn(truths, range(5), covariates, seed=1)
    assert not np.array_equal(x, other)
    assert not np.array_equal(x[:, 0], x[:, 1])


def test_covariates_are_uniform():
    """20,000 points each; false alarms below 1e-5 for all checks together."""
    x = on_sphere(20_000, 6, seeded_generator(2)).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-6)
    # T^2 is beta(1/2, 5/2).
    assert_follows(x[:, 2] ** 2, stats.beta(0.5, 2.5).cdf)
    assert_mean_close(x, 0.0, variance=1 / 6)
    corners = on_cube(20_000, 6, seeded_generator(3))
    assert set(np.unique(corners)) == {-1.0, 1.0}
    assert_mean_close(corners, 0.0, variance=1.0)
    assert_mean_close(corners[:, 0] * corners[:, 1], 0.0, variance=1.0)


def test_labels_follow_the_logistic_model():
    """50,000 users; labels of a model with a tenth less signal are noticed."""
    truth = np.array([[3.0, 0.0, -1.0]])
    x, y = drawn(truth, range(1), count=50_000)
    x, y = x[:, 0].astype(np.float64), y[:, 0].astype(np.float64)

    def check(scale):
        margins = x @ truth[0]
        # E[y z | x] = z tanh(z / 2) for z the margin of the model.
        assert_mean_close(y * margins - margins * np.tanh(scale * margins / 2.0), 0.0)

    check(1.0)
    assert_detects(check, 0.9)
    assert_frequency(np.count_nonzero(y > 0), len(y), 0.5)
