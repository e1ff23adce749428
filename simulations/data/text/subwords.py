"""Text in the tokens of a pretrained model of `transformers`, which are parts of words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.data.text.corpus import Corpus, select


@dataclass(frozen=True, slots=True)
class Subwords:
    """The tokens of a model's own tokenizer, see :class:`~.vocabulary.Tokens`.

    Attributes
    ----------
    tokenizer : PreTrainedTokenizerBase
        Has a token for the end of a text; the same one begins a sentence if there is no other.

    Raises
    ------
    ValueError
        If it has none.
    """

    tokenizer: Any

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer of the weights must have a token for the end of a text")

    def __len__(self) -> int:
        """Return the number of tokens, special ones included."""
        return len(self.tokenizer)

    @property
    def beginning(self) -> int:
        """The id of the token before a sentence."""
        first = self.tokenizer.bos_token_id
        return self.end if first is None else int(first)

    @property
    def end(self) -> int:
        """The id of the token behind a sentence."""
        return int(self.tokenizer.eos_token_id)

    @property
    def unknown(self) -> int | None:
        """The id of the token for what the tokenizer cannot write; many have none."""
        found = self.tokenizer.unk_token_id
        return None if found is None or int(found) == self.end else int(found)

    def split(self, corpus: Corpus) -> Corpus:
        """Return a corpus with parts of words in place of words.

        Each word is taken apart by itself, with a space before it: NLTK has put punctuation apart
        already, and the corpus does not say whether there was a space.
        """
        parts = [
            self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
            for word in corpus.words
        ]
        # Every part is named by its id: different ids can look the same.
        lengths = np.array([len(each) for each in parts])
        if not lengths.all():
            raise ValueError("the tokenizer of the weights makes nothing of one of the words")
        ids = np.array([part for each in parts for part in each], np.int32)
        words, indices = np.unique(ids, return_inverse=True)
        places, _ = select(np.cumsum(lengths), corpus.tokens)
        ends = np.cumsum(lengths[corpus.tokens])
        return replace(
            corpus,
            words=tuple(map(str, words)),
            tokens=indices[places].astype(np.int32),
            sentence_ends=ends[corpus.sentence_ends - 1].astype(np.int64),
        )

    def encode(self, corpus: Corpus) -> NDArray[np.int32]:
        """Return the id of each token of a corpus that `split` returned."""
        return np.array([int(word) for word in corpus.words], np.int32)[corpus.tokens]

    def save_in(self, folder: Path) -> None:
        """Write the tokenizer's own files into a folder ``tokenizer``."""
        self.tokenizer.save_pretrained(str(folder / "tokenizer"))
