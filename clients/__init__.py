"""Device side: what runs where the data is."""

from flwr_sdp.clients.mod import SeparatedDPMod
from flwr_sdp.clients.update import UpdateLayout
from flwr_sdp.released import BATCH_NORM_STATISTICS

__all__ = ["BATCH_NORM_STATISTICS", "SeparatedDPMod", "UpdateLayout"]
