"""Gradient steps, and the proximal term against closed forms."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

from flwr_sdp import seeded_generator
from simulations.models.local_training import OPTIMIZERS, train
from simulations.tasks import LocalTraining
from tests.statistics_helpers import assert_counts, assert_detects


def training(steps=1, learning_rate=0.1, **changes):
    return LocalTraining(steps=steps, learning_rate=learning_rate, **changes)


def softmax_regression(seed=0, features=4, classes=3):
    """Return a linear network in double precision, with weights that are not zero."""
    network = nn.Linear(features, classes).double()
    values = np.random.default_rng(seed).normal(size=classes * (features + 1))
    nn.utils.vector_to_parameters(torch.from_numpy(values), network.parameters())
    return network


def examples(count=50, features=4, classes=3):
    rng = np.random.default_rng(7)
    inputs = torch.from_numpy(rng.normal(size=(count, features)))
    return inputs, torch.from_numpy(rng.integers(classes, size=count))


def weights_of(network):
    return nn.utils.parameters_to_vector(network.parameters()).detach().numpy().copy()


def test_another_loss_is_minimised_by_what_is_not_frozen():
    """One step of least squares is worked out by hand; the bias is frozen, and stays."""
    network, (inputs, _) = softmax_regression(classes=1), examples()
    network.bias.requires_grad_(False)
    bias, start = network.bias.clone(), network.weight.detach().clone()
    targets = inputs[:, :1] - 2.0

    def squares(network, inputs, targets):
        return ((network(inputs) - targets) ** 2).mean()

    train(network, inputs, targets, training(), seeded_generator(0), squares)
    error = inputs @ start.T + bias - targets
    gradient = 2.0 * (error.T @ inputs) / len(inputs)
    torch.testing.assert_close(network.weight.detach(), start - 0.1 * gradient)
    assert torch.equal(network.bias, bias)


def loss_and_gradient(vector, inputs, labels):
    """Return the average cross-entropy of softmax regression, written in NumPy."""
    x, y = inputs.numpy(), labels.numpy()
    classes = len(vector) // (x.shape[1] + 1)
    matrix, bias = np.split(vector, [classes * x.shape[1]])
    scores = x @ matrix.reshape(classes, -1).T + bias
    scores = scores - scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -np.log(chances[np.arange(len(y)), y]).mean()
    error = (chances - np.eye(classes)[y]) / len(y)
    return loss, np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)])


# ------------------------------------------------------------------ steps
@pytest.mark.parametrize("stepsize", [None, 0.01, 1.0])
def test_one_step_is_a_gradient_step(stepsize):
    """At the model that was received the proximal term has no gradient."""
    network, (inputs, labels) = softmax_regression(), examples()
    start = weights_of(network)
    train(network, inputs, labels, training(proximal_stepsize=stepsize), seeded_generator(0))
    expected = start - 0.1 * loss_and_gradient(start, inputs, labels)[1]
    np.testing.assert_allclose(weights_of(network), expected, atol=1e-14)


@pytest.mark.parametrize("stepsize", [None, 0.5])
def test_more_steps_are_gradient_steps_of_the_objective(stepsize):
    network, (inputs, labels) = softmax_regression(), examples()
    start = weights_of(network)
    train(network, inputs, labels, training(7, proximal_stepsize=stepsize), seeded_generator(0))
    expected = start
    for _ in range(7):
        gradient = loss_and_gradient(expected, inputs, labels)[1]
        pull = 0.0 if stepsize is None else (expected - start) / stepsize
        expected = expected - 0.1 * (gradient + pull)
    np.testing.assert_allclose(weights_of(network), expected, atol=1e-13)


@pytest.mark.parametrize("stepsize", [0.05, 1.0, 20.0])
def test_steps_end_at_the_minimiser_of_the_proximal_objective(stepsize):
    """The minimum of a convex objective, as scipy finds it; a factor of 2 is another one."""
    network, (inputs, labels) = softmax_regression(), examples()
    start = weights_of(network)
    options = training(150, min(stepsize, 1.0), proximal_stepsize=stepsize)
    train(network, inputs, labels, options, seeded_generator(0))

    def minimiser(stepsize):
        def objective(vector):
            loss, gradient = loss_and_gradient(vector, inputs, labels)
            away = vector - start
            return loss + away @ away / (2 * stepsize), gradient + away / stepsize

        return optimize.minimize(objective, start, jac=True, tol=1e-14, method="BFGS").x

    np.testing.assert_allclose(weights_of(network), minimiser(stepsize), atol=2e-6)
    assert np.abs(weights_of(network) - minimiser(2 * stepsize)).max() > 1e-3


def test_path_on_a_linear_loss_is_the_closed_form():
    """Where the wrong class wins by far the loss is linear: with rate r and stepsize s, after k
    steps theta_0 - s (1 - (1 - r/s)^k) times its gradient, and in the end theta_0 - s times it."""
    network = nn.Linear(1, 2).double()
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([1000.0, 0.0]))
    inputs, labels = torch.zeros(5, 1, dtype=torch.float64), torch.ones(5, dtype=torch.int64)
    for steps in (1, 2, 5, 200):
        trained = nn.Linear(1, 2).double()
        trained.load_state_dict(network.state_dict())
        options = training(steps, 0.2, proximal_stepsize=0.8)
        train(trained, inputs, labels, options, seeded_generator(0))
        moved = 0.8 * (1 - (1 - 0.2 / 0.8) ** steps)
        bias = trained.bias.detach().numpy()
        np.testing.assert_allclose(bias, [1000.0 - moved, moved], rtol=1e-12)


def test_adam_is_adam():
    """Its first step is the rate times the sign; the rest, by its formulas."""
    network, (inputs, labels) = softmax_regression(), examples()
    start = weights_of(network)
    train(network, inputs, labels, training(4, 0.01, optimizer="adam"), seeded_generator(0))
    expected, first, second = start, 0.0, 0.0
    for step in range(1, 5):
        gradient = loss_and_gradient(expected, inputs, labels)[1]
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        size = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        expected = expected - 0.01 * size
    np.testing.assert_allclose(weights_of(network), expected, atol=1e-12)


def test_no_state_is_left_from_one_client_to_the_next():
    """Adam's moments and the gradients begin anew."""
    inputs, labels = examples()
    once, twice = softmax_regression(), softmax_regression()
    start = {name: value.clone() for name, value in twice.state_dict().items()}
    options = training(3, 0.1, optimizer="adam")
    train(once, inputs, labels, options, seeded_generator(0))
    train(twice, inputs[:9], labels[:9], options, seeded_generator(0))
    twice.load_state_dict(start)
    train(twice, inputs, labels, options, seeded_generator(0))
    np.testing.assert_array_equal(weights_of(once), weights_of(twice))


