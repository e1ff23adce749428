"""A task of images: clients share the process, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flwr_sdp import seeded_generator
from simulations.data.images import Images
from simulations.data.preparation import rows
from simulations.models import classification
from simulations.models.classification import Classification
from simulations.models.torch_model import seeded
from simulations.tasks import LocalTraining, TaskSettings
from tests.messages import flat, numpy_dict, record

SETTINGS = TaskSettings(
    num_clients=6,
    seed=3,
    partition="fresh",
    examples_per_client=20,
    training=LocalTraining(steps=4, learning_rate=0.3, batch_size=8, optimizer="adam"),
)


def images():
    """Return bright bars: each class has its own place."""
    rng = np.random.default_rng(5)
    labels = np.arange(400) % 10
    pixels = rng.integers(0, 6, size=(400, 2, 10), dtype=np.uint8)
    pixels[np.arange(400), :, labels] += 9
    return Images(
        name="bars",
        train_images=pixels[:300],
        train_labels=labels[:300],
        test_images=pixels[300:],
        test_labels=labels[300:],
    )


def build():
    """Return a network with buffers, and with weights that nothing is random about but the seed."""
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def make(build=build, prepare=rows, trunk=None, top=None, **changes):
    return Classification(
        replace(SETTINGS, **changes),
        images(),
        build=build,
        prepare=prepare,
        trunk=trunk,
        top=top,
    )


def updates(task, model, clients, server_round=1):
    return {
        client: numpy_dict(task.local_update(model, client=client, server_round=server_round))
        for client in clients
    }


def assert_same(first, second):
    for client, arrays in first.items():
        for name, value in arrays.items():
            np.testing.assert_array_equal(value, second[client][name])


# ------------------------------------------------------------------ shared, and alone
def test_clients_in_any_order_give_the_same_bits():
    """In two orders, with an evaluation between; and each in a task of its own."""
    task = make()
    model = task.initial_model()
    forward = updates(task, model, range(6))
    task.evaluate(task.local_update(model, client=1, server_round=9))
    backward = updates(task, model, reversed(range(6)))
    assert_same(forward, backward)
    for client in range(6):
        alone = make()
        assert_same(updates(alone, alone.initial_model(), [client]), forward)


def test_clients_and_rounds_differ():
    task = make()
    model = task.initial_model()
    found = [
        flat(task.local_update(model, client=client, server_round=server_round)).tobytes()
        for client in range(3)
        for server_round in range(3)
    ]
    assert len(set(found)) == 9


def test_the_model_that_was_received_is_not_changed():
    task = make()
    model = task.initial_model()
    before = flat(model)
    task.local_update(model, client=0, server_round=1)
    task.evaluate(model)
    np.testing.assert_array_equal(flat(model), before)


def test_global_generators_are_left_alone():
    task = make()
    model = task.initial_model()
    before = torch.get_rng_state(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    task.initial_model()
    task.local_update(model, client=0, server_round=1)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tobytes()  # noqa: NPY002


def test_a_client_without_examples_returns_the_model_it_received():
    task = make(partition="dirichlet", dirichlet_alpha=1e-3, num_clients=100)
    model = task.initial_model()
    empty = [c for c in range(100) if not len(task._partition.examples(c, 1))]
    assert len(empty) > 50
    assert task.local_update(model, client=empty[0], server_round=1) is model


# ------------------------------------------------------------------ training and evaluation
def test_update_is_that_of_a_loop_written_down():
    """Full-batch gradient descent on what the partition says, bit for bit."""
    task = make(training=LocalTraining(steps=3, learning_rate=0.3))
    model = task.initial_model()
    network, data = seeded(build, 3), images()
    chosen = task._partition.examples(2, 5)
    inputs = torch.from_numpy(data.train_images[chosen].reshape(20, -1)) / 16.0
    labels = torch.from_numpy(data.train_labels[chosen])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    found = numpy_dict(task.local_update(model, client=2, server_round=5))
    for name, value in network.state_dict().items():
        np.testing.assert_array_equal(found[name], value.numpy())


@pytest.mark.parametrize("at_once", [7, 100, 500])
def test_scores_are_those_of_all_test_images(monkeypatch, at_once):
    monkeypatch.setattr(classification, "_EVALUATED_AT_ONCE", at_once)
    task, data = make(), images()
    model = task.local_update(task.initial_model(), client=0, server_round=1)
    network = build().eval()
    network.load_state_dict(model.to_torch_state_dict())
    with torch.no_grad():
        scores = network(torch.from_numpy(data.test_images.reshape(100, -1)) / 16.0)
    labels = torch.from_numpy(data.test_labels)
    found = task.evaluate(model)
    assert set(found) == {"accuracy", "loss"}
    assert all(type(value) is float for value in found.values())
    assert found["accuracy"] == float((scores.argmax(dim=1) == labels).double().mean())
    loss = float(nn.functional.cross_entropy(scores, labels))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_few_rounds_learn_the_classes():
    task = make(
        partition="deal", num_clients=1, training=LocalTraining(steps=60, learning_rate=0.5)
    )
    model = task.initial_model()
    before = task.evaluate(model)
    after = task.evaluate(task.local_update(model, client=0, server_round=1))
    assert before["accuracy"] < 0.4
    assert after["accuracy"] > 0.9
    assert after["loss"] < before["loss"]


def test_images_are_prepared_with_the_clients_generator():
    """The same for the same client and round; none to evaluate; batches are drawn after it."""
    seen = []

    def prepare(pixels, rng):
        seen.append(None if rng is None else rng.bits(1)[0])
        return rows(pixels)

    task = make(prepare=prepare)
    model = task.initial_model()
    for client, server_round in ((0, 1), (1, 1), (0, 2), (0, 1)):
        task.local_update(model, client=client, server_round=server_round)
    assert seen[0] == seen[3] == seeded_generator(3, "training", 1, 0).bits(1)[0]
    assert len(set(seen)) == 3
    seen.clear()
    task.evaluate(model)
    assert seen == [None]


def test_a_model_of_another_network_is_refused():
    with pytest.raises(ValueError, match="the model must have the arrays"):
        make().local_update(record({"w": np.zeros(3)}), client=0, server_round=1)


def test_figures_call_the_data_by_its_name():
    assert make().data_name == "bars"


# ------------------------------------------------------------------ guesses, and frozen layers
@pytest.mark.parametrize("top", [1, 3, 10, 12])
def test_top_accuracy_counts_the_best_guesses(top):
    """Against ranks written down; as many guesses as classes are always right."""
    task, data = make(top=top), images()
    model = task.local_update(task.initial_model(), client=0, server_round=1)
    found = task.evaluate(model)
    assert task.metrics == (f"top-{top}-accuracy",)
    assert set(found) == {"accuracy", "loss", *task.metrics}
    network = build().eval()
    network.load_state_dict(model.to_torch_state_dict())
    with torch.no_grad():
        scores = network(torch.from_numpy(data.test_images.reshape(100, -1)) / 16.0).numpy()
    own = scores[np.arange(100), data.test_labels]
    ranks = (scores > own[:, None]).sum(axis=1)
    assert found[task.metrics[0]] == np.mean(ranks < top)
    if top == 1:
        assert found["accuracy"] == found["top-1-accuracy"] < 1.0
    assert (found[task.metrics[0]] == 1.0) == (top >= 10)


def test_without_guesses_there_is_no_such_metric():
    assert make().metrics == ()


def test_training_on_frozen_features_is_training_with_the_trunk_in_the_network():
    """And on what is kept of the features it is the same again, bit for bit."""
    trunk = seeded(lambda: nn.Sequential(nn.Linear(20, 12), nn.Tanh()), 1)

    def above():
        return nn.Linear(12, 10)

    def whole():
        lower = nn.Sequential(nn.Linear(20, 12), nn.Tanh()).requires_grad_(False)
        lower.load_state_dict(trunk.state_dict())
        return nn.Sequential(*lower, nn.Linear(12, 10))

    there = make(build=whole)
    here = make(build=above, trunk=trunk)
    start = there.initial_model()
    assert set(start) == {"2.weight", "2.bias"}
    model = record({name: start[f"2.{name}"].numpy() for name in ("weight", "bias")})
    first = numpy_dict(here.local_update(model, client=2, server_round=1))
    again = numpy_dict(here.local_update(model, client=2, server_round=1))
    expected = numpy_dict(there.local_update(start, client=2, server_round=1))
    for name, value in first.items():
        np.testing.assert_allclose(value, expected[f"2.{name}"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(value, again[name])
    assert here.evaluate(model)["loss"] == pytest.approx(there.evaluate(start)["loss"], rel=1e-5)


def test_frozen_weights_of_an_untrained_network_are_the_seeds():
    """They are not sent: every process has to make the same ones."""

    def half_frozen():
        network = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 10))
        network[0].requires_grad_(False)
        return network

    first, again = make(build=half_frozen), make(build=half_frozen)
    other = make(build=half_frozen, seed=4)
    model = first.initial_model()
    assert set(model) == {"2.weight", "2.bias"}
    assert first.evaluate(model) == again.evaluate(model) != other.evaluate(model)


def test_nothing_is_saved_beside_a_model(tmp_path):
    make().save(tmp_path)
    assert not list(tmp_path.iterdir())
