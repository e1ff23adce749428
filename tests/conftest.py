"""What every test runs under."""

import pytest
from hypothesis import settings

from flwr_sdp.clients.testing import enter_run

settings.register_profile("flwr-sdp", derandomize=True, database=None, deadline=None)
settings.load_profile("flwr-sdp")


@pytest.fixture(scope="session", autouse=True)
def _inside_a_run():
    """Let ``flwr.app.Message`` be built, which needs to know the run it belongs to."""
    enter_run()