def test_without_examples_nothing_happens():
    network = softmax_regression()
    start = weights_of(network)
    inputs, labels = examples()
    train(network, inputs[:0], labels[:0], training(5), seeded_generator(0))
    np.testing.assert_array_equal(weights_of(network), start)


def test_networks_are_trained_in_training_mode():
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double().eval()
    inputs, labels = examples()
    train(network, inputs, labels, training(), seeded_generator(0))
    assert network.training
    assert float(network[0].running_mean.abs().sum()) > 0


def test_weights_that_play_no_part_stay():
    network = softmax_regression()
    network.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    inputs, labels = examples()
    train(network, inputs, labels, training(3, proximal_stepsize=1.0), seeded_generator(0))
    assert network.unused.tolist() == [1.0, 1.0, 1.0]


def test_unknown_optimizer_is_refused():
    inputs, labels = examples()
    with pytest.raises(
        ValueError, match="local-optimizer must be one of 'sgd', 'adam'; got 'lamb'"
    ):
        train(softmax_regression(), inputs, labels, training(optimizer="lamb"), seeded_generator(0))
    assert OPTIMIZERS == ("sgd", "adam")


# ------------------------------------------------------------------ batches
class Watched(nn.Linear):
    """Remembers the first feature of the examples of each step."""

    def __init__(self):
        super().__init__(1, 3)
        self.seen = []

    def forward(self, inputs):
        self.seen.append(inputs[:, 0].long().tolist())
        return super().forward(0.0 * inputs)


def batches(count, size, steps, seed=0):
    network = Watched()
    inputs = torch.arange(count).float()[:, None]
    labels = torch.zeros(count, dtype=torch.int64)
    options = training(steps, batch_size=size)
    train(network, inputs, labels, options, seeded_generator(seed))
    return network.seen


@pytest.mark.parametrize("size", [None, 10, 11])
def test_all_examples_are_taken_where_a_batch_holds_them(size):
    assert batches(10, size, 3) == [list(range(10))] * 3


def test_examples_are_gone_through_before_any_comes_again():
    seen = batches(12, 4, 6)
    assert [len(batch) for batch in seen] == [4] * 6
    for begin in (0, 3):
        assert sorted(chain(*seen[begin : begin + 3])) == list(range(12))
    assert seen[:3] != seen[3:]


def test_a_rest_that_is_no_whole_batch_is_left_out():
    seen = batches(11, 4, 4)
    assert all(len(set(batch)) == 4 for batch in seen)
    assert len(set(seen[0] + seen[1])) == len(set(seen[2] + seen[3])) == 8


def test_the_generator_decides_the_batches():
    assert batches(50, 5, 10) == batches(50, 5, 10) != batches(50, 5, 10, seed=1)


def test_labels_go_with_their_inputs():
    network = SimpleNamespace(seen=[])

    class Pairs(nn.Linear):
        def forward(self, inputs):
            network.seen.append(inputs)
            return super().forward(inputs)

    inputs = torch.eye(3).repeat(10, 1)
    labels = torch.arange(3).repeat(10)
    pairs = Pairs(3, 3)
    train(pairs, inputs, labels, training(300, 1.0, batch_size=4), seeded_generator(0))
    assert torch.equal(pairs(torch.eye(3)).argmax(dim=1), torch.arange(3))


def test_every_example_is_as_likely_in_a_batch():
    """The first batch of 1 out of 4 in 600 runs; chi-square at false alarms of 5.7e-7."""
    counts = np.zeros(4)
    for seed in range(600):
        counts[batches(4, 1, 1, seed)[0]] += 1
    assert_counts(counts, np.full(4, 0.25))
    assert_detects(assert_counts, counts * [1.5, 1, 1, 0.5], np.full(4, 0.25))
