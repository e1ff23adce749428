"""Gradient inversion on a small convolutional network."""

import numpy as np
import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from simulations.audit import images
from simulations.audit.gradients import gradients_of, small_cnn
from simulations.audit.inversion import invert


@pytest.fixture(scope="module")
def private():
    return images.digits(8, seeded_generator(4))


@pytest.fixture(scope="module")
def updates(private):
    return gradients_of(small_cnn(0), private.pixels, private.labels)


def reached(updates, private, steps=150):
    found = invert(small_cnn(0), updates, private.labels, steps=steps, seed=0)
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    return images.cosines(found, private.pixels)


def test_images_are_recovered_without_privacy(updates, private):
    cosines = reached(3.0 * updates, private)
    assert updates.shape == (8, 3818)
    assert np.count_nonzero(cosines >= 0.99) >= 7, cosines


def test_gradients_of_others_lead_elsewhere(updates, private):
    """The check can fail: from the wrong gradient, or without looking, nothing is recovered."""
    assert reached(np.roll(updates, 1, axis=0), private).max() < 0.97
    assert reached(updates, private, steps=1).max() < 0.97


def test_private_updates_give_less(updates, private):
    medians = []
    for epsilon in (5000.0, 50.0):
        budget = SeparatedBudget(epsilon_direction=epsilon, epsilon_magnitude=10.0)
        mechanism = SeparatedMechanism.from_budget(updates.shape[1], budget, 5.0)
        sent = mechanism.privatize(updates, seeded_generator(5))
        medians.append(np.median(reached(sent, private)))
    guess = np.median(images.cosines(np.tile(private.guess, (8, 1)), private.pixels))
    assert medians[0] > 0.99
    assert medians[1] < guess < 0.95
