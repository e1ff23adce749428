"""The digits and how they are dealt."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from flwr_sdp import seeded_generator
from simulations.data.partition import deal, permutation
from simulations.tasks import load_task
from simulations.tasks.digits import HELD_OUT, Digits
from tests.messages import flat
from tests.statistics_helpers import assert_counts, assert_detects


@pytest.fixture(scope="module")
def task():
    return Digits(seed=0, num_clients=100)


def fingerprints(share):
    """Return the images of a share with their labels, as bytes."""
    images, labels = (tensor.numpy() for tensor in share)
    return [(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]


# ------------------------------------------------------------------ data
@pytest.mark.parametrize("num_clients", [1, 7, 100, 1497])
def test_every_image_is_dealt_once(num_clients):
    """As many of each as there are: nothing is held twice, nor both held out and trained on."""
    digits = Digits(seed=3, num_clients=num_clients)
    source = load_digits()
    images, labels = (source.data / 16.0).astype(np.float32), source.target
    everything = Counter((image.tobytes(), int(y)) for image, y in zip(images, labels, strict=True))
    dealt = Counter(fingerprints(digits._test))
    for share in digits._clients:
        dealt.update(fingerprints(share))
    assert dealt == everything
    assert dealt.total() == 1797


def test_held_out_images_are_nobodys(task):
    held_out = set(fingerprints(task._test))
    assert len(task._test[0]) == HELD_OUT == 300
    for share in task._clients:
        assert not held_out & set(fingerprints(share))


@pytest.mark.parametrize("num_clients", [1, 7, 100, 1497])
def test_shares_differ_by_one_image_at_most(num_clients):
    sizes = [len(share[1]) for share in Digits(seed=0, num_clients=num_clients)._clients]
    assert len(sizes) == num_clients
    assert sum(sizes) == 1497
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_pixels_are_between_zero_and_one(task):
    images, labels = task._test
    assert images.dtype == torch.float32
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    assert set(labels.tolist()) == set(range(10))


def test_seed_decides_the_split():
    first, again, other = (Digits(seed=seed, num_clients=10) for seed in (1, 1, 2))
    for one, same, different in zip(
        [first._test, *first._clients],
        [again._test, *again._clients],
        [other._test, *other._clients],
        strict=True,
    ):
        assert fingerprints(one) == fingerprints(same) != fingerprints(different)


def test_held_out_images_do_not_depend_on_the_number_of_clients():
    one, other = (Digits(seed=0, num_clients=count) for count in (10, 50))
    assert fingerprints(one._test) == fingerprints(other._test)


@pytest.mark.parametrize("num_clients", [1498, 10_000])
def test_too_many_clients_are_refused(num_clients):
    with pytest.raises(ValueError, match=rf"num-clients must be <= 1497 .*got {num_clients}"):
        load_task("digits", seed=0, num_clients=num_clients)


def test_unknown_task_lists_those_there_are():
    with pytest.raises(ValueError, match=r"task must be one of .*digits.*; got 'numbers'"):
        load_task("numbers", seed=0, num_clients=10)


# ------------------------------------------------------------------ dealing
def test_every_order_is_as_likely():
    """3,000 orders of 4, 24 kinds, chi-square: false alarms at 5.7e-7. The mutant rotates."""
    rng = seeded_generator(0)
    orders = Counter(tuple(permutation(4, rng).tolist()) for _ in range(3000))
    assert len(orders) == 24
    assert_counts(list(orders.values()), np.full(24, 1 / 24))
    rotations = [orders[order] if order[0] < order[-1] else 0 for order in orders]
    assert_detects(assert_counts, rotations, np.full(24, 1 / 24))


def test_order_holds_every_index_once():
    assert sorted(permutation(1000, seeded_generator(1)).tolist()) == list(range(1000))


def test_dealing_goes_around():
    assert [share.tolist() for share in deal(np.arange(5), 2)] == [[0, 2, 4], [1, 3]]


# ------------------------------------------------------------------ model and training
def test_network_has_9610_weights(task):
    model = task.initial_model()
    assert sum(array.numpy().size for array in model.values()) == 9610
    assert {array.dtype for array in model.values()} == {"float32"}


def test_seed_decides_the_first_model():
    first, again, other = (
        flat(Digits(seed=seed, num_clients=10).initial_model()) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_first_model_leaves_the_global_generator_alone(task):
    before = torch.get_rng_state()
    task.initial_model()
    assert torch.equal(before, torch.get_rng_state())


def test_local_update_is_gradient_descent(task):
    """One step by the learning rate; the update scales with it, and is repeatable."""
    model = task.initial_model()
    start = flat(model)
    options = {"partition": 3, "steps": 1}
    small = flat(task.local_update(model, learning_rate=0.01, **options)) - start
    again = flat(task.local_update(model, learning_rate=0.01, **options)) - start
    large = flat(task.local_update(model, learning_rate=0.1, **options)) - start
    np.testing.assert_array_equal(small, again)
    np.testing.assert_allclose(large, 10 * small, atol=1e-6)
    np.testing.assert_array_equal(flat(model), start)
    assert np.linalg.norm(small) > 0


def test_clients_train_on_their_own_images(task):
    model = task.initial_model()
    updates = [
        flat(task.local_update(model, partition=partition, steps=1, learning_rate=0.1))
        for partition in range(3)
    ]
    assert np.any(updates[0] != updates[1])
    assert np.any(updates[1] != updates[2])


def test_training_on_everything_learns_the_digits():
    torch.set_num_threads(1)
    alone = Digits(seed=0, num_clients=1)
    model = alone.initial_model()
    before = alone.evaluate(model)
    after = alone.evaluate(alone.local_update(model, partition=0, steps=60, learning_rate=0.5))
    assert before["accuracy"] < 0.35
    assert after["accuracy"] > 0.8
    assert after["loss"] < before["loss"]


def test_scores_are_plain_numbers(task):
    scores = task.evaluate(task.initial_model())
    assert set(scores) == {"accuracy", "loss"}
    assert all(type(value) is float for value in scores.values())
    assert 0.0 <= scores["accuracy"] <= 1.0
