"""Drawing at a given angle: whole rows, and rows cut into segments."""

import itertools
import math
import os
import signal
import time
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import special, stats

from flwr_sdp import PrivUnit, direction, privunit, randomness, seeded_generator, separated
from flwr_sdp.direction import draw, sample_chi_squares, segment_norms
from tests.statistics_helpers import (
    DotLaw,
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_mean_close,
    random_unit,
)

DTYPES = [np.float32, np.float64]


def draws(vector, dot, count, *key, length=1.0):
    """Return `count` draws for one vector, as float64."""
    rows = np.tile(vector, (count, 1))
    norms = segment_norms(rows)
    full = (np.full(count, float(value)) for value in (dot, length))
    return draw(rows, norms, *full, seeded_generator(80, *key)).astype(np.float64)


def orthogonal(unit, seed):
    probe = random_unit(len(unit), seed=seed)
    for _ in range(2):
        probe -= (probe @ unit) * unit
        probe /= np.linalg.norm(probe)
    return probe


def check_law(outputs, unit, dot):
    """Check the length, the dot product, and that the rest is uniform in its sphere.

    The rest is seen along three directions, in its fourth moments, which tell a uniform direction
    from one with the right covariance only, and in its share of the first 4 or 10 coordinates,
    without what the vector's own part there takes: beta laws.
    """
    dim = len(unit)
    np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 1.0, rtol=2e-5)
    np.testing.assert_allclose(outputs @ unit, dot, atol=2e-5)
    rest = (outputs - dot * unit) / math.sqrt(1.0 - dot * dot)
    for seed in range(1, 4):
        assert_follows(rest @ orthogonal(unit, seed), DotLaw(dim - 1).uniform_cdf)
    first = orthogonal(unit, 5)
    second = orthogonal(unit, 6)
    second -= (second @ first) * first
    second /= np.linalg.norm(second)
    squares = (rest @ first) ** 2 * (rest @ second) ** 2
    assert_mean_close(squares, 1.0 / ((dim - 1) * (dim + 1)))
    for some in (4, 10):
        part, own = rest[:, :some], unit[:some]
        if some < dim and own.any():
            part = part - np.outer(part @ own, own) / (own @ own)
            share = stats.beta((some - 1) / 2, (dim - some) / 2)
            assert_follows(np.sum(part**2, axis=1), share.cdf)


# (dim, what is zero in the vector): two segments and more, even and odd, zero and tiny ones.
VECTORS = {
    "one segment": (6, None),
    "two segments": (7, None),
    "three segments": (16, None),
    "four segments, uneven": (23, None),
    "a zero segment": (20, slice(0, 6)),
    "one coordinate": (20, slice(1, 20)),
}


def vector_of(name, dtype=np.float64):
    dim, zero = VECTORS[name]
    vector = random_unit(dim)
    if zero is not None:
        vector[zero] = 0.0
    return (vector / np.linalg.norm(vector)).astype(dtype)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VECTORS)
def test_segments_have_the_law_of_the_whole(name, dtype):
    """1,500 draws: three to five KS tests, and a mean of fourth powers; false alarms: 3.4e-6."""
    vector = vector_of(name, dtype)
    unit = vector.astype(np.float64) / np.linalg.norm(vector.astype(np.float64))
    outputs = draws(vector, 0.3, 1500, name, dtype.__name__)
    check_law(outputs, unit, 0.3)


