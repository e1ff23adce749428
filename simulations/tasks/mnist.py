"""Images of 28x28 pixels; the six-layer convolutional network, d = 3,274,634.

The first experiment of Bhowmick et al., arXiv:1812.00984v2, section "Fitting deep models tabula
rasa". Its settings: 200 clients a round, each with 100 new images (partition "fresh"), 5 local
gradient steps, 100 rounds; epsilon_1 of 500, 250, 100 or 50 and epsilon_2 = 10 with r_max = 5;
rho = 100 and sigma = 0.005. It used MNIST.
"""

from __future__ import annotations

from simulations.data.preparation import planes
from simulations.data.sources import load_images
from simulations.models.classification import Classification
from simulations.models.mnist_cnn import mnist_cnn
from simulations.tasks.task import TaskSettings

DATA = ("fashion-mnist", "mnist", "digits-28")
"""Data sets of this format; the first is the default."""


def task(settings: TaskSettings) -> Classification:
    """Return the task."""
    data = settings.data
    images = load_images(data.one_of(DATA), data_dir=data.folder, download=data.download)
    return Classification(settings, images, build=mnist_cnn, prepare=planes)
