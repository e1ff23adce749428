"""The log of the device, which stays there: Flower uploads that of a ServerApp alone."""

from __future__ import annotations

import logging

_log = logging.getLogger("flwr_sdp.device")


def device_log() -> logging.Logger:
    """Return the log, with a handler and the level INFO where nobody has configured any.

    Python's own last resort prints warnings alone, without time, level and name.
    """
    if not _log.hasHandlers():
        _log.setLevel(_log.level or logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handler.addFilter(lambda _record: _is_alone(handler))
        _log.addHandler(handler)
    return _log


def _is_alone(handler: logging.Handler) -> bool:
    """Return whether still nobody has: each line is to be there once."""
    parent = _log.parent if _log.propagate else None
    return _log.handlers == [handler] and not (parent and parent.hasHandlers())
