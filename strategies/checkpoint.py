"""Checkpoints of a private training run: the model and its ledger, or nothing."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._files import write_whole
from flwr_sdp.strategies.folder_lock import LOCK, FolderLock, release_idle
from flwr_sdp.strategies.ledger import Ledger
from flwr_sdp.strategies.optimizer_state import decode, encode

SCHEMA_VERSION = 3
# Checkpoints of version 2 do not have the configs: those that a resumed run is given are taken.
_READABLE = (2, SCHEMA_VERSION)

_LEDGER = "ledger.json"
_MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and what to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Where a run stands after a round.

    Attributes
    ----------
    server_round : int
        The round; 0 before the first.
    model : ArrayRecord
        The model after it.
    optimizer : dict
        State of the inner strategy.
    facts : dict
        What the report needs to know of the rounds so far, plain data.
    ledger : Ledger
        What had been charged by then.
    surroundings : dict
        Configs and generators as they stand: see :mod:`flwr_sdp.strategies.surroundings`.
    is_evaluated : bool
        Whether its evaluation has been collected.
    """

    server_round: int
    model: ArrayRecord
    optimizer: dict[str, Any]
    facts: dict[str, Any]
    ledger: Ledger
    surroundings: dict[str, Any] = field(default_factory=dict)
    is_evaluated: bool = True


class Checkpoints:
    """A folder with the last checkpoints of one run, and with its ledger.

    Each checkpoint is one file, written whole or not at all: a process that is killed at any moment
    loses the round it was in, and nothing else. The ledger is a file of its own,
    because a charge has to be on disk before its round begins, and a checkpoint is written when the
    round has ended. Neither holds code: arrays in NumPy's format, the rest in JSON.

    One run at a time has the folder: it is locked from the start of a run to its end, and a run
    whose ledger somebody else has changed stops before it asks anyone or releases anything.

    Parameters
    ----------
    directory : path-like
        The folder, for one run alone; it is made if need be. A copy of it is a second ledger: a
        run that is resumed from two copies is charged in each of them for its own rounds only.
    keep : int
        How many checkpoints to keep.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        self.directory = Path(directory)
        self.keep = _validate.integer("keep", keep, minimum=1)

    # ------------------------------------------------------------------ write
    def lock(self) -> FolderLock:
        """Keep every other run off the folder.

        A lock of this process that belongs to no run under way is taken over: the strategy that
        had it is stopped by the ledger, should it go on.

        Raises
        ------
        CheckpointError
            If another one is at work there, or the lock's file cannot be opened.
        """
        release_idle(self.directory)
        try:
            lock = FolderLock(self.directory)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{self.directory} is in use by {error}, whose run is not over: let it end or end "
                "it, and then go on with strategy.resume"
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"{self.directory / LOCK} cannot be opened ({error.strerror}): remove it, which is "
                "safe if no run is alive, and make the folder writable"
            ) from error
        if lock.is_exclusive:
            for leftover in self.directory.glob(".*.part"):
                leftover.unlink(missing_ok=True)
        return lock

    def require_unused(self) -> None:
        """Raise :class:`CheckpointError` if the folder holds a run that has asked anyone."""
        ledger = self._read_ledger()
        if ledger is None and self._files():
            raise CheckpointError(f"{self.directory} holds models without a ledger: choose another")
        if ledger is not None and ledger.rounds_asked > 0:
            raise CheckpointError(
                f"{self.directory} holds a run of {ledger.completed_round} rounds: go on with "
                "strategy.resume, or choose another directory"
            )

    def begin(self, snapshot: Snapshot) -> bytes:
        """Start the record of a new run, nothing asked or charged; return the ledger's file."""
        there = self.ledger_file()
        self.require_unused()
        written = self.write_ledger(snapshot.ledger, there)
        self.save(snapshot, written)
        return written

    def ledger_file(self) -> bytes | None:
        """Return what is in the ledger's file, if there is one."""
        try:
            return (self.directory / _LEDGER).read_bytes()
        except FileNotFoundError:
            return None

    def require_ledger(self, expected: bytes | None) -> None:
        """Raise :class:`CheckpointError` if the ledger's file is not what this run left there."""
        if self.ledger_file() != expected:
            raise CheckpointError(
                f"{self.directory / _LEDGER} is not as this run left it: another process has gone "
                "on with the run, or the file was changed or removed. Nothing is written over it; "
                "go on with strategy.resume, in one process"
            )

    def write_ledger(self, ledger: Ledger, expected: bytes | None) -> bytes:
        """Write the ledger over the `expected` one, and return what is in its file.

        When this returns, it outlives the process and the machine.
        """
        self.require_ledger(expected)
        # No two writes are alike, or one might be taken for another process's.
        data = {"schema": SCHEMA_VERSION, "write": secrets.token_hex(8), **ledger.to_dict()}
        written = json.dumps(data, indent=1).encode()
        write_whole(self.directory / _LEDGER, lambda file: file.write(written))
        return written

    def save(self, snapshot: Snapshot, expected: bytes | None) -> None:
        """Write a checkpoint beside the `expected` ledger, and forget the oldest beyond `keep`."""
        self.require_ledger(expected)
        path = self.directory / f"round-{snapshot.server_round:08d}.ckpt"
        write_whole(path, lambda file: _write_snapshot(file, snapshot))
        for old in self._files()[: -self.keep]:
            old.unlink(missing_ok=True)

    # ------------------------------------------------------------------ read
    def load(self) -> tuple[Ledger, Snapshot]:
        """Return the ledger and the last checkpoint.

        Raises
        ------
        CheckpointError
            If there is no run, no ledger, a damaged file, or a ledger that is older than the model.
        """
        files, ledger = self._files(), self._read_ledger()
        if not files:
            raise CheckpointError(f"{self.directory} holds no checkpoint: nothing to resume")
        path = files[-1]
        if ledger is None:
            raise CheckpointError(
                f"{self.directory} has {path.name} but no {_LEDGER}: a model whose charges are not "
                "known cannot be trained any further"
            )
        try:
            with zipfile.ZipFile(path) as archive:
                snapshot = _read_snapshot(archive)
        except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}): move it away to go back to the one before; the "
                "rounds after that are charged again"
            ) from error
        behind = (
            ledger.num_charges < snapshot.ledger.num_charges
            or ledger.rounds_asked < snapshot.ledger.rounds_asked
            or ledger.settings != snapshot.ledger.settings
        )
        if behind:
            raise CheckpointError(
                f"{_LEDGER} in {self.directory} is not that of {path.name}: it has "
                f"{ledger.num_charges} charges, the model {snapshot.ledger.num_charges}"
            )
        return ledger, snapshot

    def _read_ledger(self) -> Ledger | None:
        path = self.directory / _LEDGER
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_bytes())
            _check_schema(data)
            return Ledger.from_dict(data)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error})") from error

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("round-*.ckpt"))


