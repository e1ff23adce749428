"""The networks of the paper: their sizes and shapes."""

import pytest
import torch
from torch import nn

from simulations.models.cifar_cnn import cifar_cnn
from simulations.models.local_response import LocalResponse
from simulations.models.mnist_cnn import mnist_cnn
from simulations.models.torch_model import dump, seeded
from tests.messages import flat


@pytest.mark.parametrize(
    ("build", "dim", "shape"),
    [(mnist_cnn, 3_274_634, (1, 28, 28)), (cifar_cnn, 1_068_298, (3, 24, 24))],
)
def test_sizes_are_those_of_the_paper(build, dim, shape):
    """Of what is trained, and of what is sent."""
    network = build()
    assert sum(weights.numel() for weights in network.parameters()) == dim
    assert flat(dump(network)).size == dim
    assert network(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("build", [mnist_cnn, cifar_cnn])
def test_every_weight_is_reached_by_the_gradient(build):
    network = seeded(build, 0)
    shape = (1, 28, 28) if build is mnist_cnn else (3, 24, 24)
    inputs = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    network(inputs).square().sum().backward()
    assert all(float(weights.grad.norm()) > 0 for weights in network.parameters())


def test_pooling_ends_where_tensorflow_ends():
    """Windows of 3 at every second place of 24, from the first: the last has but two."""
    line = torch.arange(24.0).reshape(1, 1, 1, 24).expand(1, 1, 24, 24)
    pool = next(layer for layer in cifar_cnn() if isinstance(layer, nn.MaxPool2d))
    assert pool(line)[0, 0, 0].tolist() == [*range(2, 23, 2), 23]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_local_response_is_torchs(size):
    generator = torch.Generator().manual_seed(1)
    inputs = 3.0 * torch.randn(2, 16, 5, 5, generator=generator)
    here = LocalResponse(16, size=size, alpha=0.3)(inputs)
    there = nn.LocalResponseNorm(size, alpha=0.3, beta=0.75, k=1.0)(inputs)
    torch.testing.assert_close(here, there)
    assert not torch.allclose(here, inputs, rtol=0.01)
