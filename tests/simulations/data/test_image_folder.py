"""A folder of images for each class: what is taken, how it is decoded, what is wrong with it."""

import re
import time

import numpy as np
import pytest
from PIL import Image

from simulations.data.image_folder import read_image, read_images
from tests.simulations.data import writers


def written(folder, **changes):
    writers.write_image_folder(folder, **changes)
    return folder


def paths(images):
    return [*images.train_images.paths, *images.test_images.paths]


def labels(images):
    return [*images.train_labels.tolist(), *images.test_labels.tolist()]


# ------------------------------------------------------------------ what is taken
def test_each_image_is_taken_once_with_the_label_of_its_folder(tmp_path):
    images = read_images(written(tmp_path, classes=5, count=6), seed=0)
    assert sorted(paths(images)) == sorted(tmp_path.glob("*/*.png"))
    assert [path.parent.name for path in paths(images)] == [f"class-{n}" for n in labels(images)]
    assert (len(images.train_images), len(images.test_images)) == (27, 3)
    assert images.classes == 5


def test_labels_go_with_the_images(tmp_path):
    """The colour that an image has is its class's, after all shuffling."""
    images = read_images(written(tmp_path, count=10), seed=3, side=8)
    for pixels, numbers in (
        (images.train_images, images.train_labels),
        (images.test_images, images.test_labels),
    ):
        colours = pixels[np.arange(len(pixels))].mean(axis=(1, 2)).argmax(axis=1)
        np.testing.assert_array_equal(colours, numbers)


def test_classes_and_images_are_drawn(tmp_path):
    """As many as asked for, of each chosen class alike; over 40 seeds every one comes up."""
    written(tmp_path, classes=4, count=9, side=8)
    seen = set()
    for seed in range(40):
        images = read_images(tmp_path, seed=seed, classes=3, per_class=5)
        assert len(set(paths(images))) == 15
        assert [labels(images).count(label) for label in range(3)] == [5, 5, 5]
        seen |= set(paths(images))
    assert len(seen) == 36


def test_the_seed_decides_all_of_it(tmp_path):
    written(tmp_path, classes=4, count=9, side=8)
    first, again, other = (
        read_images(tmp_path, seed=seed, classes=3, per_class=5) for seed in (1, 1, 2)
    )
    assert paths(first) == paths(again)
    assert labels(first) == labels(again)
    assert paths(first) != paths(other)


def test_figures_call_the_data_by_its_folder(tmp_path):
    folder = written(tmp_path / "holidays", count=9)
    assert read_images(folder, seed=0).name == "image-folder holidays"


def test_other_files_are_passed_over(tmp_path):
    written(tmp_path, count=4)
    (tmp_path / "README.txt").write_text("of the whole")
    (tmp_path / "class-0" / "notes.txt").write_text("of a class")
    (tmp_path / "class-0" / "image-0.png").rename(tmp_path / "class-0" / "IMAGE.PNG")
    assert len(paths(read_images(tmp_path, seed=0))) == 12


# ------------------------------------------------------------------ decoding
@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_images_are_decoded_when_they_are_asked_for(tmp_path, ending):
    """A broken one is found then, and not before."""
    images = read_images(written(tmp_path, ending=ending), seed=0, side=24)
    taken = images.train_images[np.array([2, 0, 2])]
    assert taken.shape == (3, 24, 24, 3)
    assert taken.dtype == np.uint8
    np.testing.assert_array_equal(taken[0], taken[2])
    broken = images.train_images.paths[0]
    broken.write_bytes(broken.read_bytes()[:200])
    images.train_images[np.array([1])]
    with pytest.raises(ValueError, match=rf"{re.escape(str(broken))} is not a whole image: "):
        images.train_images[np.array([1, 0])]


def test_the_middle_is_taken(tmp_path):
    """Of 256x512 pixels, of which 224x224 are left untouched: a frame of red is cut off."""
    pixels = np.zeros((256, 512, 3), np.uint8)
    pixels[:, :, 0] = 255
    middle = np.random.default_rng(0).integers(256, size=(224, 224, 3), dtype=np.uint8)
    pixels[16:240, 144:368] = middle
    Image.fromarray(pixels).save(tmp_path / "framed.png")
    np.testing.assert_array_equal(read_image(tmp_path / "framed.png", 224), middle)


def test_a_large_image_is_made_smaller(tmp_path):
    """Four pixels to one, of a slope: the average is in the middle of them."""
    slope = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 256, 3))
    Image.fromarray(np.ascontiguousarray(slope)).save(tmp_path / "slope.png")
    found = read_image(tmp_path / "slope.png", 56)[:, 0, 0].astype(float)
    np.testing.assert_allclose(found, 16 + 4 * np.arange(56) + 1.5, atol=1.0)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "I;16", "1"])
def test_other_kinds_of_image_become_colours(tmp_path, mode):
    if mode == "I;16":
        image = Image.fromarray(np.full((20, 20), 900, np.uint16))
    else:
        image = Image.new("RGB", (20, 20), (200, 200, 200)).convert(mode)
    path = tmp_path / f"image.{'jpg' if mode == 'CMYK' else 'png'}"
    image.save(path)
    found = read_image(path, 16)
    assert found.shape == (16, 16, 3)
    assert found.std() < 60


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"])
def test_what_is_no_image_is_named(tmp_path, content):
    path = tmp_path / "image.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} is not a whole image"):
        read_image(path, 16)


def test_no_damage_to_a_file_raises_anything_else(tmp_path):
    """Cut short, or with a byte changed, at many places: an image, or an error that names it."""
    written(tmp_path, classes=1, count=1)
    whole = next(tmp_path.glob("*/*.png")).read_bytes()
    path = tmp_path / "image.png"
    refused = 0
    for place in range(0, len(whole), 61):
        for content in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :],
        ):
            path.write_bytes(content)
            try:
                assert read_image(path, 8).shape == (8, 8, 3)
            except ValueError as error:
                assert str(path) in str(error)  # noqa: PT017
                refused += 1
    assert refused > 50


# ------------------------------------------------------------------ what is missing
def test_a_missing_folder_is_named_at_once(tmp_path):
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/nowhere is missing.*set data-dir"):
        read_images(tmp_path / "nowhere", seed=0)
    assert time.monotonic() - start < 1.0


def test_a_folder_without_classes_is_named(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    with pytest.raises(ValueError, match=rf"{tmp_path} must have a folder .* got 0"):
        read_images(tmp_path, seed=0)


def test_a_class_without_images_is_named(tmp_path):
    written(tmp_path, count=9)
    (tmp_path / "class-1b").mkdir()
    with pytest.raises(ValueError, match=rf"{tmp_path}/class-1b must have images .*there are none"):
        read_images(tmp_path, seed=0)


def test_too_few_to_hold_any_out_are_refused(tmp_path):
    with pytest.raises(ValueError, match=rf"{tmp_path} must have at least 10 images.*got 9"):
        read_images(written(tmp_path, count=3), seed=0)
