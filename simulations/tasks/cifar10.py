"""Colour images, crops of 24x24 pixels; a convolutional network, d = 1,068,298.

The second experiment of Bhowmick et al., arXiv:1812.00984v2, section "Fitting deep models tabula
rasa". Its settings: 75 clients a round, each with 500 images, 5 local gradient steps, 200 rounds,
Adam; epsilon_1 of 5000, 1000, 500 or 100 and epsilon_2 = 10 with r_max = 2; rho = 30 and
sigma = 0.002. It used CIFAR-10, which is read from a data-dir; by default the images are synthetic.
"""

from __future__ import annotations

from simulations.data.preparation import crops
from simulations.data.sources import load_images
from simulations.models.cifar_cnn import cifar_cnn
from simulations.models.classification import Classification
from simulations.tasks.task import TaskSettings

DATA = ("synthetic-cifar", "cifar10")
"""Data sets of this format; the first is the default."""


def task(settings: TaskSettings) -> Classification:
    """Return the task."""
    data = settings.data
    images = load_images(data.one_of(DATA), data_dir=data.folder, download=data.download)
    return Classification(settings, images, build=cifar_cnn, prepare=crops)
