"""The digits and how they are dealt."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from simulations.models.mlp import mlp
from simulations.models.torch_model import seeded
from simulations.tasks import DataSettings, LocalTraining, TaskSettings, load_task
from simulations.tasks.digits import HELD_OUT, Digits
from tests.messages import flat


def settings(*, seed=0, num_clients=100, steps=1, learning_rate=0.1, **changes):
    training = LocalTraining(steps=steps, learning_rate=learning_rate)
    return TaskSettings(seed=seed, num_clients=num_clients, training=training, **changes)


def make(**changes):
    return Digits(settings(**changes))


@pytest.fixture(scope="module")
def task():
    return make()


def fingerprints(images, labels):
    """Return images with their labels, as bytes."""
    return [
        (image.numpy().tobytes(), int(label)) for image, label in zip(images, labels, strict=True)
    ]


def taken(examples, indices):
    pixels = (16 * examples.inputs(indices, None)).reshape(-1, 8, 8).to(torch.uint8)
    return fingerprints(pixels, examples.labels[indices])


def held_out(digits):
    return taken(digits._test, np.arange(HELD_OUT))


def share(digits, client):
    return taken(digits._train, digits._partition.examples(client, 1))


# ------------------------------------------------------------------ data
@pytest.mark.parametrize("num_clients", [1, 7, 100, 1497])
def test_every_image_is_dealt_once(num_clients):
    """As many of each as there are: nothing is held twice, nor both held out and trained on."""
    digits = make(seed=3, num_clients=num_clients)
    source = load_digits()
    images = torch.from_numpy(source.images.astype(np.uint8))
    everything = Counter(fingerprints(images, source.target))
    dealt = Counter(held_out(digits))
    for client in range(num_clients):
        dealt.update(share(digits, client))
    assert dealt == everything
    assert dealt.total() == 1797


def test_held_out_images_are_nobodys(task):
    nobodys = set(held_out(task))
    assert len(task._test.labels) == HELD_OUT == 300
    for client in range(100):
        assert not nobodys & set(share(task, client))


@pytest.mark.parametrize("num_clients", [1, 7, 100, 1497])
def test_shares_differ_by_one_image_at_most(num_clients):
    digits = make(num_clients=num_clients)
    sizes = [len(digits._partition.examples(client, 1)) for client in range(num_clients)]
    assert sum(sizes) == 1497
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_seed_decides_the_split():
    first, again, other = (make(seed=seed, num_clients=10) for seed in (1, 1, 2))
    assert held_out(first) == held_out(again) != held_out(other)
    for client in range(10):
        assert share(first, client) == share(again, client) != share(other, client)


def test_held_out_images_do_not_depend_on_the_number_of_clients():
    assert held_out(make(num_clients=10)) == held_out(make(num_clients=50))


@pytest.mark.parametrize("num_clients", [1498, 10_000])
def test_too_many_clients_are_refused(num_clients):
    with pytest.raises(ValueError, match=rf"num-clients must be <= 1497 .*got {num_clients}"):
        load_task("digits", settings(num_clients=num_clients))


@pytest.mark.parametrize("partition", ["fresh", "sampled", "dirichlet"])
def test_other_partitions_hold_the_training_images(partition):
    digits = make(num_clients=2000, partition=partition, examples_per_client=5)
    nobodys = set(held_out(digits))
    for client in (0, 7, 1999):
        assert not nobodys & set(share(digits, client))


def test_data_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="data must be one of 'digits'; got 'mnist'"):
        make(data=DataSettings(name="mnist"))
    with pytest.raises(ValueError, match=rf"data-dir must be empty .*'{tmp_path}'"):
        make(data=DataSettings(folder=tmp_path))


def test_figures_call_the_data_digits(task):
    assert task.data_name == "digits"


# ------------------------------------------------------------------ model and training
def test_network_has_9610_weights(task):
    model = task.initial_model()
    assert flat(model).size == 9610
    assert {array.dtype for array in model.values()} == {"float32"}


def test_seed_decides_the_first_model():
    first, again, other = (flat(make(seed=seed).initial_model()) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("client", [0, 42])
def test_local_update_is_full_batch_gradient_descent(client):
    """Against the loop written down, on pixels from 0 to 1: bit for bit."""
    digits = make(seed=5, steps=5, learning_rate=0.5)
    network = seeded(lambda: mlp(64, 128, 10), 5)
    chosen = digits._partition.examples(client, 1)
    inputs, labels = digits._train.inputs(chosen, None), digits._train.labels[chosen]
    assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    found = digits.local_update(digits.initial_model(), client=client, server_round=1)
    for name, weights in network.state_dict().items():
        np.testing.assert_array_equal(found[name].numpy(), weights.numpy())


def test_clients_train_on_their_own_images(task):
    model = task.initial_model()
    updates = [flat(task.local_update(model, client=client, server_round=1)) for client in range(3)]
    assert np.any(updates[0] != updates[1])
    assert np.any(updates[1] != updates[2])


def test_training_on_everything_learns_the_digits():
    alone = make(num_clients=1, steps=60, learning_rate=0.5)
    model = alone.initial_model()
    before = alone.evaluate(model)
    after = alone.evaluate(alone.local_update(model, client=0, server_round=1))
    assert before["accuracy"] < 0.35
    assert after["accuracy"] > 0.8
    assert after["loss"] < before["loss"]
