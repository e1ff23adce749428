"""Reading the settings of a run: from a run config, or from a run file (TOML)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flwr_sdp import _validate

Option = TypeVar("Option", bound=str)


class ConfigReader:
    """Typed access to settings; every error (``ValueError``) names the key and the value.

    Parameters
    ----------
    config : mapping
        The settings, by key.
    source : str
        What they come from, as the error of a missing key says it.
    """

    def __init__(self, config: Mapping[str, Any], source: str = "the run config") -> None:
        self._config = config
        self._source = source
        self._read: set[str] = set()

    def number(self, key: str, **limits: float) -> float:
        """Return a number inside the limits of :func:`flwr_sdp._validate.number`."""
        return _validate.number(key, self._value(key), **limits)

    def numbers(self, key: str, **limits: float) -> tuple[float, ...]:
        """Return one or more numbers inside the limits, no two of them equal."""
        values = self._list(key)
        numbers = tuple(
            _validate.number(f"every one of {key}", value, **limits) for value in values
        )
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{key} must not name a number twice; got {values!r}")
        return numbers

    def integer(self, key: str, *, minimum: int, maximum: int | None = None) -> int:
        """Return an integer in a range."""
        return _validate.integer(key, self._value(key), minimum=minimum, maximum=maximum)

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false; got {value!r}")
        return value

    def text(self, key: str) -> str:
        """Return a text."""
        value = self._value(key)
        if not isinstance(value, str):
            raise ValueError(f"{key} must be a string; got {value!r}")
        return value

    def path(self, key: str) -> Path | None:
        """Return a path; None for an empty text."""
        text = self.text(key)
        return Path(text) if text else None

    def choice(self, key: str, options: tuple[Option, ...]) -> Option:
        """Return one of some texts."""
        return _chosen(key, self._value(key), options)

    def choices(self, key: str, options: tuple[Option, ...]) -> tuple[Option, ...]:
        """Return one or more of some texts, none of them twice."""
        values = self._list(key)
        chosen = tuple(_chosen(f"every one of {key}", value, options) for value in values)
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"{key} must not name one twice; got {values!r}")
        return chosen

    def refuse_others(self) -> None:
        """Raise ``ValueError`` if a key was never read: it is a mistake in its name."""
        unknown = sorted(self._config.keys() - self._read)
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
        self._read.add(key)
        if key not in self._config:
            raise ValueError(f"{key} is missing from {self._source}")
        return self._config[key]


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


def _chosen(name: str, value: Any, options: tuple[Option, ...]) -> Option:
    """Return the option that a value is; unlike ``_validate.choice``, of the options' own type."""
    for option in options:
        if value == option:
            return option
    raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}; got {value!r}")
