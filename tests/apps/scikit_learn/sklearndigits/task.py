"""The model, the data, and the model's numbers as arrays."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

FEATURES, CLASSES = 64, 10


def create_model(local_epochs):
    """Return a model with zeros for numbers, so that it can be sent before it is trained."""
    model = LogisticRegression(max_iter=local_epochs, warm_start=True)
    model.classes_ = np.arange(CLASSES)
    model.coef_ = np.zeros((CLASSES, FEATURES))
    model.intercept_ = np.zeros(CLASSES)
    return model


def get_params(model):
    """Return the numbers of the model."""
    return [model.coef_, model.intercept_]


def set_params(model, params):
    """Give the model other numbers."""
    model.coef_, model.intercept_ = params


@cache
def load_datasets():
    """Return the images and labels of all nodes, and those that the server tests on."""
    pixels, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        pixels / 16, labels, test_size=300, random_state=0
    )
    return (x_train, y_train), (x_test, y_test)


def load_data(partition_id, num_partitions):
    """Return the node's own images, four fifths for training and the others for testing."""
    (images, labels), _ = load_datasets()
    images, labels = images[partition_id::num_partitions], labels[partition_id::num_partitions]
    split = len(images) * 4 // 5
    return (images[:split], labels[:split]), (images[split:], labels[split:])
