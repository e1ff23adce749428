"""The model, the data, and one node's training and testing."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def initial_weights():
    """Return the model that training starts from."""
    return [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]


@cache
def load_datasets():
    """Return the images and labels of all nodes, and those that the server tests on."""
    pixels, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        (pixels / 16).astype(np.float32), labels, test_size=300, random_state=0
    )
    return (x_train, y_train), (x_test, y_test)


def load_data(partition_id, num_partitions):
    """Return the node's own images, four fifths for training and the others for testing."""
    (images, labels), _ = load_datasets()
    images, labels = images[partition_id::num_partitions], labels[partition_id::num_partitions]
    split = len(images) * 4 // 5
    return (images[:split], labels[:split]), (images[split:], labels[split:])


def probabilities(weights, images):
    """Return the probability of each class for each image."""
    scores = images @ weights[0] + weights[1]
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def train(weights, images, labels, steps, learning_rate):
    """Return the weights after some steps of gradient descent."""
    weights = [array.copy() for array in weights]
    for _ in range(steps):
        residuals = probabilities(weights, images)
        residuals[np.arange(len(labels)), labels] -= 1
        weights[0] -= learning_rate * images.T @ residuals / len(labels)
        weights[1] -= learning_rate * residuals.mean(axis=0)
    return weights


def test(weights, images, labels):
    """Return the loss and the accuracy of the model."""
    predicted = probabilities(weights, images)
    loss = -np.log(predicted[np.arange(len(labels)), labels] + 1e-12).mean()
    return float(loss), float((predicted.argmax(axis=1) == labels).mean())
