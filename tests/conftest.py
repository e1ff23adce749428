"""What every test runs under."""

import os

# Read by NumPy and torch as they are imported, here and in whatever a test starts. Tests run on
# every core: threads of linear algebra would wait for each other by spinning, and take far longer.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)

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
