"""Transformers: which part is trained, and models in the true format of `transformers`."""

from pathlib import Path

import pytest
import torch

from simulations.models.torch_model import dump, seeded, trained
from simulations.models.transformer import freeze_but, pretrained, untrained

pytest.importorskip("transformers", reason="needs flwr-sdp[tasks]")
pytest.importorskip("peft", reason="needs flwr-sdp[tasks]")

TOKENS, WIDTH = 50, 16


def model(seed=0):
    return seeded(lambda: untrained(TOKENS, WIDTH, 12), seed)


def known(network, inputs):
    with torch.no_grad():
        return network.scores(network.hidden(inputs))


INPUTS = torch.tensor([[0, 5, 6, 7, 8], [0, 9, 9, 9, 9]])


def test_adapters_change_nothing_at_first_and_alone_are_sent():
    """Rank 4 beside each linear map of a block: 4 x (in + out) weights."""
    plain, adapted = model(), seeded(lambda: freeze_but(model(), "adapters", 4), 1)
    torch.testing.assert_close(known(adapted, INPUTS), known(plain, INPUTS))
    sizes = [(16, 16)] * 4 + [(16, 64)] * 2 + [(64, 16)]  # attention, then the feed-forward layer
    assert sum(each.numel() for each in trained(adapted).values()) == 3 * 4 * sum(map(sum, sizes))
    assert all("lora_" in name for name in dump(adapted))


def test_the_head_gets_weights_of_its_own():
    """It was tied to the vectors of the inputs, which stay frozen."""
    network = freeze_but(model(), "head", 4)
    assert {name: tuple(each.shape) for name, each in trained(network).items()} == {
        "model.lm_head.weight": (TOKENS, WIDTH)
    }
    torch.testing.assert_close(known(network, INPUTS), known(model(), INPUTS))
    before = network.hidden(INPUTS).detach()
    with torch.no_grad():
        network.model.lm_head.weight.add_(1.0)
    torch.testing.assert_close(network.hidden(INPUTS).detach(), before)


def test_all_is_all():
    network = freeze_but(model(), "all", 4)
    assert sum(each.numel() for each in trained(network).values()) == sum(
        each.numel() for each in model().parameters()
    )
    with pytest.raises(ValueError, match=r"trained-part must be one of .*; got 'body'"):
        freeze_but(model(), "body", 4)


def test_a_word_is_predicted_from_those_before_it():
    network = model()
    other = INPUTS.clone()
    other[0, 3] = 11
    first, second = known(network, INPUTS), known(network, other)
    torch.testing.assert_close(first[0, :3], second[0, :3])
    assert not torch.isclose(first[0, 3:], second[0, 3:]).all()


@pytest.mark.parametrize("width", [4, 12, 20])
def test_a_width_that_cannot_be_dealt_to_the_heads_is_refused(width):
    with pytest.raises(ValueError, match=f"model-width must be a multiple of 8; got {width}"):
        untrained(TOKENS, width, 12)


# ------------------------------------------------------------------ from a folder
def test_what_save_pretrained_wrote_is_read(tmp_path):
    network = model(3)
    network.model.save_pretrained(tmp_path)
    read = pretrained(tmp_path, download=False)
    torch.testing.assert_close(known(read, INPUTS), known(network, INPUTS))


def test_a_model_of_another_family_has_adapters_too(tmp_path):
    """GPT-2 keeps its linear maps in a class of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=TOKENS, n_embd=16, n_layer=2, n_head=2, n_positions=12,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    network = freeze_but(pretrained(tmp_path, download=False), "adapters", 4)
    sizes = [(16, 48), (16, 16), (16, 64), (64, 16)]
    assert sum(each.numel() for each in trained(network).values()) == 2 * 4 * sum(map(sum, sizes))


def test_an_empty_folder_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json is missing: set weights to"):
        pretrained(tmp_path, download=False)


def test_the_hub_is_asked_only_when_the_run_says_so(tmp_path):
    with pytest.raises(ValueError, match="'hub:some/model' wants download = true"):
        pretrained(Path("hub:some/model"), download=False)
