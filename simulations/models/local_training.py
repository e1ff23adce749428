r"""The local update of a client: a few gradient steps from the model it received.

With :math:`F` the average loss on the client's examples, :math:`\theta_0` the received model and
:math:`\eta` the ``proximal_stepsize``, the steps approximate the minimiser of
:math:`F(\theta) + \|\theta - \theta_0\|^2 / (2 \eta)` (Bhowmick et al., arXiv:1812.00984v2, Eq.
(prox-point-update)), or of :math:`F` alone: then their number is what keeps the update short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from flwr_sdp import KeystreamGenerator, _validate
from simulations.data.drawing import permutation
from simulations.tasks.task import LocalTraining

Gradients = Sequence[torch.Tensor | None]
Step = Callable[[Gradients], None]

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
"""From a network, inputs and labels to the average loss."""

OPTIMIZERS = ("sgd", "adam")
"""Their names in a run config."""


def cross_entropy(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the average cross-entropy of the network's scores."""
    return nn.functional.cross_entropy(network(inputs), labels)


def train(
    network: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    training: LocalTraining,
    rng: KeystreamGenerator,
    loss: Loss = cross_entropy,
) -> None:
    """Take gradient steps of the loss, from the weights that `network` has, in place.

    Parameters
    ----------
    network : Module
        The model; all its parameters that require a gradient are trained.
    inputs, labels : Tensor
        The client's examples, on the device of the network. Without any, nothing happens.
    training : LocalTraining
        How many steps of what. The optimizer begins anew: a client keeps no state.
    rng : KeystreamGenerator
        Which examples come together where ``batch_size`` says that not all do.
    loss : callable
        What is minimised.
    """
    if not len(labels):
        return
    network.train()
    parameters = [weights for weights in network.parameters() if weights.requires_grad]
    step = _step(parameters, training)
    stepsize = training.proximal_stepsize
    start = [] if stepsize is None else [weights.detach().clone() for weights in parameters]
    batches = _batches(len(labels), training.batch_size, rng)
    for _ in range(training.steps):
        chosen = next(batches)
        if chosen is not None:
            chosen = chosen.to(labels.device)
        value = loss(
            network,
            inputs if chosen is None else inputs[chosen],
            labels if chosen is None else labels[chosen],
        )
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        if stepsize is not None:
            _add_proximal_gradient(parameters, gradients, start, stepsize)
        step(gradients)


def _step(parameters: list[nn.Parameter], training: LocalTraining) -> Step:
    """Return what moves the parameters along their gradients."""
    name = _validate.choice("local-optimizer", training.optimizer, OPTIMIZERS)
    if name == "sgd":  # one line; torch's takes longer than the gradients of a small network
        return lambda gradients: _descend(parameters, gradients, training.learning_rate)
    optimizer = torch.optim.Adam(parameters, lr=training.learning_rate)

    def step(gradients: Gradients) -> None:
        for weights, gradient in zip(parameters, gradients, strict=True):
            weights.grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    return step


def _descend(parameters: list[nn.Parameter], gradients: Gradients, learning_rate: float) -> None:
    with torch.no_grad():
        for weights, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:  # weights that play no part stay where they are
                weights.sub_(gradient, alpha=learning_rate)


def _add_proximal_gradient(
    parameters: list[nn.Parameter],
    gradients: Gradients,
    start: list[torch.Tensor],
    stepsize: float,
) -> None:
    """Add the gradient of the proximal term: cheaper than to differentiate it."""
    with torch.no_grad():
        for weights, gradient, before in zip(parameters, gradients, start, strict=True):
            if gradient is not None:
                gradient.add_(weights - before, alpha=1.0 / stepsize)


def _batches(
    count: int, size: int | None, rng: KeystreamGenerator
) -> Iterator[torch.Tensor | None]:
    """Yield the examples of each step, None for all of them.

    The examples are gone through in a random order, in whole batches; then in another.
    """
    if size is None or size >= count:
        while True:
            yield None
    while True:
        order = torch.from_numpy(permutation(count, rng))
        for begin in range(0, count - size + 1, size):
            yield order[begin : begin + size]
