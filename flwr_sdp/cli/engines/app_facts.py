"""What an app says of itself when its run configs are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Messages:
    """What goes to and fro in a round of one run.

    Attributes
    ----------
    count : int
        Messages at once, at the most: one a node, or one a client of the cohort.
    request_bytes, reply_bytes : int
        Size of the arrays in one.
    """

    count: int
    request_bytes: int
    reply_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AppFacts:
    """What the app's process knows, and the launcher, without PyTorch, does not.

    Attributes
    ----------
    gpus : int
        GPUs that the app's framework sees.
    memory : int or None
        Bytes of the process's own once task and data are loaded; None where the system does not
        say.
    runs : tuple of Messages
        One for each run config.
    """

    gpus: int
    memory: int | None
    runs: tuple[Messages, ...]

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> AppFacts:
        """Return the facts that ``simulations/engine`` prints."""
        runs = tuple(
            Messages(
                count=run["messages"],
                request_bytes=run["request-bytes"],
                reply_bytes=run["reply-bytes"],
            )
            for run in facts["runs"]
        )
        return cls(gpus=facts["gpus"], memory=facts["memory"], runs=runs)
