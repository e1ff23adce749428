"""What figures and tables call the keys of a run config, and their values."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_sdp.cli.results.trials import EPSILON, Level
from flwr_sdp.cli.runs.grid import short_key

NO_PRIVACY = "no privacy"


def key_label(key: str) -> str:
    """Return a short name of a key."""
    return "ε₁" if key == EPSILON else short_key(key)


def value_label(text: str) -> str:
    """Return a number without needless digits, anything else as it is."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def level_label(level: Level, keys: Sequence[str], separator: str = ", ") -> str:
    """Return the values of these keys, for a legend."""
    values = dict(level)
    return separator.join(
        f"{key_label(key)} = {value_label(values[key])}" for key in keys if key in values
    )


def baseline_label(level: Level, levels: Sequence[Level], separator: str = ", ") -> str:
    """Return the name of a run without privacy, with what tells it from those at `levels`."""
    varied = [key for key, value in level if any(dict(other).get(key) != value for other in levels)]
    return separator.join(filter(None, [NO_PRIVACY, level_label(level, varied, separator)]))
