"""A model that is not finite is not sent, and not released."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from flwr_sdp import npy
from flwr_sdp.strategies import Checkpoints
from tests.messages import FakeGrid, flat, private_reply, record
from tests.rounds import make
from tests.strategies.resumable import NODES, build, initial_model, run


def fleet():
    return FakeGrid(range(NODES), private_reply)


def bfloat16(numbers):
    data = npy.write(np.asarray(numbers, np.float32).ravel(), np.shape(numbers), npy.BFLOAT16)
    return Array(npy.BFLOAT16, np.shape(numbers), "numpy.ndarray", data)


def with_infinity(model, name):
    """Return a bfloat16 model with one infinite number; `npy.write` rounds finite ones only."""
    data = bytearray(model[name].data)
    data[-2:] = b"\x80\x7f"
    array = Array(npy.BFLOAT16, model[name].shape, "numpy.ndarray", bytes(data))
    return ArrayRecord({**dict(model.items()), name: array})


def spoilt(dtype, value, place, shape=(3, 5), order="C"):
    numbers = np.ones(shape, dtype, order=order)
    numbers.flat[place] = value
    return record({"first": np.zeros(2, dtype), "kernel": numbers, "count": np.array(3)})


# ------------------------------------------------------------------ what is sent
@pytest.mark.parametrize(
    "model",
    [
        *(
            spoilt(dtype, value, place)
            for dtype in (np.float16, np.float32, np.float64, np.longdouble)
            for value, place in ((np.nan, 0), (np.inf, 7), (-np.inf, -1))
        ),
        spoilt(np.float32, np.nan, 100_000, (400, 500), "F"),
        spoilt(np.float64, np.nan, 0, (), "C"),
        with_infinity(ArrayRecord({"kernel": bfloat16(np.ones(4))}), "kernel"),
    ],
)
def test_a_model_that_is_not_finite_is_refused_by_name_before_anyone_is_asked(tmp_path, model):
    strategy, grid = build(tmp_path, strategy=FedAvg(fraction_evaluate=0.0)), fleet()
    with pytest.raises(ValueError, match=r"must be finite, .* was given 'kernel' with infinities"):
        strategy.start(grid, model, num_rounds=3)
    assert grid.sent == []
    assert strategy.privacy_spent() is None
    assert list(tmp_path.iterdir()) == []


def test_so_it_is_in_any_round(tmp_path):
    """In a loop of one's own, whose model may come from anywhere."""
    strategy, grid = build(tmp_path), fleet()
    model = initial_model()
    messages = strategy.configure_train(1, model, ConfigRecord(), grid)
    model, _ = strategy.aggregate_train(1, list(grid.send_and_receive(messages)))
    spoilt = ArrayRecord({**dict(model.items()), "w": record({"w": [np.inf] * 5})["w"]})
    sent, charged = len(grid.sent), Checkpoints(tmp_path).load()[0]
    with pytest.raises(ValueError, match=r"must be finite, .* was given 'w'"):
        strategy.configure_train(2, spoilt, ConfigRecord(), grid)
    assert len(grid.sent) == sent
    assert Checkpoints(tmp_path).load()[0] == charged


class Sending(FedAvg):
    """A strategy that sends another model than it was given."""

    def configure_train(self, server_round, arrays, config, grid):
        arrays = ArrayRecord({**dict(arrays.items()), "w": record({"w": [np.nan] * 5})["w"]})
        return super().configure_train(server_round, arrays, config, grid)


def test_what_the_inner_strategy_sends_has_to_be_finite(tmp_path):
    strategy, grid = build(tmp_path, strategy=Sending(fraction_evaluate=0.0)), fleet()
    with pytest.raises(ValueError, match="must be finite, but Sending sends 'w'"):
        strategy.start(grid, initial_model(), num_rounds=1)
    assert grid.sent == []
    assert Checkpoints(tmp_path).load()[0].rounds_asked == 0


