"""A vocabulary: the words a language model knows, from public text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._files import write_whole
from simulations.data.text.corpus import Corpus

BEGINNING, END, UNKNOWN = 0, 1, 2
"""Ids of the special tokens: before a sentence, behind it, and for all other words."""

SPECIAL = ("<s>", "</s>", "<unk>")
"""How the special tokens are written, by id. The tokenizer takes such a word apart."""


FILE = "vocabulary.txt"
"""What a vocabulary is called beside the weights of its model."""


class Tokens(Protocol):
    """What the words of a corpus are for a model."""

    @property
    def beginning(self) -> int:
        """The id of the token before a sentence."""
        ...

    @property
    def end(self) -> int:
        """The id of the token behind it."""
        ...

    @property
    def unknown(self) -> int | None:
        """The id of the token for all words that are not known, if there is one."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens, special ones included."""
        ...

    def encode(self, corpus: Corpus) -> NDArray[np.int32]:
        """Return the id of each of the corpus's tokens."""
        ...

    def save_in(self, folder: Path) -> None:
        """Write what says which id is which token."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id: the special ones, then words.

    Attributes
    ----------
    tokens : tuple of str
        `SPECIAL` and words, all different.

    Raises
    ------
    ValueError
        If the tokens are anything else.

    Notes
    -----
    **Privacy.** The vocabulary must come from *public* text, never from the users'. It is sent to
    everyone, and a word that only one user writes would give that user away, without any noise. The
    paper's is of Wikipedia.
    """

    tokens: tuple[str, ...]

    beginning: ClassVar[int] = BEGINNING
    end: ClassVar[int] = END
    unknown: ClassVar[int] = UNKNOWN

    def __post_init__(self) -> None:
        if self.tokens[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"tokens must begin with {', '.join(SPECIAL)}; got others")
        for number, token in enumerate(self.tokens, 1):
            if not token or token.split() != [token]:
                raise ValueError(f"tokens must be words without spaces; number {number} is none")
        if len(set(self.tokens)) < len(self.tokens):
            (_, count), *_ = Counter(self.tokens).most_common(1)
            raise ValueError(f"tokens must be different; got one of them {count} times")

    @classmethod
    def from_corpus(cls, corpus: Corpus, size: int) -> Vocabulary:
        """Return the most frequent words of a public corpus, of equals those first in the alphabet.

        Parameters
        ----------
        corpus : Corpus
            Public text.
        size : int
            Words; the special tokens come to them: the paper's 25,003 tokens are 25,000 words.

        Raises
        ------
        ValueError
            If the corpus has fewer words.
        """
        counts = corpus.word_counts()
        used = [index for index in np.flatnonzero(counts) if corpus.words[index] not in SPECIAL]
        _validate.integer("vocabulary-size", size, minimum=1, maximum=len(used))
        used.sort(key=lambda index: (-counts[index], corpus.words[index]))
        return cls((*SPECIAL, *(corpus.words[index] for index in used[:size])))

    def __len__(self) -> int:
        """Return the number of tokens, special ones included."""
        return len(self.tokens)

    def encode(self, corpus: Corpus) -> NDArray[np.int32]:
        """Return the id of each of the corpus's tokens."""
        words = self.tokens[len(SPECIAL) :]
        ids = {word: index for index, word in enumerate(words, len(SPECIAL))}
        # Looked up once for each different word.
        table = [ids.get(word, UNKNOWN) for word in corpus.words]
        return np.array(table, np.int32)[corpus.tokens]

    def save(self, path: Path) -> None:
        """Write a text file (UTF-8) with a token a line, by id."""
        text = "".join(f"{token}\n" for token in self.tokens)
        write_whole(path, lambda file: file.write(text.encode()))

    def save_in(self, folder: Path) -> None:
        """Write it under its usual name."""
        self.save(folder / FILE)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Return what was saved.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is not a vocabulary; the message names the file.
        """
        try:
            # By line feeds alone: a word may have a character that other readers take for one.
            *tokens, rest = path.read_bytes().decode().split("\n")
            if rest:
                raise ValueError("the last line does not end")
            return cls(tuple(tokens))
        except UnicodeDecodeError:  # it carries the whole file
            reason = "it is not UTF-8"
        except ValueError as error:
            reason = str(error)
        raise ValueError(f"{path} is not a vocabulary, a token a line: {reason}")
