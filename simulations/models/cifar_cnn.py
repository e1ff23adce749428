"""The convolutional network for 24x24 crops of CIFAR-10, d = 1,068,298."""

from __future__ import annotations

from torch import nn

from simulations.models.local_response import LocalResponse


def cifar_cnn() -> nn.Sequential:
    """Return the network of TensorFlow's CIFAR-10 tutorial, for inputs ``(n, 3, 24, 24)``.

    The one of Bhowmick et al., arXiv:1812.00984v2, section "Fitting deep models tabula rasa": two
    convolutions with the maximum over 3x3 at every second place and local response normalisation
    (after the first maximum and before the second), and three dense layers. The tutorial's weight
    decay is left out, and the initial weights are PyTorch's, not the paper's i.i.d. N(0, 1).
    """
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),  # TensorFlow pads at the end, as this does
        _normalisation(),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        _normalisation(),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


def _normalisation() -> LocalResponse:
    return LocalResponse(64, size=9, alpha=0.001)
