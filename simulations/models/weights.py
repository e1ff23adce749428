"""Pretrained weights in a folder: ``weights.pt``, and ``facts.json`` about them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flwr_sdp._files import write_whole
from simulations.tasks.task import ModelSettings

WEIGHTS, FACTS = "weights.pt", "facts.json"


def save_weights(state: Mapping[str, torch.Tensor], folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the state of a network, and what is to be known about it.

    Parameters
    ----------
    state : mapping of str to Tensor
        As of ``Module.state_dict``.
    folder : Path
        Is made if it is not there.
    facts : mapping
        What JSON can hold: sizes of the network, data it has seen, how good it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu() for name, tensor in state.items()}
    write_whole(folder / WEIGHTS, lambda file: torch.save(tensors, file))
    text = json.dumps(facts, indent=2) + "\n"
    write_whole(folder / FACTS, lambda file: file.write(text.encode()))


def load_weights(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return what `save_weights` wrote. Nothing that a file holds is executed.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing, or not what it should be; the message names it, and says what to do.
    """
    for name in (WEIGHTS, FACTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} is missing: set weights to a folder that flwr-sdp pretrain wrote "
                "(empty for an untrained model)"
            )
    try:
        state = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (ValueError, RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"the weights in {folder} cannot be read: {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(facts, dict) or not _is_state(state):
        raise ValueError(f"{folder} must hold named tensors and facts about them; it does not")
    return state, facts


def fill(network: nn.Module, state: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Give a network the weights that were read from `folder`.

    Raises
    ------
    ValueError
        If they are those of another network; the message names an array.
    """
    mine = network.state_dict()
    for name in sorted(mine.keys() ^ state.keys()):
        of = "only the network" if name in mine else "only the file"
        raise ValueError(f"the weights in {folder} are not of this network: {of} has {name!r}")
    for name, tensor in mine.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"the weights in {folder} are not of this network: {name!r} has the shape "
                f"{tuple(state[name].shape)} there, and must have {tuple(tensor.shape)}"
            )
    network.load_state_dict(dict(state))


def refuse_sizes(model: ModelSettings) -> None:
    """Raise ``ValueError`` if a run with weights names sizes as well, which the weights say."""
    for key, size in (("model-width", model.width), ("vocabulary-size", model.vocabulary_size)):
        if size is not None:
            raise ValueError(f"{key} must be 0 with weights, which say it; got {size}")


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    )
