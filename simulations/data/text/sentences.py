"""Sentences as a language model takes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from simulations.data.drawing import Indices
from simulations.data.text.corpus import Corpus, starts
from simulations.data.text.vocabulary import Tokens

PADDING = -100
"""The target behind the end of a sentence, which torch's ``cross_entropy`` leaves out."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sentences:
    """Sentences of a corpus in the ids of a vocabulary.

    Attributes
    ----------
    corpus : Corpus
        The sentences.
    vocabulary : Tokens
        Has their words, or not.
    length : int
        Tokens of a sentence that count, its end among them; the rest is cut off.
    """

    corpus: Corpus
    vocabulary: Tokens
    length: int
    _ids: NDArray[np.int32] = field(init=False, repr=False)
    _starts: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.store(
            self,
            length=_validate.integer("sequence-length", self.length, minimum=1),
            _ids=self.vocabulary.encode(self.corpus),
            _starts=starts(self.corpus.sentence_ends),
        )

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.corpus)

    def examples(self, indices: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return inputs and targets of some sentences.

        Parameters
        ----------
        indices : ndarray
            ``(n,)``, which sentences.

        Returns
        -------
        inputs, targets : ndarray
            ``(n, k)`` int64, k the longest of these sentences with its end, at most `length`. Of a
            sentence ``w1 .. wj`` the inputs are ``beginning w1 .. wj`` and the targets
            ``w1 .. wj end``. What is shorter is filled up with the end and `PADDING`.

        Raises
        ------
        IndexError
            If there is no sentence of an index.
        """
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"there are sentences 0 to {len(self) - 1}; got {indices}")
        first = self._starts[indices]
        words = self.corpus.sentence_ends[indices] - first
        place = np.arange(min(self.length, int(words.max(initial=-1)) + 1))
        # Where a sentence is over something else is read, and not used.
        read = np.minimum(first[:, None] + place, len(self._ids) - 1)
        targets = self._ids[read].astype(np.int64)
        targets[place == words[:, None]] = self.vocabulary.end
        over = place > words[:, None]
        inputs = np.full_like(targets, self.vocabulary.beginning)
        inputs[:, 1:] = targets[:, :-1]
        inputs[over] = self.vocabulary.end
        targets[over] = PADDING
        return inputs, targets
