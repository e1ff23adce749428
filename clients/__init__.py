"""Device side: what runs where the data is."""

from flwr_sdp.clients.ledger import (
    DeviceLedger,
    LedgerEntry,
    LedgerError,
    LocalBudgetExhausted,
    Request,
)
from flwr_sdp.clients.mod import SeparatedDPMod
from flwr_sdp.clients.privatize import privatize_update
from flwr_sdp.clients.protect import protect
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
