"""Separated differential privacy for federated learning: the privacy core.

Imports NumPy and cryptography only. The server side is :mod:`flwr_sdp.strategies`, the
device side :mod:`flwr_sdp.clients`.
"""

from flwr_sdp.magnitude import ScalarDP
from flwr_sdp.privunit import PrivUnit
from flwr_sdp.privunit_infinity import PrivUnitInfinity
from flwr_sdp.randomness import KeystreamGenerator, secure_generator, seeded_generator
from flwr_sdp.relative_magnitude import ScalarRelDP
from flwr_sdp.separated import SeparatedBudget, SeparatedEvent, SeparatedMechanism

__all__ = [
    "KeystreamGenerator",
    "PrivUnit",
    "PrivUnitInfinity",
    "ScalarDP",
    "ScalarRelDP",
    "SeparatedBudget",
    "SeparatedEvent",
    "SeparatedMechanism",
    "secure_generator",
    "seeded_generator",
]
