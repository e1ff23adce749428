"""What every test runs under."""

import pytest
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import settings

settings.register_profile("flwr-sdp", derandomize=True, database=None, deadline=None)
settings.load_profile("flwr-sdp")


@pytest.fixture(scope="session", autouse=True)
def _inside_a_run():
    """Let ``flwr.app.Message`` be built, which needs to know the run it belongs to."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
