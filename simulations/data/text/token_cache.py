"""Tokenized corpora, kept on disk: every worker of a run needs them, and tokenizing takes long."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from flwr_sdp._files import write_whole
from simulations.data import files
from simulations.data.text.corpus import Corpus

_FORMAT = 1
"""To be raised when the same text would become other tokens, or is written in another way."""

_ARRAYS = ("tokens", "sentence_ends", "user_ends")

_log = logging.getLogger("flwr")


def cached(name: str, identity: Mapping[str, Any], build: Callable[[], Corpus]) -> Corpus:
    """Return a corpus from the cache, or build it and keep it there.

    Of several processes one builds, and the others wait for it. Where nothing can be kept, the
    corpus is built all the same, with a warning. A file that is broken, or of other text, is not
    used but built anew. The cache may be removed at any time.

    Parameters
    ----------
    name : str
        The corpus's.
    identity : mapping
        What the tokens depend on: versions, and the files of the text. JSON can hold it.
    build : callable
        Makes the corpus.
    """
    key = json.dumps({"format": _FORMAT, "name": name, **identity}, sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = (files.FETCHED / "tokens").expanduser() / f"{name}-{digest}.npz"
    corpus = _read(path, name, key)
    if corpus is not None:
        return corpus
    try:
        held = _lock(path)
    except OSError as error:
        _log.warning("tokens are not kept, they have to be found again each time: %s", error)
        return build()
    with held:
        # Another process may have built it meanwhile.
        corpus = _read(path, name, key)
        if corpus is None:
            corpus = build()
            _write(path, corpus, key)
    return corpus


def file_identity(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and time of files: what changes when they do."""
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _lock(path: Path) -> AbstractContextManager[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_suffix(".lock")).acquire()


def _read(path: Path, name: str, key: str) -> Corpus | None:
    if not path.is_file():
        return None
    try:
        # Opened here: NumPy does not close what it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if _unpacked(stored["key"]) != key:
                raise ValueError("it is of other text")
            return Corpus(
                name=name,
                users=tuple(_unpacked(stored["users"])),
                words=tuple(_unpacked(stored["words"])),
                **{array: stored[array] for array in _ARRAYS},
            )
    except Exception as error:  # a broken file can raise anything
        _log.warning("%s is not used, its tokens are found again: %s", path, error)
        return None


def _write(path: Path, corpus: Corpus, key: str) -> None:
    arrays = {
        "key": _packed(key),
        "users": _packed(corpus.users),
        "words": _packed(corpus.words),
        **{array: getattr(corpus, array) for array in _ARRAYS},
    }
    try:
        write_whole(path, lambda file: np.savez(file, **arrays))
    except OSError as error:
        _log.warning("tokens could not be kept: %s", error)


def _packed(value: object) -> NDArray[np.uint8]:
    """Return texts as the bytes of their JSON: arrays of texts are as wide as the longest."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _unpacked(data: NDArray[np.uint8]) -> Any:
    return json.loads(data.tobytes())
