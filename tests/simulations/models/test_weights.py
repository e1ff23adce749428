"""Weights in a folder: written and read, and whatever else lies there is named."""

import pickle

import pytest
import torch
from torch import nn

from simulations.models.weights import fill, load_weights, save_weights


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_what_is_written_is_read(tmp_path):
    first, second = network(), network()
    first[1].running_mean.fill_(3.0)
    save_weights(first.state_dict(), tmp_path / "new" / "folder", {"words": 7})
    state, facts = load_weights(tmp_path / "new" / "folder")
    fill(second, state, tmp_path)
    assert facts == {"words": 7}
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])


def test_a_missing_folder_says_how_it_is_made(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights.pt is missing: .*flwr-sdp pretrain"):
        load_weights(tmp_path)


@pytest.mark.parametrize("damage", ["weights.pt", "facts.json"])
def test_a_damaged_file_is_named(tmp_path, damage):
    save_weights(network().state_dict(), tmp_path, {})
    (tmp_path / damage).write_bytes(b"\x00broken")
    with pytest.raises(ValueError, match=f"the weights in {tmp_path} cannot be read"):
        load_weights(tmp_path)


def test_a_file_cannot_run_code(tmp_path):
    save_weights(network().state_dict(), tmp_path, {})

    class Attack:
        def __reduce__(self):
            return (tmp_path.joinpath("touched").touch, ())

    (tmp_path / "weights.pt").write_bytes(pickle.dumps(Attack(), protocol=2))
    with pytest.raises(ValueError, match="cannot be read"):
        load_weights(tmp_path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), r"'0.weight' has the shape \(5, 3\)"),
        (nn.Sequential(nn.Linear(3, 4)), "only the network has '1.bias'"),
        (nn.Sequential(network(), nn.Linear(2, 2)), "only the file has '0.0.bias'"),
    ],
)
def test_weights_of_another_network_name_an_array(tmp_path, other, message):
    with pytest.raises(ValueError, match=message):
        fill(network(), other.state_dict(), tmp_path)
