"""Device side: what runs where the data is.

A name is imported when it is asked for: :func:`privatize_update` and the ledger do without Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr_sdp.clients.protect import protect

if TYPE_CHECKING:
    from flwr_sdp.clients.ledger import (
        DeviceLedger,
        LedgerEntry,
        LedgerError,
        LocalBudgetExhausted,
        Request,
    )
    from flwr_sdp.clients.mod import SeparatedDPMod
    from flwr_sdp.clients.privatize import privatize_update
    from flwr_sdp.clients.update import UpdateLayout
    from flwr_sdp.released import BATCH_NORM_STATISTICS, Selection

__all__ = [
    "BATCH_NORM_STATISTICS",
    "DeviceLedger",
    "LedgerEntry",
    "LedgerError",
    "LocalBudgetExhausted",
    "Request",
    "Selection",
    "SeparatedDPMod",
    "UpdateLayout",
    "privatize_update",
    "protect",
]

_MODULES = {
    "flwr_sdp.clients.ledger": (
        "DeviceLedger",
        "LedgerEntry",
        "LedgerError",
        "LocalBudgetExhausted",
        "Request",
    ),
    "flwr_sdp.clients.mod": ("SeparatedDPMod",),
    "flwr_sdp.clients.privatize": ("privatize_update",),
    "flwr_sdp.clients.update": ("UpdateLayout",),
    "flwr_sdp.released": ("BATCH_NORM_STATISTICS", "Selection"),
}


def __getattr__(name: str) -> Any:
    if f"{__name__}.{name}" in _MODULES:
        return import_module(f"{__name__}.{name}")
    for module, names in _MODULES.items():
        if name in names:
            globals()[name] = getattr(import_module(module), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
