"""Packages that some tasks need, and an install may not have."""

from __future__ import annotations

from importlib import import_module, metadata
from types import ModuleType


def load(module: str, needed_by: str) -> ModuleType:
    """Return a module of the extra ``tasks``.

    Raises
    ------
    ImportError
        If its package is missing; the message says what needs it, and how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(module.partition(".")[0], needed_by) from error


def version(package: str, needed_by: str) -> str:
    """Return which version of a package is installed, or raise as :func:`load` does."""
    try:
        return metadata.version(package)
    except ImportError as error:
        raise missing(package, needed_by) from error


def missing(package: str, needed_by: str) -> ImportError:
    """Return the error that says that a package is missing."""
    return ImportError(f"{needed_by} {package}: pip install 'flwr-sdp[tasks]'")
