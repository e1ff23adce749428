"""The loss and the scores of a model that predicts each next word."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import nn

from simulations.data.text.sentences import PADDING


class NextWord(Protocol):
    """A model in two parts, so that nothing is scored where a short sentence is padded."""

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """From tokens ``(n, length)`` to what is known of each next one, ``(n, length, width)``."""
        ...

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """From rows ``(k, width)`` to scores ``(k, tokens)``."""
        ...


def next_word_loss(network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the average cross-entropy of the next words, ends of sentences included.

    Parameters
    ----------
    network : Module
        A `NextWord`.
    inputs, targets : Tensor
        ``(n, length)``; a target of `PADDING` does not count.
    """
    scores, words = scored(network, inputs, targets)
    return nn.functional.cross_entropy(scores, words)


def scored(
    network: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores ``(k, tokens)`` and the words ``(k,)`` of all targets that count."""
    model = cast(NextWord, network)
    counts = targets != PADDING
    return model.scores(model.hidden(inputs)[counts]), targets[counts]
