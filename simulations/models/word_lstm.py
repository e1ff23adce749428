"""The word-level LSTM, d = 13,352,875 at its full size."""

from __future__ import annotations

import torch
from torch import nn

TOKENS = 25_003
"""25,000 words and three special tokens."""

WIDTH = 256


class WordLSTM(nn.Module):
    """Predict each next word of a sentence.

    The model of Bhowmick et al., arXiv:1812.00984v2, section "Pretrained models": word vectors, one
    layer of LSTM cells with as many units, and a linear map back to the tokens, whose weights are
    its own. The paper's 526,336 parameters of the LSTM are those with two bias vectors.

    Parameters
    ----------
    tokens : int
        Size of the vocabulary.
    width : int
        Coordinates of a word vector, and units of the LSTM.
    """

    def __init__(self, tokens: int = TOKENS, width: int = WIDTH) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, tokens)

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``(n, length, width)``: what is known of each next word."""
        states: torch.Tensor = self.lstm(self.embedding(inputs))[0]
        return states

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a score for each token, from rows of what is known."""
        scores: torch.Tensor = self.decoder(hidden)
        return scores
