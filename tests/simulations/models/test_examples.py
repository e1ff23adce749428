"""From stored examples to what a network takes: the same wherever and whenever they are asked."""

import numpy as np
import pytest
import torch
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.preparation import colours
from simulations.models import examples as module
from simulations.models.examples import FeatureExamples, ImageExamples
from simulations.models.torch_model import seeded

COUNT = 40
FEATURE_BYTES = 5 * 4 * 4 * 4  # of one image


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch):
    monkeypatch.setattr(module, "_AT_ONCE", 8)


class Stored:
    """Images that note which of them were read."""

    def __init__(self, images):
        self.images = images
        self.read = []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, indices):
        self.read += indices.tolist()
        return self.images[indices]


class Counting(nn.Module):
    """A trunk that notes how many images it saw at a time."""

    def __init__(self):
        super().__init__()
        self.convolution = seeded(lambda: nn.Conv2d(3, 5, 3, stride=2, padding=1), 4)
        self.seen = []

    def forward(self, inputs):
        self.seen.append(len(inputs))
        return self.convolution(inputs).relu()


def pixels():
    rng = np.random.default_rng(3)
    return rng.integers(256, size=(COUNT, 8, 8, 3), dtype=np.uint8), np.arange(COUNT) % 10


def featured(**changes):
    stored, trunk = Stored(pixels()[0]), Counting()
    examples = ImageExamples(stored, pixels()[1], colours)
    return FeatureExamples(examples, trunk, **changes), stored, trunk


def some(count=COUNT, seed=0):
    return np.random.default_rng(seed).permutation(COUNT)[:count]


# ------------------------------------------------------------------ images
def test_images_in_memory_and_images_that_are_read_are_the_same():
    images, labels = pixels()
    held = ImageExamples(images, labels, colours)
    read = ImageExamples(Stored(images), labels, colours)
    expected = torch.from_numpy(images[some()].transpose(0, 3, 1, 2) / 127.5 - 1.0).float()
    for examples in (held, read):
        torch.testing.assert_close(examples.inputs(some(), None), expected)
        assert examples.labels.tolist() == labels.tolist()


def test_images_are_read_when_they_are_asked_for():
    stored = Stored(pixels()[0])
    examples = ImageExamples(stored, pixels()[1], colours)
    assert stored.read == []
    examples.inputs(np.array([3, 1]), None)
    assert stored.read == [3, 1]


def test_what_is_held_is_a_copy():
    images, labels = pixels()
    examples = ImageExamples(images, labels, colours)
    before = examples.inputs(some(), None)
    images[:] = 0
    labels[:] = 0
    assert torch.equal(before, examples.inputs(some(), None))
    assert len(set(examples.labels.tolist())) == 10


def test_images_are_prepared_with_the_generator():
    seen = []
    examples = ImageExamples(
        *pixels(), lambda images, rng: (seen.append(rng), colours(images, rng))[1]
    )
    rng = seeded_generator(0, "here")
    examples.inputs(some(3), rng)
    examples.inputs(some(3), None)
    assert seen == [rng, None]


# ------------------------------------------------------------------ frozen features
@pytest.mark.parametrize("cached_bytes", [COUNT * FEATURE_BYTES, 0])
def test_features_are_what_the_trunk_makes_of_an_image(cached_bytes):
    examples, _, trunk = featured(cached_bytes=cached_bytes)
    found = examples.inputs(some(19), seeded_generator(0, "training"))
    inputs = ImageExamples(*pixels(), colours).inputs(some(19), None)
    torch.testing.assert_close(found, trunk(inputs))
    assert not found.requires_grad
    assert examples.labels.tolist() == pixels()[1].tolist()


def test_an_image_goes_through_the_trunk_once():
    """Asked for in three orders; each is read once, and nothing is read beforehand."""
    examples, stored, trunk = featured()
    assert stored.read == trunk.seen == []
    for indices in (some(16), some(32), some(COUNT, seed=1), some(32)):
        examples.inputs(indices, None)
    assert sorted(stored.read) == list(range(COUNT))
    assert trunk.seen == [8] * 5


@pytest.mark.parametrize(
    ("cached_bytes", "is_kept"), [(COUNT * FEATURE_BYTES, True), (COUNT * FEATURE_BYTES - 1, False)]
)
def test_features_are_kept_where_all_of_them_fit(cached_bytes, is_kept):
    """To the byte; what does not fit is computed whenever it is asked for."""
    examples, stored, _ = featured(cached_bytes=cached_bytes)
    first, again = (examples.inputs(some(16), None) for _ in range(2))
    assert torch.equal(first, again)
    assert len(stored.read) == (16 if is_kept else 32)


@pytest.mark.parametrize("cached_bytes", [COUNT * FEATURE_BYTES, 0])
def test_features_do_not_depend_on_what_was_asked_for_together(cached_bytes):
    """To the last bit, as results must not depend on which worker has seen what."""
    once = featured(cached_bytes=cached_bytes)[0].inputs(np.arange(COUNT), None)
    examples, _, trunk = featured(cached_bytes=cached_bytes)
    for count in (1, 3, 11, COUNT):
        indices = some(count, seed=count)
        assert torch.equal(examples.inputs(indices, None), once[indices])
    assert set(trunk.seen) == {8}


def test_what_a_network_is_given_is_no_part_of_what_is_kept():
    examples, _, _ = featured()
    first = examples.inputs(some(4), None)
    before = first.clone()
    first.zero_()
    assert torch.equal(examples.inputs(some(4), None), before)
