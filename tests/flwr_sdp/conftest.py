"""What several tests of the privacy core begin with."""

import pytest

from flwr_sdp import direction, randomness


@pytest.fixture
def short_blocks(monkeypatch):
    """Cut at 6 coordinates instead of 524,288."""
    monkeypatch.setattr(direction, "BLOCK", 6)
    monkeypatch.setattr(randomness, "BLOCK", 6)
    monkeypatch.setattr(direction, "WIDE", 6)