@pytest.mark.usefixtures("short_blocks")
def test_mutants_of_the_segments(monkeypatch):
    """Segments of fixed length, or whose components along the vector are lost, are noticed."""
    vector = vector_of("three segments")

    def outputs():
        return draws(vector, 0.3, 1500, "mutant")

    check_law(outputs(), vector, 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(direction, "sample_chi_squares", lambda freedom, rng: 1.0 * freedom)
        assert_detects(check_law, outputs(), vector, 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(direction, "sample_chi_squares", lambda freedom, rng: 1e-9 * freedom)
        assert_detects(check_law, outputs(), vector, 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(
            direction.KeystreamGenerator, "normal", lambda self, n, dtype=float: np.zeros(n)
        )
        patch.setattr(
            direction, "sample_chi_squares", lambda freedom, rng: np.full(len(freedom), 4.0)
        )
        assert_detects(check_law, outputs(), vector, 0.3)


def draws_of(mechanism, rows, length, *key):
    """Return a draw for each row, of its mechanism's dot products, as float64."""
    lengths = np.full(len(rows), length)
    rng = seeded_generator(84, *key)
    return mechanism.draw(rows, segment_norms(rows), lengths, rng).astype(np.float64)


def check_uniform(outputs):
    """Check that directions are uniform: three cosines, one with the last axis."""
    dim = outputs.shape[1]
    for probe in (np.eye(dim)[-1], random_unit(dim), random_unit(dim, seed=1)):
        assert_follows(outputs @ probe, DotLaw(dim).uniform_cdf)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 16, 23])
def test_zero_vector_gets_a_random_direction(dim, dtype):
    """1,500 draws, of negative length: KS tests of three cosines; false alarms: 1.7e-6 a case."""
    rows = np.zeros((1500, dim), dtype)
    outputs = draws_of(PrivUnit.from_epsilon(dim, 3.0), rows, -2.5, "zero", dim)
    np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 2.5, rtol=2e-5)
    check_uniform(outputs / 2.5)
    assert_detects(check_uniform, np.abs(outputs / 2.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_among_others(dtype, monkeypatch):
    """1,500 pairs of rows in a block, the first of each zero; false alarms: 2e-6 a case.

    The last axis stands in the place of a zero row, at any angle. The mutants lose it, have the law
    of the other rows, and have their angles.
    """
    dim, count = 6, 1500
    vector = random_unit(dim).astype(dtype)
    rows = np.tile(np.stack([np.zeros(dim, dtype), vector]), (count, 1))
    mechanism = PrivUnit.from_epsilon(dim, 3.0)
    outputs = draws_of(mechanism, rows, 2.0, "among") / 2.0
    np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 1.0, rtol=2e-5)
    law = DotLaw(dim, mechanism.cap_threshold, mechanism.epsilon_flip)
    assert_mean_close(outputs[1::2] @ vector.astype(np.float64), law.mean)
    check_uniform(outputs[::2])
    assert_detects(check_uniform, outputs[::2] * (np.arange(dim) < dim - 1))
    assert_detects(check_uniform, outputs[1::2])
    monkeypatch.setattr(
        privunit, "sample_dots_anywhere", lambda dim, count, rng: mechanism._dots(count, rng)
    )
    assert_detects(check_uniform, draws_of(mechanism, rows, 2.0, "among")[::2] / 2.0)


@pytest.mark.parametrize("norm", [1e-20, 1e-10, 1e-3, 1e3, 1e12, 1e30])
@pytest.mark.parametrize("length", [0.0, 1e-20, 1e-3, 1e3, 1e20])
@pytest.mark.parametrize("dim", [3, 400, 70_001])
def test_norms_and_lengths_of_any_size(dim, length, norm):
    """Their products and quotients leave float32."""
    unit = random_unit(dim)
    vector = (norm * unit).astype(np.float32)
    output = draws(vector, 0.3, 1, "size", dim, length=length)[0]
    assert np.linalg.norm(output) == pytest.approx(length, rel=2e-5)
    assert output @ unit == pytest.approx(0.3 * length, rel=1e-4)


SMALL = {
    np.float32: [10.0**-exponent for exponent in range(0, 46)],
    np.float64: [10.0**-exponent for exponent in (0, 1, 9, 99, *range(280, 324))],
}


def check_small_segments(dim, segment, dtype, smalls, count):
    """Check that a vector has its law, as long as 1 and as short as it is drawn for as it is."""
    unit = random_unit(dim)
    for small in smalls:
        for size in (1.0, 2.0 * separated._MEASURED[np.dtype(dtype).name][0]):
            vector = size * unit
            vector[segment] *= small / np.linalg.norm(unit[segment])
            vector = vector.astype(dtype)
            outputs = draws(vector, 0.3, count, "small", f"{small:g}")
            np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 1.0, rtol=2e-5)
            wide = vector.astype(np.longdouble)
            dots = outputs @ (wide / np.sqrt(wide @ wide)).astype(np.float64)
            np.testing.assert_allclose(dots, 0.3, rtol=1e-4)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_segment_may_have_any_norm(dtype):
    """Divided by a small one, lengths are no numbers: lengths are counted in units of the grid."""
    check_small_segments(16, slice(0, 4), dtype, SMALL[dtype], 20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_segment_may_have_any_norm_in_many_dimensions(dtype):
    """Where the grid is finer."""
    smalls = (1e-27, 1e-29, 1e-33, 3e-37) if dtype is np.float32 else (1e-289, 1e-296, 3e-300)
    check_small_segments(600_000, slice(0, 300_000), dtype, smalls, 1)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("dim", [5, 16])
def test_negative_lengths_turn_what_lies_along_the_vector_round(dim):
    """What lies across is as likely as its opposite, and is not turned."""
    vector, grid = random_unit(dim), 2.0**-39
    forth, back = (draws(vector, 0.3, 50, "length", length=sign) for sign in (2.0, -2.0))
    np.testing.assert_allclose((forth - back) / 2, 0.6 * np.tile(vector, (50, 1)), atol=grid)
    np.testing.assert_allclose(((forth + back) / 2) @ vector, 0.0, atol=2 * grid)
    np.testing.assert_allclose(np.linalg.norm(back, axis=1), 2.0, atol=2 * grid)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 3, 10, 64, 65, 5000])
