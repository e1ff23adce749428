"""Checkpoints of a private training run: the model and its ledger, or nothing."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._files import write_whole
from flwr_sdp.strategies.ledger import Ledger
from flwr_sdp.strategies.optimizer_state import decode, encode

SCHEMA_VERSION = 2

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
        What the report needs to know of the rounds so far, JSON-ready.
    ledger : Ledger
        What had been charged by then.
    """

    server_round: int
    model: ArrayRecord
    optimizer: dict[str, Any]
    facts: dict[str, Any]
    ledger: Ledger


class Checkpoints:
    """A folder with the last checkpoints of one run, and with its ledger.

    Each checkpoint is one file, written whole or not at all: a process that is killed at any moment
    loses the round it was in, and nothing else. The ledger is a file of its own,
    because a charge has to be on disk before its round begins, and a checkpoint is written when the
    round has ended. Neither holds code: arrays in NumPy's format, the rest in JSON.

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

    def begin(self, snapshot: Snapshot) -> None:
        """Start the record of a new run: nothing asked, nothing charged."""
        self.require_unused()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.write_ledger(snapshot.ledger)
        self.save(snapshot)

    def write_ledger(self, ledger: Ledger) -> None:
        """Write the ledger. When this returns, it outlives the process and the machine."""
        text = json.dumps({"schema": SCHEMA_VERSION, **ledger.to_dict()}, indent=1)
        write_whole(self.directory / _LEDGER, lambda file: file.write(text.encode()))

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, and then forget the oldest beyond `keep`."""
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
        for leftover in self.directory.glob(".*.part"):
            leftover.unlink(missing_ok=True)
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
            "facts": snapshot.facts,
            "model": encode(snapshot.model, store),
            "optimizer": encode(snapshot.optimizer, store),
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

    return Snapshot(
        server_round=int(manifest["round"]),
        model=decode(manifest["model"], archive.read, load),
        optimizer=decode(manifest["optimizer"], archive.read, load),
        facts=manifest["facts"],
        ledger=Ledger.from_dict(manifest["ledger"]),
    )


def _check_schema(data: dict[str, Any]) -> None:
    if data.get("schema") != SCHEMA_VERSION:
        raise ValueError(f"schema must be {SCHEMA_VERSION}; got {data.get('schema')!r}")
