"""The clipped sum."""

import copy
import io
import math
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp import npy, seeded_generator
from flwr_sdp.npy import BFLOAT16
from flwr_sdp.strategies.accumulator import ClippedSum
from tests.messages import flat, numpy_dict, record, shifted
from tests.statistics_helpers import assert_detects, scores_of_cosines


def model():
    return record(
        {
            "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
            "steps": np.array([3, 4], np.int64),
            "b": np.array(0.5, np.float64),
            "mask": np.array([True, False]),
            "half": np.array([1.0, 2.0], np.float16),
        }
    )


DIM = 9


def release(total, divisor=1.0, noise_std=0.0, learning_rate=1.0, seed=0):
    """Release a copy, so that a test can go on with the sum."""
    return copy.deepcopy(total).release(
        divisor=divisor,
        noise_std=noise_std,
        learning_rate=learning_rate,
        rng=seeded_generator(seed),
    )


def step(total, divisor=1.0):
    """Return how far a release without noise moves the model."""
    sent = ArrayRecord(total._model)
    return flat(release(total, divisor).arrays) - flat(sent)


def test_floating_point_arrays_are_summed():
    assert ClippedSum(model(), 1.0).dim == DIM


def test_sum_of_unclipped_updates():
    total = ClippedSum(model(), math.inf)
    for value in (0.25, 0.5, -1.0):
        total.add(shifted(model(), value))
    np.testing.assert_allclose(step(total, 4.0), np.full(DIM, -0.25 / 4.0), atol=1e-7)
    assert total.projected == 0


@given(
    scale=st.floats(1e-6, 1e9),
    clip_norm=st.floats(1e-3, 1e3),
    seed=st.integers(0, 5),
)
def test_one_update_is_projected_on_the_ball(scale, clip_norm, seed):
    update = np.random.default_rng(seed).standard_normal(4)
    update *= scale / np.linalg.norm(update)
    zero = record({"w": np.zeros(4)})
    total = ClippedSum(zero, clip_norm)
    total.add(shifted(zero, update))
    expected = update * min(1.0, clip_norm / scale)
    np.testing.assert_allclose(step(total), expected, rtol=1e-9)
    assert np.linalg.norm(step(total)) <= clip_norm * (1 + 1e-12)
    if abs(scale / clip_norm - 1.0) > 1e-9:
        assert total.projected == (scale > clip_norm)


def test_every_update_is_projected_by_itself():
    zero = record({"w": np.zeros(2)})
    total = ClippedSum(zero, 1.0)
    for update in ([10.0, 0.0], [0.0, 0.5], [-3.0, -4.0]):
        total.add(shifted(zero, np.array(update)))
    np.testing.assert_allclose(step(total), [1.0 - 0.6, 0.5 - 0.8], rtol=1e-12)
    assert total.projected == 2


def test_norm_is_over_all_arrays_together():
    zero = record({"a": np.zeros(1), "b": np.zeros(1)})
    total = ClippedSum(zero, 1.0)
    total.add(shifted(zero, np.array([3.0, 4.0])))
    np.testing.assert_allclose(step(total), [0.6, 0.8])


def test_keys_are_matched_by_name():
    total = ClippedSum(model(), math.inf)
    moved = shifted(model(), np.arange(DIM, dtype=float))
    total.add(dict(reversed(moved.items())))
    np.testing.assert_allclose(step(total), np.arange(DIM), atol=1e-6)


def test_buffers_of_a_reply_are_ignored():
    reply = numpy_dict(model()) | {"steps": np.array([999, 999]), "mask": np.array([False, True])}
    total = ClippedSum(model(), 1.0)
    total.add(record(reply))
    np.testing.assert_array_equal(step(total), 0.0)


def damaged(**fields):
    """Return a whole reply, one array of which is not what it says it is."""
    arrays = model()
    for name, value in fields.items():
        setattr(arrays["w"], name, value)
    return arrays


def npz():
    buffer = io.BytesIO()
    np.savez(buffer, w=np.zeros((2, 3)))
    return buffer.getvalue()


