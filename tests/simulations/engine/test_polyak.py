"""The average of the released models."""

import numpy as np
import pytest

from simulations.engine.polyak import PolyakAverage
from tests.messages import flat, record

MODELS = [
    record({"weight": np.full(4, value, dtype=np.float32), "steps": np.array(round_)})
    for round_, value in enumerate([9.0, 1.0, 2.0, 6.0, -3.0])
]


def averages(average, rounds):
    return [average.add(server_round, MODELS[server_round]) for server_round in rounds]


def test_average_is_that_of_all_models_from_the_first_round_on():
    found = averages(PolyakAverage(2), range(5))
    assert found[:2] == [None, None]
    for server_round, model in enumerate(found[2:], start=2):
        expected = np.mean([flat(m, ["weight"]) for m in MODELS[2 : server_round + 1]], axis=0)
        np.testing.assert_allclose(flat(model, ["weight"]), expected, rtol=1e-6)


def test_dtypes_are_the_models_and_counters_are_the_last_ones():
    model = averages(PolyakAverage(1), [1, 2, 3])[-1]
    assert model["weight"].dtype == "float32"
    assert model["steps"].numpy() == 3


@pytest.mark.parametrize("broken_after", [1, 2, 3, 4])
def test_resumed_average_is_that_of_an_unbroken_run(tmp_path, broken_after):
    """A resumed run evaluates the model of its last finished round again: it counts once."""
    whole = averages(PolyakAverage(2), range(5))[-1]
    averages(PolyakAverage(2, tmp_path / "average.npz"), range(broken_after + 1))
    again = PolyakAverage(2, tmp_path / "average.npz")
    again.resume(broken_after)
    found = averages(again, range(broken_after, 5))[-1]
    np.testing.assert_allclose(flat(found), flat(whole), rtol=1e-6)


def test_model_that_a_kill_kept_from_the_average_is_made_up_for(tmp_path):
    whole = averages(PolyakAverage(2), range(5))[-1]
    averages(PolyakAverage(2, tmp_path / "average.npz"), range(3))
    again = PolyakAverage(2, tmp_path / "average.npz")
    again.resume(3)
    found = averages(again, [3, 4])[-1]
    np.testing.assert_allclose(flat(found), flat(whole), rtol=1e-6)


def test_average_that_misses_rounds_is_refused(tmp_path):
    averages(PolyakAverage(1, tmp_path / "average.npz"), range(3))
    with pytest.raises(ValueError, match=r"^average-from=1 cannot be resumed after round 4"):
        PolyakAverage(1, tmp_path / "average.npz").resume(4)
    with pytest.raises(ValueError, match=r"^average-from=1 cannot be resumed: no average is kept"):
        PolyakAverage(1, tmp_path / "other.npz").resume(4)
