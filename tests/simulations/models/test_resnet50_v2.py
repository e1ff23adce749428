"""ResNet-50 v2: the sizes of the paper, the layout of its reference, and what a refit leaves."""

import pytest
import torch
from torch.nn import functional

from simulations.models.resnet50_v2 import BRANCH, SHORTCUT, ResNet50V2, Top, Trunk
from simulations.models.torch_model import dump, seeded
from tests.messages import flat


@pytest.fixture(scope="module")
def network():
    """Return a network whose normalisation does something, in evaluation mode."""
    network = seeded(lambda: ResNet50V2(7), 0).eval()
    generator = torch.Generator().manual_seed(1)
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            for tensor, middle in (
                (layer.weight, 1.5),
                (layer.bias, 0.0),
                (layer.running_mean, 0.0),
                (layer.running_var, 0.5),
            ):
                with torch.no_grad():
                    tensor.copy_(middle + 0.2 * torch.rand(tensor.shape, generator=generator))
    return network


def images(count=2, side=64):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(2)) * 2 - 1


def features(count=6, side=1):
    shape = (count, BRANCH + SHORTCUT, side, side)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


# ------------------------------------------------------------------ sizes and layout
def test_size_with_the_classes_of_imagenet_is_the_published_one():
    network = ResNet50V2(1000)
    statistics = [b for name, b in network.named_buffers() if name.rpartition("running_")[1]]
    assert sum(weights.numel() for weights in network.parameters()) == 25_568_360
    assert sum(each.numel() for each in statistics) == 45_440


def test_size_of_what_is_refitted_is_the_papers():
    assert flat(dump(Top(100).fix_norm())).size == 1_255_524


@pytest.mark.parametrize(("side", "places"), [(32, 1), (64, 2), (224, 7)])
def test_features_are_at_every_32nd_place(side, places):
    assert Trunk().eval()(images(1, side)).shape == (1, BRANCH + SHORTCUT, places, places)


def test_scores_are_those_of_the_published_layout(network):
    """Written down without a module: tensors of the state, one after the other."""
    state = iter(
        [
            (name, tensor)
            for name, tensor in network.state_dict().items()
            if not name.endswith("num_batches_tracked")
        ]
    )

    def taken(count):
        return [next(state)[1] for _ in range(count)]

    def active(inputs):
        weight, bias, mean, variance = taken(4)
        scale = weight / (variance + 1.001e-5).sqrt()
        shape = (1, -1, 1, 1)
        return (inputs * scale.reshape(shape) + (bias - mean * scale).reshape(shape)).relu()

    weight, bias = taken(2)
    found = functional.conv2d(images(), weight, bias, stride=2, padding=3)
    found = functional.max_pool2d(functional.pad(found, (1, 1, 1, 1)), 3, stride=2)
    for blocks, stride in ((3, 2), (4, 2), (6, 2), (3, 1)):
        for place in range(blocks):
            step = stride if place == blocks - 1 else 1
            before = active(found)
            branch = functional.conv2d(before, *taken(1))
            branch = functional.conv2d(active(branch), *taken(1), stride=step, padding=1)
            branch = active(branch)
            shortcut = found[:, :, ::step, ::step]
            if place == 0:
                weight, bias = taken(2)
                shortcut = functional.conv2d(before, weight, bias)
            weight, bias = taken(2)
            found = shortcut + functional.conv2d(branch, weight, bias)
    found = active(found).mean(dim=(2, 3))
    weight, bias = taken(2)
    with torch.no_grad():
        torch.testing.assert_close(network(images()), found @ weight.T + bias)
    assert not list(state)


def test_every_weight_is_reached_by_the_gradient():
    network = seeded(lambda: ResNet50V2(5), 0)
    network(images(4, 32)).square().sum().backward()
    assert all(float(weights.grad.norm()) > 0 for weights in network.parameters())


# ------------------------------------------------------------------ what a refit leaves
def trained_a_step(top):
    parameters = [weights for weights in top.parameters() if weights.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    top.train()
    functional.cross_entropy(top(features()), torch.arange(6) % 3).backward()
    optimizer.step()
    return {name: tensor.clone() for name, tensor in top.state_dict().items()}


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_fixed_norm_is_never_touched(is_fixed):
    """Neither its weights nor its statistics; and a norm that is not fixed shows that it could."""
    top = seeded(lambda: Top(3), 0)
    if is_fixed:
        top.fix_norm()
    before = {name: tensor.clone() for name, tensor in top.state_dict().items()}
    after = trained_a_step(top)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {
        f"{layer}.{kind}" for layer in ("convolution", "scores") for kind in ("weight", "bias")
    }
    norm = {name for name in before if name.startswith("norm.")}
    assert len(norm) == 5
    assert changed == (trained if is_fixed else trained | norm)


def test_a_fixed_norm_does_the_same_in_training():
    top = seeded(lambda: Top(3), 0).fix_norm()
    with torch.no_grad():
        assert torch.equal(top.train()(features()), top.eval()(features()))
        free = seeded(lambda: Top(3), 0)
        assert not torch.allclose(free.train()(features()), free.eval()(features()))


def test_norm_is_no_part_of_what_is_sent():
    assert set(dump(Top(3).fix_norm())) == {
        "convolution.weight",
        "convolution.bias",
        "scores.weight",
        "scores.bias",
    }
