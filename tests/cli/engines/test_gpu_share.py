"""Shares of GPUs: what Flower counts by them, and what Ray has room for."""

import numpy as np
import pytest

from flwr_sdp.cli.engines.gpu_share import not_above, room, share_for, started


@pytest.mark.parametrize("gpus", [1, 2, 8, 16])
def test_a_share_is_for_so_many_clients_and_ray_has_room_for_them(gpus):
    for clients in range(1, 101):
        share = share_for(clients)
        assert started(gpus, share) == gpus * clients <= room(gpus, share)


def test_single_precision_never_takes_a_client_away():
    """0.1 becomes more than 0.1, of which nine fit; the launcher passes a little less."""
    assert [int(1 / float(np.float32(share))) for share in (0.1, 0.2)] == [9, 4]
    assert [started(1, share) for share in (0.1, 0.2)] == [10, 5]


@pytest.mark.parametrize("share", [1e-4, 0.1, 0.2, 0.25, 1 / 3, 0.7, 1.0, 2.0, 0.0])
def test_the_number_passed_on_is_the_nearest_below(share):
    passed = not_above(share)
    assert passed == float(np.float32(passed)) <= share
    assert float(np.nextafter(np.float32(passed), np.float32(np.inf))) > share


@pytest.mark.parametrize(
    ("gpus", "share", "counted", "fit"),
    [(8, 0.3, 26, 24), (8, 0.7, 11, 8), (2, 0.4, 5, 4), (1, 0.3, 3, 3), (8, 2.0, 4, 4)],
)
def test_flower_may_count_clients_that_ray_cannot_place(gpus, share, counted, fit):
    assert (started(gpus, share), room(gpus, share)) == (counted, fit)
