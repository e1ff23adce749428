"""The six-layer convolutional network for 28x28 images, d = 3,274,634."""

from __future__ import annotations

from torch import nn


def mnist_cnn() -> nn.Sequential:
    """Return the network of TensorFlow's MNIST tutorial, for inputs ``(n, 1, 28, 28)``.

    Two convolutions, each with a 2x2 maximum after it, and two dense layers: Bhowmick et al.,
    arXiv:1812.00984v2, section "Fitting deep models tabula rasa". The tutorial's dropout is left
    out: the paper does not speak of it, and the objective of a client stays one function. The
    initial weights are PyTorch's, and not the paper's i.i.d. N(0, 1).
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )
