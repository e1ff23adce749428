"""A corpus: what users wrote, by sentences of words."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from simulations.data.drawing import Indices
from simulations.data.text.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """Sentences of users.

    Everything is in three flat arrays, so that millions of sentences are no millions of objects.

    Attributes
    ----------
    name : str
        What figures call the data.
    users : tuple of str
        Who wrote something, each once.
    words : tuple of str
        Different words; those of `tokens`, and maybe others.
    tokens : ndarray
        ``(t,)`` int32, indices into `words`: all sentences, one behind the other.
    sentence_ends : ndarray
        ``(n,)`` int64: where in `tokens` each sentence ends. None is empty.
    user_ends : ndarray
        ``(users,)`` int64: where in the list of sentences those of each user end. All have some.

    Raises
    ------
    ValueError
        If the parts do not fit together.
    """

    name: str
    users: tuple[str, ...]
    words: tuple[str, ...]
    tokens: NDArray[np.int32]
    sentence_ends: NDArray[np.int64]
    user_ends: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check_names("users", self.users)
        _check_names("words", self.words)
        _check_array("tokens", self.tokens, np.int32)
        if self.tokens.size and not 0 <= self.tokens.min() <= self.tokens.max() < len(self.words):
            raise ValueError(f"tokens must be indices of {len(self.words)} words")
        _check_ends("sentence_ends", self.sentence_ends, len(self.tokens), "tokens")
        _check_ends("user_ends", self.user_ends, len(self.sentence_ends), "sentences")
        if len(self.user_ends) != len(self.users):
            raise ValueError(
                f"user_ends must have an entry for each of {len(self.users)} users; "
                f"got {len(self.user_ends)}"
            )

    @classmethod
    def from_texts(
        cls, name: str, texts: Iterable[tuple[str, Iterable[str]]], tokenizer: Tokenizer
    ) -> Corpus:
        """Return the corpus of texts that come user by user, and are not kept.

        Parameters
        ----------
        name : str
            What figures call the data.
        texts : iterable
            Each user once, with all texts. Users without a word are left out.
        tokenizer : callable
            From a text to sentences of words.

        Raises
        ------
        ValueError
            If there is not a word.
        """
        index: dict[str, int] = {}
        users: list[str] = []
        tokens, sentence_ends, user_ends = array("i"), array("q"), array("q")
        for user, parts in texts:
            before = len(sentence_ends)
            for part in parts:
                for sentence in tokenizer(part):
                    tokens.extend([index.setdefault(word, len(index)) for word in sentence])
                    sentence_ends.append(len(tokens))
            if len(sentence_ends) > before:
                users.append(user)
                user_ends.append(len(sentence_ends))
        if not users:
            raise ValueError(f"there is no text in data = {name!r}: not one user has a word")
        return cls(
            name=name,
            users=tuple(users),
            words=tuple(index),
            tokens=np.array(tokens, np.int32),
            sentence_ends=np.array(sentence_ends, np.int64),
            user_ends=np.array(user_ends, np.int64),
        )

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.sentence_ends)

    def sentences(self, user: int) -> Indices:
        """Return the indices of the sentences of ``users[user]``."""
        user = _validate.integer("user", user, minimum=0, maximum=len(self.users) - 1)
        return np.arange(self.user_ends[user - 1] if user else 0, self.user_ends[user])

    def word_counts(self) -> NDArray[np.int64]:
        """Return how often each of `words` is used."""
        return np.bincount(self.tokens, minlength=len(self.words)).astype(np.int64)

    def of_users(self, users: Indices) -> Corpus:
        """Return what some users wrote, given by different indices, in that order.

        Raises
        ------
        ValueError
            If there is no user of an index, or an index comes twice.
        """
        wrong = users[(users < 0) | (users >= len(self.users))]
        if wrong.size:
            raise ValueError(
                f"users must be indices >= 0 and <= {len(self.users) - 1}; got {wrong[0]}"
            )
        sentences, user_ends = select(self.user_ends, users)
        places, sentence_ends = select(self.sentence_ends, sentences)
        return replace(
            self,
            users=tuple(self.users[user] for user in users),
            tokens=self.tokens[places],
            sentence_ends=sentence_ends,
            user_ends=user_ends,
        )


def starts(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where pieces start that lie one behind the other."""
    return np.concatenate([np.zeros(1, np.int64), ends[:-1]])


def select(
    ends: NDArray[np.int64], pieces: NDArray[np.integer[Any]]
) -> tuple[Indices, NDArray[np.int64]]:
    """Return what lies in some pieces, and where these end when they lie behind each other."""
    first = starts(ends)[pieces]
    lengths = ends[pieces] - first
    new_ends = np.cumsum(lengths)
    inside = np.repeat(first - starts(new_ends), lengths) + np.arange(lengths.sum())
    return inside, new_ends


def _check_names(field: str, names: tuple[str, ...]) -> None:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{field} must be texts, at least one, none empty")
    if len(set(names)) != len(names):
        raise ValueError(
            f"{field} must be different; {len(names) - len(set(names))} of {len(names)} come again"
        )


def _check_array(field: str, values: NDArray[np.generic], dtype: type[np.generic]) -> None:
    if values.ndim != 1 or values.dtype != dtype:
        raise ValueError(
            f"{field} must be a row of {dtype.__name__}; got shape {values.shape} of {values.dtype}"
        )


def _check_ends(field: str, ends: NDArray[np.int64], last: int, of: str) -> None:
    _check_array(field, ends, np.int64)
    if not len(ends) or ends[0] < 1 or (np.diff(ends) < 1).any() or ends[-1] != last:
        raise ValueError(f"{field} must rise from 1 or more to {last}, the number of {of}")
