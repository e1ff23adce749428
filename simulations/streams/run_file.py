"""Typed access to a run file; every error names the key, the value and what would do."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_sdp import _validate


class RunFile:
    """The keys of a run file, each to be read once.

    Parameters
    ----------
    config : mapping
        The content of the file.
    example : str
        A run file that has every key, for the error messages.
    """

    def __init__(self, config: Mapping[str, Any], example: str) -> None:
        self._values = dict(config)
        self._example = example
        self._read: list[str] = []

    def number(self, key: str, **limits: float) -> float:
        """Return a number inside the limits of :func:`flwr_sdp._validate.number`."""
        return _validate.number(key, self._value(key), **limits)

    def integer(self, key: str, *, minimum: int, maximum: int | None = None) -> int:
        """Return an integer inside the limits."""
        return _validate.integer(key, self._value(key), minimum=minimum, maximum=maximum)

    def choice(self, key: str, options: tuple[str, ...]) -> str:
        """Return one of the options."""
        return _validate.choice(key, self._value(key), options)

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false; got {value!r}")
        return value

    def numbers(self, key: str, **limits: float) -> tuple[float, ...]:
        """Return one or more numbers inside the limits, no two of them equal."""
        values = self._list(key)
        numbers = tuple(
            _validate.number(f"every one of {key}", value, **limits) for value in values
        )
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{key} must not name a number twice; got {values!r}")
        return numbers

    def choices(self, key: str, options: tuple[str, ...]) -> tuple[str, ...]:
        """Return one or more of the options, none of them twice."""
        values = self._list(key)
        chosen = tuple(_validate.choice(f"every one of {key}", value, options) for value in values)
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"{key} must not name one twice; got {values!r}")
        return chosen

    def refuse_others(self) -> None:
        """Raise ``ValueError`` if a key was never read: it is a mistake in its name."""
        unknown = sorted(set(self._values) - set(self._read))
        if unknown:
            raise ValueError(
                f"unknown key {unknown[0]!r} in the run file: there are "
                f"{', '.join(sorted(self._read))}"
            )

    def _list(self, key: str) -> list[Any]:
        values = self._value(key)
        if not isinstance(values, list) or not values:
            raise ValueError(f"{key} must be a list of one or more entries; got {values!r}")
        return values

    def _value(self, key: str) -> Any:
        self._read.append(key)
        if key not in self._values:
            raise ValueError(f"{key} is missing from the run file: see {self._example}")
        return self._values[key]


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a run file.

    Raises
    ------
    ValueError
        If it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
