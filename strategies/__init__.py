"""Server side: the Flower Strategy that clips, noises and accounts."""

from flwr_sdp.strategies.accountants import (
    fixed_size_accountant,
    fixed_size_event,
    poisson_accountant,
    poisson_event,
    poisson_rdp_accountant,
)
from flwr_sdp.strategies.best_accountant import BestAccountant
from flwr_sdp.strategies.calibration import noise_multiplier_for
from flwr_sdp.strategies.checkpoint import CheckpointError, Checkpoints
from flwr_sdp.strategies.clip_and_noise import ClipAndNoise
from flwr_sdp.strategies.paper_analysis import PAPER_EXPERIMENTS, paper_noise
from flwr_sdp.strategies.planner import Plan, plan
from flwr_sdp.strategies.pld_accountant import PldAccountant
from flwr_sdp.strategies.projection import (
    ProjectionEffect,
    projection_effect,
    unprojected_noise_multiplier,
)
from flwr_sdp.strategies.report import CentralGuarantee, LocalGuarantee, PrivacyReport

__all__ = [
    "PAPER_EXPERIMENTS",
    "BestAccountant",
    "CentralGuarantee",
    "CheckpointError",
    "Checkpoints",
    "ClipAndNoise",
    "LocalGuarantee",
    "Plan",
    "PldAccountant",
    "PrivacyReport",
    "ProjectionEffect",
    "fixed_size_accountant",
    "fixed_size_event",
    "noise_multiplier_for",
    "paper_noise",
    "plan",
    "poisson_accountant",
    "poisson_event",
    "poisson_rdp_accountant",
    "projection_effect",
    "unprojected_noise_multiplier",
]
