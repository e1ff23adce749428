"""What a network is given of an image."""

from collections import Counter

import numpy as np
import pytest
import torch

from flwr_sdp import seeded_generator
from simulations.data.preparation import colours, crops, planes, rows
from tests.statistics_helpers import assert_counts, assert_detects


def random_images(*shape, high=256):
    return torch.from_numpy(np.random.default_rng(0).integers(high, size=shape, dtype=np.uint8))


def test_rows_and_planes_are_scaled():
    digits = random_images(5, 8, 8, high=17)
    assert torch.equal(rows(digits), digits.reshape(5, 64) / 16.0)
    images = random_images(5, 28, 28)
    assert torch.equal(planes(images), images[:, None] / 255.0)
    assert rows(digits).dtype == planes(images).dtype == torch.float32


def test_colours_are_brought_to_one_around_zero():
    images = random_images(3, 6, 7, 3)
    found = colours(images)
    assert (found.shape, found.dtype) == ((3, 3, 6, 7), torch.float32)
    torch.testing.assert_close(found, (images.permute(0, 3, 1, 2) / 127.5 - 1.0).float())
    assert colours(torch.tensor([[[[0, 255, 51]]]])).flatten().tolist() == pytest.approx(
        [-1, 1, -0.6]
    )


def standardised(image):
    values = np.asarray(image, np.float64)
    return (values - values.mean()) / max(values.std(), values.size**-0.5)


def test_the_centre_is_taken_to_evaluate():
    images = random_images(4, 32, 32, 3)
    made = crops(images)
    assert made.shape == (4, 3, 24, 24)
    for image, out in zip(images.numpy(), made.numpy(), strict=True):
        expected = standardised(image[4:28, 4:28]).transpose(2, 0, 1)
        np.testing.assert_allclose(out, expected, atol=1e-5)


def places_of(images, made):
    """Return where each crop was taken, and whether it is mirrored, by looking everywhere."""
    found = []
    for image, out in zip(images.numpy(), made.numpy(), strict=True):
        hits = []
        for top in range(9):
            for left in range(9):
                cut = image[top : top + 24, left : left + 24]
                for is_mirrored in (False, True):
                    expected = standardised(cut[:, ::-1] if is_mirrored else cut)
                    # One row tells them apart; the rest is checked where it fits.
                    if np.allclose(out[:, 0], expected.transpose(2, 0, 1)[:, 0], atol=1e-4):
                        np.testing.assert_allclose(out, expected.transpose(2, 0, 1), atol=1e-4)
                        hits.append((top, left, is_mirrored))
        (hit,) = hits
        found.append(hit)
    return found


def test_random_crops_are_crops_and_half_of_them_are_mirrored():
    images = random_images(20, 32, 32, 3)
    found = places_of(images, crops(images, seeded_generator(0, "crops")))
    assert len(set(found)) > 15
    assert 4 <= sum(is_mirrored for *_, is_mirrored in found) <= 16


def test_every_place_is_as_likely():
    """4,000 crops of images that say their own place; 162 kinds, chi-square at 5.7e-7."""
    y, x = np.mgrid[:32, :32]
    image = torch.from_numpy(np.stack([y, x, 0 * y], axis=-1).astype(np.uint8))
    images = image.expand(4000, 32, 32, 3)
    made = crops(images, seeded_generator(1, "crops")).numpy().astype(float)
    # Standardising is monotone: the third plane is 0, and steps of a pixel give the scale back.
    scale = made[:, 0, 1, 0] - made[:, 0, 0, 0]
    top = np.rint((made[:, 0, 0, 0] - made[:, 2, 0, 0]) / scale).astype(int)
    left = np.rint((made[:, 1].min(axis=(1, 2)) - made[:, 2, 0, 0]) / scale).astype(int)
    mirrored = made[:, 1, 0, 0] > made[:, 1, 0, 23]
    counts = Counter(zip(top.tolist(), left.tolist(), mirrored.tolist(), strict=True))
    kinds = [(t, w, m) for t in range(9) for w in range(9) for m in (False, True)]
    assert set(counts) <= set(kinds)
    observed = [counts[kind] for kind in kinds]
    assert_counts(observed, np.full(162, 1 / 162))
    never_last = [0 if kind[0] == 8 else count for kind, count in zip(kinds, observed, strict=True)]
    assert_detects(assert_counts, never_last, np.full(162, 1 / 162))


def test_the_generator_decides_the_crops():
    images = random_images(10, 32, 32, 3)
    first, again, other = (crops(images, seeded_generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_image_of_one_colour_is_zero():
    grey = torch.full((2, 32, 32, 3), 200, dtype=torch.uint8)
    assert torch.equal(crops(grey), torch.zeros(2, 3, 24, 24))
