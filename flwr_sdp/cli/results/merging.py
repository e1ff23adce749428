"""Merge tables of results: only those of the same settings, but for what their levels say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import read_toml
from flwr_sdp.cli.runs.grid import is_beside_the_model, is_privacy_key
from flwr_sdp.cli.runs.run_file import OF_THE_LAUNCHER

_CONFIG = "config.toml"


def align(
    folders: Sequence[Path], tables: Sequence[Sequence[dict[str, str]]], keys: Collection[str]
) -> None:
    """Bring tables to the same keys, if they are of runs with the same settings.

    Parameters
    ----------
    folders : sequence of Path
        Where the tables lie.
    tables : sequence of sequence of dict
        Their rows. Those of a table in which a key is fixed, and that has no column of it, are
        given its value.
    keys : collection of str
        What any of the tables tells levels apart by.

    Raises
    ------
    CommandError
        If a config.toml cannot be read, or differs from the first in another key.
    """
    configs = [read_toml(folder / _CONFIG) for folder in folders]
    for folder, config in zip(folders[1:], configs[1:], strict=True):
        _refuse_others(folders[0], configs[0], folder, config, keys)
    for config, rows in zip(configs, tables, strict=True):
        for row in rows:
            for key in keys:
                if key not in row:
                    stands_for_all = row["privacy"] == "none" and is_privacy_key(key)
                    row[key] = "" if stands_for_all else str(config.get(key, ""))


def _refuse_others(
    here: Path,
    first: Mapping[str, Any],
    there: Path,
    other: Mapping[str, Any],
    keys: Collection[str],
) -> None:
    for key in sorted({*first, *other} - {*OF_THE_LAUNCHER, "seed", *keys}):
        if first.get(key) != other.get(key) and not is_beside_the_model(key):
            raise CommandError(
                f"{key} is {first.get(key)!r} in {here} and {other.get(key)!r} in {there}: runs of "
                "other settings are no trials of one level, draw them apart"
            )
