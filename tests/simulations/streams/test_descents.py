"""The optimisers."""

import numpy as np
import pytest

from flwr_sdp import seeded_generator
from simulations.streams.descents import Entropic, Euclidean, project_on_l1_ball

RADIUS = 3.0


def points(rows, dim, size):
    return size * seeded_generator(0, rows, dim).normal(rows * dim).reshape(rows, dim)


@pytest.mark.parametrize("dim", [1, 2, 7, 200])
def test_projection_meets_the_conditions_of_optimality(dim):
    """<p - q, z - q> <= 0 for every z of the ball: enough to see it at the corners."""
    given = points(30, dim, 2.0)
    found = project_on_l1_ball(given, RADIUS)
    assert np.abs(found).sum(axis=1).max() <= RADIUS * (1 + 1e-12)
    inside = np.abs(given).sum(axis=1) <= RADIUS
    np.testing.assert_array_equal(found[inside], given[inside])
    rest = given - found
    best_corner = RADIUS * np.abs(rest).max(axis=1)
    np.testing.assert_array_less(best_corner - np.sum(rest * found, axis=1), 1e-9)


def test_projection_of_a_corner_and_beyond():
    np.testing.assert_allclose(project_on_l1_ball(np.array([[5.0, 0.0, -1.0]]), 3.0), [[3, 0, 0]])
    np.testing.assert_allclose(project_on_l1_ball(np.array([[2.0, 2.0]]), 2.0), [[1, 1]])


def test_mirror_descent_is_exponentiated_gradient():
    """Multiplying the 2d weights step by step gives the same iterates."""
    rows, dim = 4, 9
    descent = Entropic(rows, dim, RADIUS)
    weights = np.full((rows, 2 * dim), 1.0 / (2 * dim))
    sizes = np.array([0.3, 1.0, 2.0, 0.1])
    for step in range(20):
        gradients = seeded_generator(1, step).normal(rows * dim).reshape(rows, dim)
        descent.step(gradients.astype(np.float32), sizes)
        weights *= np.exp(-sizes[:, None] * np.concatenate([gradients, -gradients], axis=1))
        weights /= weights.sum(axis=1, keepdims=True)
    expected = RADIUS * (weights[:, :dim] - weights[:, dim:])
    np.testing.assert_allclose(descent.iterates, expected, atol=2e-5)
    assert np.abs(descent.iterates).sum(axis=1).max() <= RADIUS * (1 + 1e-6)


def test_mirror_descent_bears_gradients_of_any_size():
    descent = Entropic(2, 5, RADIUS)
    for size in (1e6, -3e6):
        descent.step(np.full((2, 5), size, np.float32) * np.arange(5, dtype=np.float32), np.ones(2))
        assert np.all(np.isfinite(descent.iterates))
    np.testing.assert_allclose(descent.iterates[0], [0, 0, 0, 0, RADIUS])


@pytest.mark.parametrize(
    "make",
    [lambda: Euclidean(3, 4), lambda: Euclidean(3, 4, RADIUS), lambda: Entropic(3, 4, RADIUS)],
)
def test_every_optimiser_starts_at_zero_and_finds_a_minimum(make):
    descent, target = make(), np.array([1.0, -0.5, 0.0, 0.25])
    np.testing.assert_array_equal(descent.iterates, 0.0)
    for k in range(1, 3_000):
        descent.step((descent.iterates - target).astype(np.float32), np.full(3, k**-0.5))
    np.testing.assert_allclose(descent.iterates, np.tile(target, (3, 1)), atol=1e-3)


def test_steps_are_each_rows_own():
    descent = Euclidean(2, 3)
    descent.step(np.ones((2, 3), np.float32), np.array([0.5, 2.0]))
    np.testing.assert_array_equal(descent.iterates, [[-0.5] * 3, [-2.0] * 3])
