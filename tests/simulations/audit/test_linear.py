"""The linear attack on the update of one image."""

import numpy as np
import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.reconstruction import breach_probability
from simulations.audit import images, linear
from simulations.audit.gradients import gradients_of
from simulations.data.digits import digits, split
from simulations.tasks import LocalTraining, TaskSettings, load_task
from tests.messages import flat
from tests.simulations.audit.checks import assert_rate_at_most
from tests.statistics_helpers import assert_detects

DIM = 9610


def released(updates, epsilon, seed=0):
    budget = SeparatedBudget(epsilon_direction=epsilon, epsilon_magnitude=10.0)
    mechanism = SeparatedMechanism.from_budget(DIM, budget, 5.0)
    return mechanism.privatize(updates, seeded_generator(seed)), mechanism.event.epsilon


@pytest.fixture(scope="module")
def private():
    return images.digits(200, seeded_generator(1))


@pytest.fixture(scope="module")
def updates(private):
    return gradients_of(linear.network(0), private.pixels, private.labels)


def reached(updates, private):
    return images.cosines(linear.recover(updates, private.guess), private.pixels)


def test_gradients_are_what_a_client_of_the_task_sends():
    """One client, one image, one step: the update of the digits task, up to the rate."""
    step = LocalTraining(steps=1, learning_rate=0.1)
    task = load_task("digits", TaskSettings(seed=0, num_clients=1497, training=step))
    model = task.initial_model()
    after = task.local_update(model, client=3, server_round=1)
    data = split(*digits(), "digits", seed=0)
    pixels = data.train_images[3:4].reshape(1, 64) / 16.0
    gradient = gradients_of(linear.network(0), pixels, data.train_labels[3:4])[0]
    np.testing.assert_allclose(-0.1 * gradient, flat(after) - flat(model), atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, -0.1, 1e-6])
def test_every_image_is_recovered_without_privacy(updates, private, factor):
    assert updates.shape == (200, DIM)
    assert reached(factor * updates, private).min() > 1.0 - 1e-9


def test_an_update_of_other_images_shows_nothing(updates, private):
    """The check can fail: of the wrong update, the average digit is all there is in common."""
    assert reached(np.roll(updates, 1, axis=0), private).mean() < 0.9


def test_budgets_decide_what_is_recovered(updates, private):
    """At 5000 nearly all of the image, at 500 less than 0.95 of it, at 50 next to nothing."""
    medians = [
        np.median(reached(released(updates, epsilon)[0], private)) for epsilon in (5000, 500, 50)
    ]
    assert medians[0] > 0.99
    assert 0.8 < medians[1] < 0.95
    assert abs(medians[2]) < 0.4
    guesses = images.cosines(np.tile(private.guess, (200, 1)), private.pixels)
    assert 0.7 < np.median(guesses) < 0.95


@pytest.mark.parametrize("epsilon", [5000.0, 500.0, 50.0, 5.0])
@pytest.mark.parametrize("tolerance", [0.3, 0.95])
def test_success_on_the_uniform_prior_is_below_the_bound(epsilon, tolerance):
    private = images.uniform(200, seeded_generator(2), norm=4.0)
    sent, loss = released(gradients_of(linear.network(0), private.pixels, private.labels), epsilon)
    bound = breach_probability(epsilon=loss, dim_target=64, tolerance=tolerance, rule="tight")
    assert_rate_at_most(reached(sent, private) >= tolerance, bound)


def test_a_bound_for_less_than_was_spent_is_broken():
    """What 5000 releases is far above what would be allowed at a whole loss of 20."""
    private = images.uniform(50, seeded_generator(3), norm=4.0)
    sent, _ = released(gradients_of(linear.network(0), private.pixels, private.labels), 5000.0)
    bound = breach_probability(epsilon=20.0, dim_target=64, tolerance=0.95, rule="tight")
    assert_detects(assert_rate_at_most, reached(sent, private) >= 0.95, bound)
