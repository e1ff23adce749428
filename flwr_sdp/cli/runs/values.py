"""Values of a run config, as a person writes them and as Flower wants them."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_sdp.cli.errors import CommandError

# Keys of a run config that are paths, unless they name a model of the hub.
_PATHS = ("data-dir", "weights")
_HUB = "hub:"


def absolute_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config whose paths begin at the root.

    The app runs in a folder of its own; a person means the one they are in.
    """

    def absolute(value: Any) -> Any:
        if not isinstance(value, str) or not value or value.startswith(_HUB):
            return value
        return str(Path(value).expanduser().absolute())

    return {key: absolute(value) if key in _PATHS else value for key, value in config.items()}


def parse_value(text: str) -> Any:
    """Return the TOML value in `text`; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def parse_set(text: str) -> tuple[str, Any]:
    """Return key and value of one ``--set KEY=VALUE``.

    Raises
    ------
    CommandError
        If it is not of that form.
    """
    key, sign, value = text.partition("=")
    if not (sign and key.strip()):
        raise CommandError(f"--set wants KEY=VALUE; got {text!r}")
    return key.strip(), parse_value(value)


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Return key and values of one ``--sweep KEY=V1,V2,...``; a TOML list is taken as well.

    Raises
    ------
    CommandError
        If it is not of that form.
    """
    key, sign, values = text.partition("=")
    if not (sign and key.strip() and values.strip()):
        raise CommandError(f"--sweep wants KEY=V1,V2,...; got {text!r}")
    listed = parse_value(values)
    if not isinstance(listed, list):
        listed = [parse_value(value) for value in values.split(",")]
    return key.strip(), listed


def flower_value(value: Any) -> str:
    """Return `value` as Flower's ``key=value`` run config wants it, in quotes of either kind.

    Raises
    ------
    CommandError
        If Flower cannot be given such a value.
    """
    if isinstance(value, str):
        if "'" not in value:
            return f"'{value}'"
        if '"' not in value and "\\" not in value:
            return f'"{value}"'
        raise CommandError(f"a value cannot hold both kinds of quotes, or ' and \\; got {value!r}")
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    raise CommandError(f"a value must be text, a finite number, true or false; got {value!r}")


def typed(key: str, value: Any, defaults: Mapping[str, Any]) -> Any:
    """Return `value` in the type of the default for `key`: 100 is 100.0 where that is a float.

    Raises
    ------
    CommandError
        If it is of another type, or none that a run config has.
    """
    flower_value(value)
    default = defaults[key]
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "an integer"
    elif isinstance(default, float):
        fits, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        value = float(value) if fits else value
    else:
        fits, wanted = isinstance(value, str), "text"
    if not fits:
        raise CommandError(
            f"{key} must be {wanted}, as the app's default {default!r}; got {value!r}"
        )
    return value
