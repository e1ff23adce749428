"""Errors a person at the command line can act on."""

from __future__ import annotations

from importlib.util import find_spec

# The extra that brings a package which some command needs and a device does not have.
_EXTRAS = {
    "scipy": "server",
    "dp_accounting": "server",
    "ray": "simulation",
    "torch": "simulation",
    "sklearn": "simulation",
    "matplotlib": "simulation",
}


class CommandError(Exception):
    """A message for the screen and the exit status that goes with it.

    Exit status 2 is a mistake in the call, 1 is a run that failed.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def not_installed(module: str | None) -> CommandError | None:
    """Return the error for a package of an extra that is missing; None for any other module."""
    package = (module or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    return CommandError(f"{package} is not installed: pip install 'flwr-sdp[{_EXTRAS[package]}]'")


def require_packages(*packages: str) -> None:
    """Raise a CommandError for the first of these packages that is not installed."""
    for package in packages:
        error = not_installed(package)
        if error is not None and find_spec(package) is None:
            raise error
