"""Server side: the Flower Strategy that clips, noises and accounts."""

from flwr_sdp.strategies.accountants import poisson_event, poisson_rdp_accountant
from flwr_sdp.strategies.clip_and_noise import ClipAndNoise
from flwr_sdp.strategies.report import CentralGuarantee, LocalGuarantee, PrivacyReport

__all__ = [
    "CentralGuarantee",
    "ClipAndNoise",
    "LocalGuarantee",
    "PrivacyReport",
    "poisson_event",
    "poisson_rdp_accountant",
]
