"""What users do to their gradients."""

import math

import numpy as np
import pytest

from flwr_sdp import (
    PrivUnitInfinity,
    ScalarDP,
    SeparatedBudget,
    SeparatedMechanism,
    seeded_generator,
)
from simulations.streams.releases import NoPrivacy, OnSphere, RoundedOnCube, SeparatedOnCube
from tests.statistics_helpers import assert_detects, assert_mean_close

DIM = 6
GRADIENT = np.array([0.3, -0.1, 0.0, 0.3, 0.25, -0.3])


def separated(direction=4.0, magnitude=3.0):
    return SeparatedOnCube(
        PrivUnitInfinity.from_epsilon(DIM, direction), ScalarDP.from_epsilon(magnitude, 1.0)
    )


RELEASES = {
    "separated": separated(),
    "rounded": RoundedOnCube(PrivUnitInfinity.from_epsilon(DIM, 4.0)),
    "sphere": OnSphere(
        SeparatedMechanism.from_budget(
            DIM, SeparatedBudget(epsilon_direction=4.0, epsilon_magnitude=3.0), math.sqrt(DIM)
        )
    ),
}


def outputs(release, gradient=GRADIENT, count=8_000):
    rows = np.tile(gradient.astype(np.float32), (count, 1))
    return release(rows, seeded_generator(0, "noise"))


@pytest.mark.parametrize("name", RELEASES)
def test_releases_are_unbiased(name):
    """8,000 releases, every coordinate within 5 standard errors; 70% too long is noticed."""

    def check(factor):
        assert_mean_close(factor * outputs(RELEASES[name]), GRADIENT)

    check(1.0)
    assert_detects(check, 1.7)


@pytest.mark.parametrize("name", RELEASES)
def test_mean_square_is_exact(name):
    """8,000 releases, 5 standard errors; that of a gradient twice as long is noticed.

    Except where Algorithm 2 rounds: there the length does not depend on the gradient's.
    """
    release, corner = RELEASES[name], 0.4 * np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    squares = np.mean(outputs(release, corner).astype(np.float64) ** 2, axis=1)

    def check(size):
        expected = release.mean_square(size, DIM)
        assert (
            squares.mean() == pytest.approx(expected, rel=1e-6)
            or assert_mean_close(squares, expected) is None
        )

    check(0.4)
    if name != "rounded":
        assert_detects(check, 0.8)


def test_losses_add_up():
    release = separated(direction=5.0, magnitude=2.0)
    assert release.epsilon == release.direction.epsilon + 2.0 <= 7.0
    assert release.facts()["epsilon_direction"] == pytest.approx(5.0)
    assert release.facts()["epsilon_magnitude"] == 2.0
    assert RELEASES["sphere"].epsilon == pytest.approx(7.0)
    assert NoPrivacy().epsilon == math.inf


def test_a_zero_gradient_is_released_like_any_other():
    found = outputs(separated(), np.zeros(DIM), count=3_000)
    assert np.all(np.isfinite(found))
    assert_mean_close(found, 0.0)
    assert np.unique(np.abs(found)).size > 1  # the norm is private too


def test_no_privacy_changes_nothing():
    rows = np.ones((2, 3), np.float32)
    assert NoPrivacy()(rows, seeded_generator(0)) is rows
    assert NoPrivacy().mean_square(0.5, 3) == 0.25
    assert NoPrivacy().facts() == {}
