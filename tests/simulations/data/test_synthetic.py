"""Synthetic images: always the same, of ten classes, and not to be had for nothing."""

import hashlib

import numpy as np
import pytest

from simulations.data.synthetic import synthetic_cifar


@pytest.fixture(scope="module")
def images():
    return synthetic_cifar(2000, 1000)


def test_format_is_that_of_cifar(images):
    assert images.name == "synthetic-cifar"
    for pixels, labels, count in (
        (images.train_images, images.train_labels, 2000),
        (images.test_images, images.test_labels, 1000),
    ):
        assert pixels.shape == (count, 32, 32, 3)
        assert pixels.dtype == np.uint8
        assert labels.shape == (count,)
        assert set(labels.tolist()) == set(range(10))


def test_images_are_always_the_same(images):
    again = synthetic_cifar(1500, 10)
    np.testing.assert_array_equal(again.train_images, images.train_images[:1500])
    np.testing.assert_array_equal(again.train_labels, images.train_labels[:1500])
    np.testing.assert_array_equal(again.test_images, images.test_images[:10])


def test_no_test_image_is_trained_on(images):
    seen = {hashlib.sha256(image).digest() for image in images.train_images}
    assert len(seen) == 2000
    assert not seen & {hashlib.sha256(image).digest() for image in images.test_images}


def test_the_nearest_average_is_not_enough(images):
    """What needs no network tells something, and not much: chance is 0.1."""
    train = images.train_images.reshape(2000, -1).astype(float)
    test = images.test_images.reshape(1000, -1).astype(float)
    means = np.array([train[images.train_labels == label].mean(axis=0) for label in range(10)])
    distances = ((test[:, None] - means[None]) ** 2).sum(axis=2)
    accuracy = (distances.argmin(axis=1) == images.test_labels).mean()
    assert 0.2 < accuracy < 0.5
