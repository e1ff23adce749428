"""The look-alike attack of an onlooker with an album."""

import numpy as np
import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from simulations.audit import images, linear, look_alike
from simulations.audit.gradients import gradients_of


@pytest.fixture(scope="module")
def known():
    """Private images with their updates, and an album with its own."""
    private, network = images.digits(200, seeded_generator(6)), linear.network(0)
    updates = gradients_of(network, private.pixels, private.labels)
    album, labels = private.album[:500], private.album_labels[:500]
    return private, updates, album, gradients_of(network, album, labels)


def released(updates, epsilon):
    budget = SeparatedBudget(epsilon_direction=epsilon, epsilon_magnitude=10.0)
    mechanism = SeparatedMechanism.from_budget(updates.shape[1], budget, 5.0)
    return mechanism.privatize(updates, seeded_generator(7))


def test_an_image_in_the_album_is_found_without_privacy(known):
    private, updates, album, causes = known
    found = look_alike.recover(
        updates, np.concatenate([private.pixels, album]), np.concatenate([updates, causes])
    )
    assert images.cosines(found, private.pixels).min() >= 0.99


def test_answers_are_images_of_the_album(known):
    _, updates, album, causes = known
    found = look_alike.recover(released(updates, 50.0), album, causes)
    assert {row.tobytes() for row in found} <= {row.tobytes() for row in album}


def test_whoever_has_images_like_it_learns_much_at_any_large_budget(known):
    """More than the average tells, even at 50; at a small budget, nothing. No bound is claimed."""
    private, updates, album, causes = known
    guess = np.median(images.cosines(np.tile(private.guess, (200, 1)), private.pixels))
    medians = {}
    for epsilon in (500.0, 50.0, 0.5):
        found = look_alike.recover(released(updates, epsilon), album, causes)
        medians[epsilon] = np.median(images.cosines(found, private.pixels))
    assert medians[500.0] > 0.93
    assert medians[50.0] > guess + 0.04
    assert medians[0.5] < guess
