"""What every test runs under."""

import pytest
from hypothesis import settings

from flwr_sdp.clients.testing import enter_run

settings.register_profile("flwr-sdp", derandomize=True, database=None, deadline=None)
settings.load_profile("flwr-sdp")


def pytest_collection_modifyitems(items):
    """Begin with the files that start Ray: they take longest, and workers should end together."""
    slow = {item.path for item in items if item.get_closest_marker("simulation")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _inside_a_run():
    """Let ``flwr.app.Message`` be built, which needs to know the run it belongs to."""
    enter_run()
