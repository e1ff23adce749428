"""Hold back the chatter of a library for the length of a call."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(logger_name: str, level: int) -> Iterator[None]:
    """Drop the records of a logger below `level`."""

    def is_loud(record: logging.LogRecord) -> bool:
        return record.levelno >= level

    logger = logging.getLogger(logger_name)
    logger.addFilter(is_loud)
    try:
        yield
    finally:
        logger.removeFilter(is_loud)
