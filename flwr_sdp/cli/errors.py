"""Errors a person at the command line can act on."""

from __future__ import annotations


class CommandError(Exception):
    """A message for the screen and the exit status that goes with it.

    Exit status 2 is a mistake in the call, 1 is a run that failed.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
