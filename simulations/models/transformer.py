"""A causal transformer of `transformers`, of which adapters or the head are trained."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from flwr_sdp import _validate
from simulations import extras

LAYERS, HEADS, WIDTH = 3, 4, 128
"""Sizes of an untrained model."""

TRAINED_PARTS = ("adapters", "head", "all")

_NEEDED_BY = "the task 'lm' needs"

HUB = "hub:"
"""How a model of the hub is named, in place of a folder."""


class Transformer(nn.Module):
    """A language model that predicts each next token, see :class:`~.next_word.NextWord`.

    Sentences are padded on the right, where no earlier token looks.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model of `transformers`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``(n, length, width)``: what is known of each next token."""
        states: torch.Tensor = self.model.base_model(
            input_ids=inputs, use_cache=False
        ).last_hidden_state
        return states

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a score for each token, from rows of what is known."""
        scores: torch.Tensor = self.model.get_output_embeddings()(hidden)
        return scores


def untrained(tokens: int, width: int | None, length: int) -> Transformer:
    """Return a small transformer of the Llama family, with weights from torch's generator.

    Parameters
    ----------
    tokens : int
        Size of the vocabulary.
    width : int or None
        Coordinates of a token's vector, a multiple of twice `HEADS`; None for `WIDTH`.
    length : int
        Most tokens of a sentence.

    Raises
    ------
    ValueError
        If the width cannot be dealt to the heads.
    ImportError
        If transformers is missing.
    """
    transformers = extras.load("transformers", _NEEDED_BY)
    width = WIDTH if width is None else width
    if width % (2 * HEADS):
        raise ValueError(f"model-width must be a multiple of {2 * HEADS}; got {width}")
    config = transformers.LlamaConfig(
        vocab_size=tokens,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Transformer(transformers.LlamaForCausalLM(config))


def pretrained(weights: Path, *, download: bool) -> Transformer:
    """Return the transformer in a folder, as ``save_pretrained`` wrote it, or from the hub.

    Parameters
    ----------
    weights : Path
        The folder, or ``hub:`` and the name of a model.
    download : bool
        Whether the hub may be asked. What was fetched once is not fetched again.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no model in the folder, or the hub may not be asked.
    ImportError
        If transformers is missing.
    """
    transformers = extras.load("transformers", _NEEDED_BY)
    if _is_of_the_hub(weights):
        if not download:
            raise ValueError(
                f"weights = {str(weights)!r} wants download = true: nothing else is fetched"
            )
    elif not (weights / "config.json").is_file():
        raise FileNotFoundError(
            f"{weights / 'config.json'} is missing: set weights to a folder that flwr-sdp pretrain "
            "or save_pretrained wrote (empty for an untrained model)"
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        _source(weights), local_files_only=not download, dtype=torch.float32
    )
    return Transformer(model)


def load_tokenizer(weights: Path) -> Any:
    """Return the tokenizer beside a model that `pretrained` returned.

    Raises
    ------
    ValueError
        If there is none.
    """
    transformers = extras.load("transformers", _NEEDED_BY)
    try:
        return transformers.AutoTokenizer.from_pretrained(
            _source(weights), local_files_only=not _is_of_the_hub(weights)
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{weights} must have a tokenizer or a vocabulary.txt: {error}") from error


def _is_of_the_hub(weights: Path) -> bool:
    return str(weights).startswith(HUB)


def _source(weights: Path) -> str:
    return str(weights).removeprefix(HUB)


def freeze_but(transformer: Transformer, part: str, rank: int) -> Transformer:
    """Freeze all of a transformer but a part; that part alone is trained and sent.

    Parameters
    ----------
    transformer : Transformer
        Is changed.
    part : str
        ``"adapters"``: matrices of low rank beside every linear map but the head (LoRA: Hu et al.,
        arXiv:2106.09685), which change nothing at first. ``"head"``: the map to the tokens, with
        weights of its own from then on. ``"all"``: everything.
    rank : int
        Of the adapters.

    Raises
    ------
    ImportError
        If peft is missing, which makes the adapters.
    """
    _validate.choice("trained-part", part, TRAINED_PARTS)
    if part == "all":
        return transformer
    if part == "adapters":
        peft = extras.load("peft", _NEEDED_BY)
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks by a name of before
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # it finds out by itself
            peft.inject_adapter_in_model(config, transformer.model)
        for name, weights in transformer.named_parameters():
            weights.requires_grad_("lora_" in name)
        return transformer
    transformer.requires_grad_(False)
    head = cast(nn.Linear, transformer.model.get_output_embeddings())
    # Tied to the vectors of the inputs, it would change them as well.
    head.weight = nn.Parameter(head.weight.detach().clone())
    head.requires_grad_(True)
    return transformer