# ------------------------------------------------------------------ one file
def _write_snapshot(file: IO[bytes], snapshot: Snapshot) -> None:
    """Write an archive of a manifest in JSON and the data it refers to.

    The archive's checksums tell a damaged file from a whole one.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        count = 0

        def store(data: NDArray[Any] | bytes) -> str:
            nonlocal count
            name = f"data/{count}"
            count += 1
            with archive.open(name, "w", force_zip64=True) as entry:
                if isinstance(data, bytes):
                    entry.write(data)
                else:
                    np.lib.format.write_array(entry, data, allow_pickle=False)
            return name

        manifest = {
            "schema": SCHEMA_VERSION,
            "round": snapshot.server_round,
            "ledger": snapshot.ledger.to_dict(),
            "facts": encode(snapshot.facts, store),
            "model": encode(snapshot.model, store),
            "optimizer": encode(snapshot.optimizer, store),
            "surroundings": encode(snapshot.surroundings, store),
            "is_evaluated": snapshot.is_evaluated,
        }
        archive.writestr(_MANIFEST, json.dumps(manifest, allow_nan=False))


def _read_snapshot(archive: zipfile.ZipFile) -> Snapshot:
    manifest = json.loads(archive.read(_MANIFEST))
    _check_schema(manifest)
    if "ledger" not in manifest:
        raise ValueError("it has no ledger")

    def load(name: str) -> NDArray[Any]:
        with archive.open(name) as entry:
            array: NDArray[Any] = np.lib.format.read_array(entry, allow_pickle=False)
            return array

    facts = manifest["facts"]
    if facts.keys() == {"dict"}:  # once they were JSON themselves
        facts = decode(facts, archive.read, load)
    return Snapshot(
        server_round=int(manifest["round"]),
        model=decode(manifest["model"], archive.read, load),
        optimizer=decode(manifest["optimizer"], archive.read, load),
        facts=facts,
        ledger=Ledger.from_dict(manifest["ledger"]),
        surroundings=decode(manifest.get("surroundings", {"dict": []}), archive.read, load),
        is_evaluated=manifest.get("is_evaluated", True),
    )


def _check_schema(data: dict[str, Any]) -> None:
    if data.get("schema") not in _READABLE:
        raise ValueError(f"schema must be one of {_READABLE}; got {data.get('schema')!r}")
