"""The word LSTM: the paper's sizes, and what it is told of a sentence."""

import torch

from simulations.models.torch_model import trained
from simulations.models.word_lstm import WordLSTM


def test_it_has_the_parameters_of_the_paper():
    counts = {name: each.numel() for name, each in trained(WordLSTM()).items()}
    assert sum(counts.values()) == 13_352_875
    assert sum(count for name, count in counts.items() if name.startswith("lstm")) == 526_336


def test_a_word_is_predicted_from_those_before_it():
    """A change of one token changes what is known from there on, and nothing before."""
    torch.manual_seed(0)
    network = WordLSTM(20, 8)
    inputs = torch.tensor([[0, 5, 6, 7, 8]])
    other = inputs.clone()
    other[0, 3] = 9
    with torch.no_grad():
        first, second = network.hidden(inputs), network.hidden(other)
    assert torch.equal(first[:, :3], second[:, :3])
    assert not torch.isclose(first[:, 3:], second[:, 3:]).any()
    assert network.scores(first[0]).shape == (5, 20)
