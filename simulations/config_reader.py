"""Reading a run config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flwr_sdp import _validate

Option = TypeVar("Option", bound=str)


class ConfigReader:
    """Typed access to a run config; every error (``ValueError``) names the key and the value."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def _value(self, key: str) -> Any:
        if key not in self._config:
            raise ValueError(f"{key} is missing from the run config")
        return self._config[key]

    def number(
        self,
        key: str,
        *,
        above: float = -math.inf,
        below: float = math.inf,
        minimum: float = -math.inf,
        maximum: float = math.inf,
    ) -> float:
        """Return a number in a range."""
        return _validate.number(
            key, self._value(key), above=above, below=below, minimum=minimum, maximum=maximum
        )

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
        value = self._value(key)
        for option in options:
            if value == option:
                return option
        raise ValueError(f"{key} must be one of {', '.join(map(repr, options))}; got {value!r}")