@pytest.mark.parametrize(
    "numbers",
    [
        np.full(3, np.finfo(np.float32).max),
        np.full(3, -1e150),
        np.full(3, np.finfo(np.float16).max),
        np.zeros((0, 4), np.float32),
        np.array(1e-320),
    ],
)
def test_whatever_is_finite_is_sent(numbers):
    strategy, grid = make(), fleet()
    strategy.start(grid, record({"w": numbers, "b": np.ones(2)}), num_rounds=1)
    assert len(grid.sent) == NODES
    assert strategy.last_round["replies"] == NODES


@pytest.mark.parametrize("options", [{"excluded": ["mask"]}, {"trainable": ["w"]}])
def test_a_mask_that_is_not_trained_may_be_infinite(options):
    """Its model needs it so: it is sent and comes back as it was, and the replies count."""
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    strategy, grid = make(**options), fleet()
    grid.answer = lambda message: private_reply(message, {"w": np.ones(2)})
    result = strategy.start(grid, record({"mask": mask, "w": np.zeros(2)}), num_rounds=2)
    np.testing.assert_array_equal(result.arrays["mask"].numpy(), mask)
    assert strategy.last_round["replies"] == NODES
    np.testing.assert_allclose(flat(result.arrays, ["w"]), 2.0)


NAN = np.array([1.0, np.nan])


@pytest.mark.parametrize(
    ("options", "name", "values"),
    [
        ({}, "bn.running_var", NAN),
        ({"excluded": ["x"]}, "x", np.float16(NAN)),
        ({"trainable": ["w"]}, "x", np.append(NAN, -np.inf)),
        ({"trainable": ["w"]}, "x", bfloat16(NAN)),
        ({"tied": {"x": "w"}}, "x", NAN),
        ({"tied": {"x": "w"}}, "x", np.array([1.0, np.inf])),
    ],
)
def test_nan_is_refused_in_any_round_wherever_it_is(tmp_path, options, name, values):
    """One in what is not trained makes every update none; a tied array is that of its pair."""
    good, grid = record({"w": np.ones(2), name: np.ones(2), "n": np.array(1)}), fleet()
    grid.answer = lambda message: private_reply(message, {"w": np.ones(2)})
    spoilt = values if isinstance(values, Array) else record({name: values})[name]
    bad = ArrayRecord({**dict(good.items()), name: spoilt})
    with pytest.raises(ValueError, match=f"was given '{name}' with .*NaN in it: nobody is asked"):
        build(tmp_path / "1", **options).start(grid, bad, num_rounds=1)
    assert grid.sent == []
    strategy, config = build(tmp_path / "2", **options), ConfigRecord()
    messages = strategy.configure_train(1, good, config, grid)
    strategy.aggregate_train(1, list(grid.send_and_receive(messages)))
    with pytest.raises(ValueError, match=f"was given '{name}' with"):
        strategy.configure_train(2, bad, config, grid)
    assert strategy.privacy_spent().num_releases == 1
    assert Checkpoints(tmp_path / "2").load()[0].rounds_asked == 1


# ------------------------------------------------------------------ what is released
class Breaking(FedAdam):
    """An optimiser that divides by zero in round 2."""

    def __init__(self, value):
        super().__init__(fraction_evaluate=0.0)
        self.value = value

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 2:
            arrays["w"] = Array(np.full(5, self.value, np.float32))
        return arrays, metrics


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_the_inner_strategy_returns_is_not_released(tmp_path, value):
    """The round stays charged, and the run goes on from the model before it."""
    strategy, seen = build(tmp_path, strategy=Breaking(float(value))), []
    match = "must be finite, but Breaking has returned 'w' .*: the round is charged, and nothing of"
    with pytest.raises(ValueError, match=match):
        run(strategy, 3, evaluate=lambda server_round, model: seen.append((server_round, model)))
    assert [server_round for server_round, _ in seen] == [0, 1]
    assert strategy.last_arrays is seen[-1][1]
    assert strategy.privacy_spent().num_releases == 2
    resumed = build(tmp_path, strategy=Breaking(float(value)))
    assert resumed.restore(initial_model())["w"].data == seen[-1][1]["w"].data
    assert (resumed.rounds_done, resumed.privacy_spent().num_releases) == (1, 2)