BAD = {
    "missing": lambda: record({"w": np.zeros((2, 3))}),
    "unknown": lambda: record(numpy_dict(model()) | {"more": np.zeros(2)}),
    "renamed": lambda: record({f"x{name}": value for name, value in numpy_dict(model()).items()}),
    "empty": lambda: record({}),
    "shape": lambda: record(numpy_dict(model()) | {"w": np.zeros((3, 2), np.float32)}),
    "broadcast": lambda: record(numpy_dict(model()) | {"w": np.zeros(3, np.float32)}),
    "scalar": lambda: record(numpy_dict(model()) | {"b": np.zeros(1)}),
    "int": lambda: record(numpy_dict(model()) | {"w": np.zeros((2, 3), np.int64)}),
    "bool": lambda: record(numpy_dict(model()) | {"w": np.zeros((2, 3), bool)}),
    "complex": lambda: record(numpy_dict(model()) | {"w": np.zeros((2, 3), complex)}),
    "text": lambda: record(numpy_dict(model()) | {"w": np.full((2, 3), "1.0")}),
    "nan": lambda: shifted(model(), math.nan),
    "one nan": lambda: shifted(model(), {"b": math.nan}),
    "inf": lambda: shifted(model(), {"b": math.inf}),
    "minus inf": lambda: shifted(model(), {"half": -math.inf}),
    "no bytes": lambda: damaged(data=b""),
    "damaged bytes": lambda: damaged(data=b"not an array at all"),
    "cut short": lambda: damaged(data=model()["w"].data[:-3]),
    "zip archive": lambda: damaged(data=b"PK\x03\x04not a zip archive"),
    "npz archive": lambda: damaged(data=npz()),
    "other serialisation": lambda: damaged(stype="pickle"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_reply_is_refused_and_adds_nothing(name):
    """The message is for the report: it names what is wrong and quotes no number."""
    total = ClippedSum(model(), math.inf)
    total.add(shifted(model(), 0.25))
    before = step(total)
    with pytest.raises(ValueError, match=r"\w"):
        total.add(BAD[name]())
    np.testing.assert_array_equal(step(total), before)
    assert total.projected == 0


@pytest.mark.parametrize("value", [1e160, 1e300, -1e308])
def test_update_whose_square_overflows_moves_no_more_than_the_ball(value):
    """It may be projected or refused, but without a warning and never as something infinite."""
    zero = record({"w": np.zeros(3)})
    total = ClippedSum(zero, 2.0)
    try:
        total.add(shifted(zero, value))
    except ValueError:
        pass
    assert np.linalg.norm(step(total)) <= 2.0 * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_reply_may_have_another_floating_dtype(dtype):
    zero = record({"w": np.zeros(3, np.float32)})
    total = ClippedSum(zero, math.inf)
    total.add(record({"w": np.array([0.5, 1.0, 2.0], dtype)}))
    np.testing.assert_array_equal(step(total), [0.5, 1.0, 2.0])


def test_sum_is_formed_in_double_precision():
    """4,096 times 0.001 onto 10,000 in float32 steps: single precision would be off by percents."""
    large = record({"w": np.array([10_000.0], np.float32)})
    reply = shifted(large, 0.001)
    exact = float(reply["w"].numpy()[0]) - 10_000.0
    total = ClippedSum(large, math.inf)
    for _ in range(4096):
        total.add(reply)
    assert release(total).mean_norm == pytest.approx(4096 * exact, rel=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("reply_order", ["C", "F"])
def test_order_in_memory_does_not_matter(order, reply_order):
    sent = np.asarray(np.arange(6.0).reshape(2, 3), order=order)
    update = np.arange(6.0).reshape(2, 3) ** 2
    total = ClippedSum(record({"w": sent}), math.inf)
    total.add(record({"w": np.asarray(sent + update, order=reply_order)}))
    np.testing.assert_array_equal(release(total).arrays["w"].numpy(), sent + update)


def test_arrays_longer_than_a_chunk_are_summed_in_full():
    """150,001 coordinates in two arrays, clipped: the chunks are parts of one norm."""
    rng = np.random.default_rng(0)
    zero = record({"a": np.zeros(100_001), "b": np.zeros((50, 1000))})
    updates = rng.standard_normal((3, 150_001))
    total = ClippedSum(zero, 5.0)
    for update in updates:
        total.add(shifted(zero, update))
    expected = (updates * 5.0 / np.linalg.norm(updates, axis=1, keepdims=True)).sum(axis=0)
    np.testing.assert_allclose(step(total), expected, rtol=1e-9, atol=1e-15)
    assert total.projected == 3


def test_kept_length_is_the_share_that_projection_leaves():
    zero = record({"w": np.zeros(2)})
    total = ClippedSum(zero, 1.0)
    assert total.kept_length == 1.0
    for length in (0.5, 4.0, 0.0):
        total.add(shifted(zero, np.array([length, 0.0])))
    assert total.kept_length == pytest.approx(1.5 / 4.5)


# ------------------------------------------------------------------ the release
def test_sum_is_released_once():
    """A second release of the same sum would be a second charge, whatever its noise."""
    total = ClippedSum(model(), 1.0)
    options = {"divisor": 1.0, "learning_rate": 1.0, "rng": seeded_generator(0)}
    total.release(noise_std=1.0, **options)
    with pytest.raises(RuntimeError, match="has been released"):
        total.release(noise_std=1.0, **options)
    with pytest.raises(RuntimeError, match="has been released"):
        total.add(model())


@pytest.mark.parametrize("learning_rate", [1.0, 0.25])
def test_noise_is_added_before_the_division(learning_rate):
    """The mutants divide first, and forget the learning rate."""
    zero = record({"w": np.zeros(1000)})
    update = np.linspace(-1e-3, 1e-3, 1000)
    total = ClippedSum(zero, math.inf)
    total.add(shifted(zero, update))
    noise = seeded_generator(3).normal(1000)
    released = release(total, 5.0, 0.7, learning_rate, seed=3)

    def check(expected):
        np.testing.assert_allclose(flat(released.arrays), expected, rtol=1e-9, atol=4e-11)

    check(learning_rate * (update + 0.7 * noise) / 5.0)
    assert released.mean_norm == pytest.approx(np.linalg.norm((update + 0.7 * noise) / 5.0))
    assert_detects(check, learning_rate * (update / 5.0 + 0.7 * noise))
    assert_detects(check, 2.0 * learning_rate * (update + 0.7 * noise) / 5.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", BFLOAT16])
def test_a_release_beyond_a_dtype_is_its_largest_number(monkeypatch, dtype):
    """By the noise, and by the learning rate; the mutant, which does not clamp, is infinite."""
    most = npy.largest(dtype)
    kind = np.float32 if dtype == BFLOAT16 else dtype
    numbers = np.array([most, -most, 0.5 * most, 0.0], kind)

    def model_of(values):
        data = npy.write(values, values.shape, dtype)
        return ArrayRecord({"w": Array(dtype, values.shape, "numpy.ndarray", data)})

    def check():
        total = ClippedSum(model_of(np.zeros_like(numbers)), math.inf)
        total.add(model_of(numbers))
        with np.errstate(over="ignore"):
            moved = {
                name: npy.read_array("w", release(total, **options).arrays["w"]).astype(float)
                for name, options in {
                    "rate": {"learning_rate": 3.0},
                    "noise": {"noise_std": 100.0 * most},
                }.items()
            }
        assert moved["rate"].tolist() == [most, -most, most, 0.0]
        assert sorted(set(np.abs(moved["noise"]))) == [most]

    check()
    monkeypatch.setattr(np, "clip", lambda numbers, low, high, out: numbers)
    assert_detects(check)


def released_noise(monkeypatch=None):
    """Return the noise of a release in which no client moved a model of zeros."""
    zero = record({"w": np.zeros(800_000)})
    total = ClippedSum(zero, 1.0)
    total.add(zero)
    if monkeypatch is not None:
        monkeypatch.setattr(np, "rint", lambda numbers, out: numbers)
    return flat(release(total, noise_std=0.7, seed=4).arrays)


def test_noise_does_not_show_in_its_last_digits(monkeypatch):
    """As for devices: cosines of pairs that are multiples of 2^-53 tell noise from another number.

    About 2,500 phases, 5 standard errors of their mean; false alarms: 6e-7. The mutant is not
    rounded.
    """

    def check(noise):
        chunks = noise[: noise.size // 8192 * 8192].reshape(-1, 2, 4096).astype(np.longdouble)
        scores = scores_of_cosines(chunks[:, 0], chunks[:, 1], 53)
        assert abs(np.mean(scores)) < 5 * math.sqrt(0.5 / scores.size)

    noise = released_noise()
    check(noise)
    np.testing.assert_array_equal(noise * 2.0**32, np.rint(noise * 2.0**32))
    assert_detects(check, released_noise(monkeypatch))


@pytest.mark.parametrize("noise_std", [1e-300, 9e-251, -1.0, math.nan, math.inf])
def test_noise_that_would_not_be_added_is_refused(noise_std):
    """Or the bare sum would leave; it is kept, and may be released with another noise."""
    total = ClippedSum(model(), 1.0)
    options = {"divisor": 1.0, "learning_rate": 1.0, "rng": seeded_generator(0)}
    with pytest.raises(ValueError, match="noise_std must be 0 or a finite number >= 1e-250"):
        total.release(noise_std=noise_std, **options)
    total.release(noise_std=1.0, **options)


@pytest.mark.parametrize("noise_std", [1e-250, 1e-30, 1e30])
def test_noise_of_any_size_is_all_there(noise_std):
    zero = record({"w": np.zeros(1000)})
    released = flat(release(ClippedSum(zero, 1.0), noise_std=noise_std, seed=5).arrays)
    expected = noise_std * seeded_generator(5).normal(1000)
    np.testing.assert_allclose(released, expected, rtol=0, atol=noise_std * 2.0**-32)


def test_noise_reaches_every_array():
    total = ClippedSum(model(), 1.0)
    moved = release(total, noise_std=1.0).arrays
    for name in ("w", "b", "half"):
        assert not np.any(moved[name].numpy() == model()[name].numpy())


def test_release_keeps_everything_but_the_numbers():
    total = ClippedSum(model(), math.inf)
    total.add(shifted(model(), np.arange(DIM, dtype=float)))
    moved = release(total).arrays
    assert list(moved) == list(model())
    for name, array in moved.items():
        assert (array.dtype, array.shape) == (model()[name].dtype, model()[name].shape)
    np.testing.assert_allclose(flat(moved), flat(model()) + np.arange(DIM), rtol=1e-3)
    for name in ("steps", "mask"):
        assert moved[name].data == model()[name].data


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)])
def test_released_arrays_are_serialised_as_flower_does(dtype, shape):
    sent = np.ones(shape, dtype)
    total = ClippedSum(record({"w": sent}), math.inf)
    total.add(record({"w": sent * 2}))
    moved = release(total).arrays["w"]
    assert vars(moved) == vars(Array(np.asarray(sent * 2, dtype)))
    assert moved.numpy().dtype == sent.dtype


def test_memory_is_one_sum_and_what_is_written():
    """A float32 model of 8 MB: 16 MB for the sum, then 8 for the new numbers, and no more.

    Serialising the 8 MB happens when the sum is gone. A copy of a reply or of the sum would show.
    """
    size = 2_000_000
    sent = record({"w": np.zeros(size, np.float32)})
    reply = shifted(sent, 1e-3)
    tracemalloc.start()
    try:
        total = ClippedSum(sent, 1.0)
        for _ in range(3):
            total.add(reply)
        folded = tracemalloc.get_traced_memory()[1]
        total.release(divisor=1.0, noise_std=1.0, learning_rate=1.0, rng=seeded_generator(0))
        released = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert folded < 4 * size * 2.2
    assert released < 4 * size * 3.5


# ------------------------------------------------------------------ back to a model
def test_like_model_restores_dtypes_and_buffers():
    total = ClippedSum(model(), 1.0)
    averaged = record(
        {name: array.astype(np.float64) * 1.5 for name, array in numpy_dict(model()).items()}
    )
    restored = total.like_model(averaged)
    for name, array in restored.items():
        assert array.dtype == model()[name].dtype
        assert array.shape == model()[name].shape
    for name in ("steps", "mask"):
        assert restored[name].data == model()[name].data
    np.testing.assert_allclose(flat(restored), 1.5 * flat(model()), rtol=1e-3)


def test_model_is_held_by_value():
    arrays = model()
    total = ClippedSum(arrays, 1.0)
    arrays["w"] = Array(np.full((2, 3), 9.0, np.float32))
    total.add(shifted(model(), 0.1))
    np.testing.assert_allclose(step(total), 0.1, rtol=1e-2)
