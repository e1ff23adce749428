"""One network for many clients: whatever it was before, it becomes the model it is given."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from flwr_sdp import npy
from simulations.models.shared_network import SharedNetwork
from simulations.models.torch_model import dump, seeded
from tests.messages import flat, numpy_dict


def build():
    """Return a network with every kind of state: weights, statistics and a counter."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def model(seed):
    return dump(seeded(build, seed))


def same(first, second):
    first, second = numpy_dict(first), numpy_dict(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        np.testing.assert_array_equal(value, second[name])


# ------------------------------------------------------------------ writing
def test_what_is_sent_is_what_flower_would_send():
    network = seeded(build, 0)
    ours, flowers = dump(network), ArrayRecord(network.state_dict())
    assert list(ours) == list(flowers)
    for name, array in ours.items():
        other = flowers[name]
        assert (array.dtype, array.shape, array.stype) == (other.dtype, other.shape, other.stype)
        assert array.data == other.data


def test_what_is_frozen_is_not_sent():
    """Neither weights nor the statistics of a frozen layer; a tied weight goes once."""
    network = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
    )
    network[4].weight = network[2].weight
    network[0].requires_grad_(False)
    network[1].requires_grad_(False)
    assert list(dump(network)) == [
        "2.weight", "2.bias", "3.weight", "3.bias", "3.running_mean", "3.running_var",
        "3.num_batches_tracked", "4.bias",
    ]  # fmt: skip


def test_frozen_weights_stay_and_the_others_become_the_model():
    def half_frozen():
        network = build()
        network[0].requires_grad_(False)
        return network

    shared = SharedNetwork(lambda: seeded(half_frozen, 5))
    frozen = seeded(half_frozen, 5)[0].weight
    network = shared.become(dump(seeded(half_frozen, 6)))
    assert torch.equal(network[0].weight, frozen)
    assert torch.equal(network[2].weight, seeded(half_frozen, 6)[2].weight)


def test_tensors_that_are_not_contiguous_are_written():
    network = nn.Linear(3, 2)
    network.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).T)
    np.testing.assert_array_equal(dump(network)["weight"].numpy(), [[0, 2, 4], [1, 3, 5]])


# ------------------------------------------------------------------ reading
def test_it_becomes_the_model_buffers_included():
    shared = SharedNetwork(build)
    network = shared.become(model(1))
    same(dump(network), model(1))
    with torch.no_grad():
        network.train()(torch.rand(5, 3))  # moves the statistics and the counter
        network[0].weight.fill_(7.0)
    again = model(1)
    same(dump(shared.become(again)), again)
    same(dump(shared.become(model(2))), model(2))


def count_readings(monkeypatch):
    names = []
    read = npy.read_array
    monkeypatch.setattr(
        npy, "read_array", lambda name, array: names.append(name) or read(name, array)
    )
    return names


def test_a_model_that_comes_again_is_read_once(monkeypatch):
    shared, sent = SharedNetwork(build), model(1)
    names = count_readings(monkeypatch)
    for _ in range(5):
        same_bytes = ArrayRecord(dict(sent))  # another record of the same bytes
        shared.become(sent)
        shared.become(same_bytes)
    assert sorted(names) == sorted(sent)


def test_a_record_that_was_given_another_array_is_read_again():
    """It is the bytes that must be the same, not the record."""
    shared, sent = SharedNetwork(build), model(1)
    shared.become(sent)
    sent["0.bias"] = Array(np.full(4, 3.0, np.float32))
    assert shared.become(sent)[0].bias.tolist() == [3.0] * 4


def test_training_leaves_what_was_read_alone():
    shared, sent = SharedNetwork(build), model(1)
    network = shared.become(sent)
    before = flat(sent)
    torch.optim.SGD(network.parameters(), lr=1.0).zero_grad()
    network(torch.rand(5, 3)).sum().backward()
    torch.optim.SGD(network.parameters(), lr=1.0).step()
    same(dump(shared.become(sent)), sent)
    np.testing.assert_array_equal(flat(sent), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: sent.pop("0.bias"), "the model must have the arrays 0.weight, 0.bias"),
        (lambda sent: sent.update({"more": Array(np.zeros(1))}), "got .*more"),
        (
            lambda sent: sent.update({"0.bias": Array(np.zeros(5, np.float32))}),
            r"array '0.bias' must have the shape \(4,\); got \(5,\)",
        ),
    ],
)
def test_another_model_is_refused(change, message):
    shared, sent = SharedNetwork(build), model(1)
    change(sent)
    with pytest.raises(ValueError, match=message):
        shared.become(sent)
    same(dump(shared.become(model(1))), model(1))