def test_whole_rows(dim, dtype):
    """1,000 draws on either side of the dimension where the method changes; false alarms: 6e-7.

    At dim 2 there are two directions. The mutant is folded in half.
    """
    vector = random_unit(dim).astype(dtype)
    unit = vector.astype(np.float64) / np.linalg.norm(vector.astype(np.float64))
    outputs = draws(vector, 0.3, 1000, "whole", dim, dtype.__name__)
    np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 1.0, rtol=2e-5)
    np.testing.assert_allclose(outputs @ unit, 0.3, atol=2e-5)
    cosines = outputs @ orthogonal(unit, 1) / math.sqrt(1 - 0.09)
    if dim == 2:
        assert_frequency(np.count_nonzero(cosines > 0), 1000, 0.5)
        return
    assert_follows(cosines, DotLaw(dim - 1).uniform_cdf)
    assert_detects(assert_follows, np.abs(cosines), DotLaw(dim - 1).uniform_cdf)


@pytest.mark.parametrize("last", [-1.0, -0.6, -1e-12, 0.0, 1e-12, 0.6, 1.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_wherever_the_last_axis_lies(rows, last):
    """The reflection takes the last axis to the vector, or its opposite, and is well conditioned.

    1,000 draws: KS test of a cosine; false alarms: 6e-7. The mutant is folded in half.
    """
    vector = np.array([math.sqrt(1.0 - last * last), 0.0, 0.0, 0.0, last])
    outputs = np.concatenate(
        [draws(vector, 0.3, rows, "axis", repr(last), i) for i in range(1000 // rows)]
    )
    np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 1.0, rtol=4e-12)
    np.testing.assert_allclose(outputs @ vector, 0.3, atol=4e-12)
    cosines = outputs @ orthogonal(vector, 1) / math.sqrt(1 - 0.09)
    assert_follows(cosines, DotLaw(4).uniform_cdf)
    assert_detects(assert_follows, np.abs(cosines), DotLaw(4).uniform_cdf)


def test_noise_of_zeros_is_drawn_again(monkeypatch):
    """Rounding may leave a radius of 0, and with 2 dimensions all of them: no direction."""
    rows = np.array([[0.0, 2.0], [0.0, 2.0]])
    fill, calls = direction.KeystreamGenerator.fill_normal, []

    def fill_after_zeros(self, out):
        calls.append(1)
        fill(self, out)
        if len(calls) == 1:
            out[:] = 0.0

    monkeypatch.setattr(direction.KeystreamGenerator, "fill_normal", fill_after_zeros)
    one = np.ones(len(rows))
    out = draw(rows, segment_norms(rows), 0.6 * one, one, seeded_generator(1))
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1.0, rtol=1e-12)
    assert len(calls) == 2


# ------------------------------------------------------------------ at their real size
LARGE = 3 * randomness.BLOCK + 1001


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_vectors(dtype):
    """The length, the dot product and the share of each segment of one draw, 4 segments.

    Shares have a standard deviation of 0.3 %; false alarms: 6e-5 for each of them.
    """
    vector = random_unit(LARGE).astype(dtype)
    vector[: LARGE // 3] *= 10.0  # uneven segments
    vector /= np.linalg.norm(vector)
    exact = 1e-6 if dtype is np.float32 else 1e-12
    output = draws(vector, 0.01, 1, "large")[0]
    unit = vector.astype(np.float64)
    assert np.linalg.norm(output) == pytest.approx(1.0, rel=exact)
    assert output @ unit == pytest.approx(0.01, abs=exact)
    rest = output - 0.01 * unit
    for part in np.array_split(rest, 4):
        deviation = math.sqrt(2.0 * part.size * (1 - part.size / LARGE)) / LARGE
        assert abs(part @ part - part.size / LARGE) < 4 * deviation
    standard = rest * math.sqrt(LARGE)
    assert_follows(standard[::7], special.ndtr)
    assert_detects(assert_follows, 1.05 * standard[::7], special.ndtr)


def test_output_does_not_depend_on_the_threads():
    mechanism = PrivUnit.from_epsilon(7 * randomness.BLOCK, 100.0)
    unit = random_unit(mechanism.dim, dtype=np.float32)
    one, two, many = (
        mechanism.privatize(unit, seeded_generator(81), threads=threads) for threads in (1, 2, 7)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, many)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_threads_of_its_own():
    """Those of its parent do not live on in it, and work that is given to them is never done."""
    mechanism = PrivUnit.from_epsilon(2 * randomness.BLOCK, 100.0)
    unit = random_unit(mechanism.dim, dtype=np.float32)
    expected = mechanism.privatize(unit, seeded_generator(86), threads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)  # or it would wait for ever
        output = mechanism.privatize(unit, seeded_generator(86), threads=2)
        os._exit(0 if np.array_equal(output, expected) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_memory_is_the_output_and_what_a_thread_keeps(dtype, count):
    """Neither the noise nor the input is there a second time; a copy would be 12 blocks."""
    mechanism = PrivUnit.from_epsilon(12 * randomness.BLOCK // count, 100.0)
    unit = np.tile(random_unit(mechanism.dim, dtype=dtype), (count, 1))
    randomness._local.memory = None
    tracemalloc.start()
    try:
        output = mechanism.privatize(unit, seeded_generator(87))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    beyond = peak - output.nbytes
    assert beyond < (7 if dtype is np.float32 and count == 1 else 10) * 2**20


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_bad_threads(threads):
    with pytest.raises(ValueError, match="threads must be an integer >= 1"):
        PrivUnit.from_epsilon(3, 1.0).privatize(random_unit(3), threads=threads)


def test_an_error_in_a_thread_is_raised_when_all_have_stopped(monkeypatch):
    """Otherwise some would still read the caller's array, and write, after the call.

    None begins another segment.
    """
    started, finished = [], []

    def draw_row(out, row, aim, grid, rng):
        started.append(1)
        if len(started) == 1:
            raise RuntimeError("no keystream")
        time.sleep(0.05)
        finished.append(1)

    unit = random_unit(8 * randomness.BLOCK, dtype=np.float32)
    mechanism = PrivUnit.from_epsilon(unit.size, 100.0)
    monkeypatch.setattr(direction, "_draw_row", draw_row)
    for threads in (1, 2, 3):
        started.clear()
        finished.clear()
        with pytest.raises(RuntimeError, match="no keystream"):
            mechanism.privatize(unit, seeded_generator(82), threads=threads)
        assert len(started) == len(finished) + 1 <= threads


def test_a_thread_that_cannot_start_leaves_nothing_at_work(monkeypatch):
    """The one that has started may finish its segment, and begins no other."""
    drawn = []

    class Pool(direction.ThreadPoolExecutor):
        submitted = 0

        def submit(self, work):
            self.submitted += 1
            if self.submitted == 2:
                raise RuntimeError("can't start new thread")
            return super().submit(work)

    def draw_row(out, row, aim, grid, rng):
        time.sleep(0.05)
        drawn.append(1)

    unit = random_unit(8 * randomness.BLOCK, dtype=np.float32)
    norms, one = segment_norms(unit[None]), np.ones(1)
    with Pool(2) as pool:
        monkeypatch.setattr(direction, "_pool", lambda process, threads: pool)
        monkeypatch.setattr(direction, "_draw_row", draw_row)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            draw(unit[None], norms, 0.5 * one, one, seeded_generator(85), threads=3)
        count = len(drawn)
    assert count == len(drawn) <= 1


@pytest.mark.parametrize("dim", [10, 30])
def test_order_of_the_rows_in_memory_does_not_matter(dim):
    """Noise that went into a copy would leave the output to what the memory held."""
    rows = np.stack([random_unit(dim, seed=i) for i in range(5)])
    one = np.ones(5)
    outputs = [
        draw(given, segment_norms(rows), 0.3 * one, one, seeded_generator(83))
        for given in (rows, np.asfortranarray(rows))
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-12)


# ------------------------------------------------------------------ norms
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 4095, 4096, 4097, 9000, LARGE])
def test_segment_norms(dim, dtype):
    """A constant vector is where a plain float32 sum loses most digits."""
    rows = np.stack([random_unit(dim), np.full(dim, 0.1)]).astype(dtype)
    norms = segment_norms(rows)
    expected = np.linalg.norm(rows.astype(np.float64), axis=1)
    rel = 2e-6 if dtype is np.float32 else 1e-14
    np.testing.assert_allclose(np.sqrt(np.sum(norms**2, axis=1)), expected, rtol=rel)
    assert norms.shape == (2, len(direction._bounds(dim)))
    np.testing.assert_array_equal(norms, segment_norms(rows, threads=2))


def test_segments_cover_the_vector_at_even_places():
    for dim in (1, 2, 524_288, 524_289, 1_048_577, 3_274_634, 10**8 + 1):
        bounds = direction._bounds(dim)
        assert bounds[0][0] == 0
        assert bounds[-1][1] == dim
        assert all(low % 2 == 0 for low, _ in bounds)
        assert all(first[1] == second[0] for first, second in itertools.pairwise(bounds))
        sizes = [high - low for low, high in bounds]
        assert max(sizes) <= randomness.BLOCK + 1
        assert max(sizes) - min(sizes) <= 3
        assert len(sizes) == 1 or len(sizes) % 2 == 0


# ------------------------------------------------------------------ chi squares
@pytest.mark.parametrize("freedom", [2.0, 3.0, 10.0, 65_535.0])
def test_chi_squares(freedom):
    """KS test of 2,000 draws, their mean and variance; false alarms: 2e-6 a case.

    The mutants are a fifth of a standard deviation off, and a fifth too wide.
    """
    samples = sample_chi_squares(np.full(2000, freedom), seeded_generator(6, str(freedom)))

    def check(samples):
        assert_follows(samples, lambda x: special.gammainc(freedom / 2, x / 2))
        assert_mean_close(samples, freedom, variance=2.0 * freedom)
        fourth = 12.0 * freedom * (freedom + 4.0)
        assert_mean_close(
            (samples - freedom) ** 2, 2.0 * freedom, variance=fourth - 4.0 * freedom**2
        )

    check(samples)
    assert_detects(check, samples + 0.2 * np.sqrt(2.0 * freedom))
    assert_detects(check, freedom + 1.2 * (samples - freedom))


def test_chi_squares_of_different_freedom():
    freedom = np.array([2.0, 50.0, 1e6])
    samples = np.stack([sample_chi_squares(freedom, seeded_generator(7, i)) for i in range(400)])
    assert_mean_close(samples, freedom, variance=2.0 * freedom)
    assert sample_chi_squares(freedom[:0], seeded_generator(7)).shape == (0,)
