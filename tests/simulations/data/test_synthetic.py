"""Synthetic images: always the same, of different classes, and not to be had for nothing."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from simulations.data.synthetic import synthetic_cifar, synthetic_flickr, synthetic_imagenet


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


def test_images_are_those_of_earlier_versions(images):
    """Figures that were made of them stay comparable; processors may round differently."""
    assert images.train_labels[:8].tolist() == [2, 7, 7, 5, 2, 9, 5, 5]
    last = images.train_images[1999, 31, :8, 0].astype(int)
    np.testing.assert_allclose(last, [89, 79, 36, 49, 53, 69, 102, 103], atol=1)


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


# ------------------------------------------------------------------ to pretrain on, and to refit on
@pytest.mark.parametrize("make", [synthetic_flickr, synthetic_imagenet])
def test_a_hundred_classes(make):
    images = make(3000, 10)
    assert images.name == make.__name__.replace("_", "-")
    assert images.train_images.shape == (3000, 32, 32, 3)
    assert set(images.train_labels.tolist()) == set(range(100))
    assert images.classes == 100
    np.testing.assert_array_equal(images.test_images, make(0, 10).test_images)


def averages(images):
    """Return what the images of a class have in common, at unit length."""
    pixels = images.train_images.reshape(len(images.train_images), -1).astype(float)
    means = np.array([pixels[images.train_labels == label].mean(axis=0) for label in range(100)])
    means -= means.mean(axis=0)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_no_class_is_in_both():
    """A class's average is closer to that of other images of it than to all of the other set's."""
    images, others = synthetic_flickr(8000, 1), synthetic_imagenet(4000, 1)
    halves = [
        replace(
            images, train_images=images.train_images[half], train_labels=images.train_labels[half]
        )
        for half in (slice(4000), slice(4000, None))
    ]
    first, again, other = averages(halves[0]), averages(halves[1]), averages(others)
    same = np.sum(first * again, axis=1)
    assert same.min() > 0.65
    assert np.all((first @ other.T).max(axis=1) < same)
