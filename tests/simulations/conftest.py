"""What every test of the simulations runs under."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Workers of the tests share the cores; and more threads may sum in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
