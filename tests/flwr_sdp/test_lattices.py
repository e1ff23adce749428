"""What the last digits of an output tell an onlooker.

Normals in floating point lie on lattices. An output has the bare noise in it where the input is
0, and whoever takes a guess of the input away from it, and finds a lattice in what is left, has
guessed right, whatever epsilon is. Rounding the output to a grid hides that. The mutants are given
away in every output, at an epsilon of 0.1, which allows 52.5 %.
"""

import math

import numpy as np
import pytest

from flwr_sdp import (
    PrivUnit,
    SeparatedBudget,
    SeparatedMechanism,
    direction,
    randomness,
    seeded_generator,
)
from flwr_sdp.direction import grid_of
from tests.docs import port
from tests.statistics_helpers import random_unit, scores_of_cosines

DTYPES = [np.float32, np.float64]
BITS = {np.float32: 24, np.float64: 53}
DIM = 100_001


def unrounded(patch):
    """Do not round outputs any more."""
    patch.setattr(direction, "_round", lambda out, grid: np.multiply(out, grid, out))


def in_float32(patch):
    """Compute in the dtype of the rows, however short they are."""
    patch.setattr(direction, "noise_dtype", lambda dim, dtype: np.dtype(dtype))


def coarse_near_zero(patch):
    """Take u as a number of the type, and not 1 - u, where the radius is near 0."""
    for form in randomness._FORMATS.values():
        patch.setattr(form, "near_one", np.array(form.size + 1, form.word))


# ------------------------------------------------------------------ the attacks
def pairs_left(output, guess):
    """Take a guess away from an output, and return the pairs of normals, up to a common length."""
    z, u = output.astype(np.longdouble), guess.astype(np.longdouble)
    u /= np.sqrt(np.sum(u * u))
    along, sign = np.sum(z * u), np.copysign(1, u[-1])
    flipped = (along * u[-1] - z[-1]) / (u[-1] + sign)
    noise = z - (along - flipped) * u
    half = len(u) // 2
    return noise[:half], noise[half : 2 * half]


def cosines(output, guess):
    """Score the cosines of what a guess leaves."""
    return scores_of_cosines(*pairs_left(output, guess), BITS[output.dtype.type])


def radii(output, guess):
    """Score whether 1 - u of the 16 smallest radii are multiples of the last place of 1.

    The length of all the noise, which says how long they are, is tried out.
    """
    x, y = pairs_left(output, guess)
    squares = (x * x + y * y).astype(np.float64)
    halves = np.sort(squares)[:16] / np.mean(squares)
    best = np.full(16, -1.0)
    for stretch in 1.0 + np.arange(-0.015, 0.015, 1e-6):
        scores = np.cos(2 * np.pi * -np.expm1(-halves * stretch) * 2 ** BITS[output.dtype.type])
        best = max(best, scores, key=np.mean)
    return best


def scores(attack, mechanism, dtype):
    """Return the scores of the inputs of 6 outputs."""
    found = []
    for i in range(6):
        unit = random_unit(mechanism.dim, seed=i, dtype=dtype)
        found.append(np.mean(attack(mechanism.privatize(unit, seeded_generator(101, i)), unit)))
    return np.array(found)


MECHANISMS = [
    PrivUnit.from_epsilon(DIM, 0.1),
    SeparatedMechanism.from_budget(
        DIM, SeparatedBudget(epsilon_direction=0.1, epsilon_magnitude=0.1), 1.0
    ),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cosines_are_hidden(mechanism, dtype, monkeypatch):
    """About 318 phases of each output, 5 standard errors of their mean; false alarms: 3e-6.

    The mutant's mean is above 0.95.
    """
    assert np.abs(scores(cosines, mechanism, dtype)).max() < 5.0 * math.sqrt(0.5 / 318)
    unrounded(monkeypatch)
    assert scores(cosines, mechanism, dtype).min() > 0.95


def test_radii_are_hidden(monkeypatch):
    """Radii near 0 are as many as their words, and the grid hides them besides: either is enough.

    The best of 30,000 means of 16 phases is below 0.9 but for two in 100,000 outputs; with neither
    it is above 0.95 in all of them.
    """
    given = radii, MECHANISMS[0], np.float32
    assert scores(*given).max() < 0.9
    with monkeypatch.context() as patch:
        coarse_near_zero(patch)
        assert scores(*given).max() < 0.9
    unrounded(monkeypatch)
    assert scores(*given).max() < 0.9
    coarse_near_zero(monkeypatch)
    assert scores(*given).min() > 0.95


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_the_input_is_zero_is_hidden(dtype, monkeypatch):
    """What a pair of coordinates shows by itself: about 318 phases of each of 6 outputs.

    The second half of the pairs is 0 in the input. False alarms: 7e-6. The mutant shows a lattice
    there and none in the first half, in all 6.
    """
    half, limit = DIM // 2, 5.0 * math.sqrt(0.5 / 159)
    places = np.arange(half) < half // 2
    support = np.concatenate([places, places, [True]])

    def means():
        found = []
        for i in range(6):
            unit = random_unit(DIM, seed=i) * support
            unit = (unit / np.linalg.norm(unit)).astype(dtype)
            output = MECHANISMS[0].privatize(unit, seeded_generator(105, i))
            x, y = (output[part].astype(np.longdouble) for part in (slice(half), slice(half, -1)))
            found.append(
                [np.mean(scores_of_cosines(x[p], y[p], BITS[dtype])) for p in (places, ~places)]
            )
        return np.abs(found)

    assert means().max() < limit
    unrounded(monkeypatch)
    assert means()[:, 0].max() < limit
    assert means()[:, 1].min() > 0.95


# ------------------------------------------------------------------ the grid
def on_grid(vectors, lengths):
    steps = vectors.astype(np.float64) / grid_of(lengths, vectors.shape[1], vectors.dtype)[:, None]
    return bool(np.all(steps == np.rint(steps)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 3, 6, 7, 40])
@pytest.mark.parametrize("blocks", ["long", "short"])
def test_every_output_is_on_the_grid(dim, blocks, dtype, request, monkeypatch):
    """Rows, batches and segments; zero vectors and lengths of any size and sign among them."""
    if blocks == "short":
        request.getfixturevalue("short_blocks")
    lengths = np.array([1.0, -3.7, 0.0, 1e-9, 2.0**20, 2.0, 1e-3])
    rows = np.stack([random_unit(dim, seed=i) for i in range(7)]).astype(dtype)
    rows[5] = 0.0
    rows[6, : dim // 2] = 0.0
    norms = direction.segment_norms(rows)

    def draws():
        given = (rows, norms, np.full(7, 0.3), lengths)
        batch = direction.draw(*given, seeded_generator(102, dim))
        singles = [
            direction.draw(*(part[i : i + 1] for part in given), seeded_generator(103, dim))
            for i in range(7)
        ]
        return batch, np.concatenate(singles)

    rounded = draws()
    unrounded(monkeypatch)
    for found, real in zip(rounded, draws(), strict=True):
        assert on_grid(found, lengths)
        assert not on_grid(real, lengths)
        wrong = np.abs(found.astype(np.float64) - real).max(axis=1)
        assert np.all(wrong <= grid_of(lengths, dim, dtype) / 2)


@pytest.mark.parametrize(
    ("dim", "more"),
    [(2, 0), (65_536, 0), (65_537, 1), (2**18, 1), (2**18 + 1, 2), (3_274_634, 3), (10**8, 6)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_size_of_the_grid(dtype, dim, more):
    """A power of two that depends on the length and the dimension alone.

    It is at least the type's smallest number, and the usual coordinate is 256 of it or more.
    """
    bits = more + (17 if dtype is np.float32 else 40)
    for length in (1.0, 1.5, 1.999, 3e-5, -7e11):
        (grid,) = grid_of(np.array([length]), dim, dtype)
        assert math.frexp(grid)[0] == 0.5
        assert 2.0**-bits < grid / abs(length) <= 2.0 ** (1 - bits)
        assert grid <= 2.0**-8 * abs(length) / math.sqrt(dim)
    tiny = np.array([0.0, float(np.finfo(dtype).smallest_subnormal)])
    assert np.all(grid_of(tiny, dim, dtype) >= tiny[1])


@pytest.mark.parametrize(("dim", "count"), [(2, 100), (3, 100), (16, 100), (500, 5), (20_000, 1)])
def test_arithmetic_is_finer_than_the_grid(dim, count, monkeypatch):
    """What arithmetic adds to the real sum of noise and input, in steps of the grid, of a report.

    The sum of errors over all coordinates is how many of them are rounded differently on average.
    The same words in a port that shares no code stand for real numbers. In the mutant, which
    computes in float32, it is 0.4 at 20,000 coordinates.
    """
    mechanism, unit = PrivUnit.from_epsilon(dim, 1.0), random_unit(dim, dtype=np.float32)
    (grid,) = grid_of(np.array([mechanism.scale]), dim, np.float32)
    monkeypatch.setattr(port, "on_grid", lambda numbers, grid: numbers)

    def errors():
        found = []
        for i in range(count):
            key, seen = seeded_generator(106, dim, i).bits(4).tobytes(), []
            monkeypatch.setattr(direction, "_round", lambda out, step, seen=seen: seen.append(+out))
            mechanism.privatize(unit, randomness.KeystreamGenerator(key, secure=False))
            case = {
                "epsilon_flip": mechanism.epsilon_flip,
                "cap_threshold": mechanism.cap_threshold,
                "wide_cap": mechanism.epsilon_cap < math.log(0.85 / 0.15),
                "noise_bits": 8 * np.dtype(direction.noise_dtype(dim, np.float32)).itemsize,
                "bits": 32,
                "block": randomness.BLOCK,
            }
            exact = port.priv_unit(port.Stream(key), case, unit.tolist(), mechanism.scale)
            found.append(np.abs(seen[0] - np.array(exact) / grid).sum())
        return np.array(found)

    assert errors().max() < 1e-7
    in_float32(monkeypatch)
    assert np.median(errors()) > 1e-5 * dim


def test_every_output_comes_from_other_inputs_too(monkeypatch):
    """In two dimensions: 100,000 float32 outputs of one input, all of which another one has.

    Each is on the grid where an arc of the circle meets its square; the dot product of the middle
    of the arc with the other input leads there, for one sign of the noise. Of the outputs of the
    mutant, which computes in float32, some do not come out so.
    """
    mechanism = PrivUnit.from_epsilon(2, 1.0)
    first, second = (np.array([math.cos(x), math.sin(x)], np.float32) for x in (0.3, 1.1))
    angle = math.atan2(float(second[1]), float(second[0]))

    def unreached():
        outputs = mechanism.privatize(np.tile(first, (100_000, 1)), seeded_generator(108))
        z, length = outputs.astype(np.float64), mechanism.scale
        half = float(grid_of(np.array([length]), 2, np.float32)[0]) / 2
        at = np.arctan2(z[:, 1], z[:, 0])
        x, y = np.clip((z.T[:, None] + [[-half], [half]]) / length, -1, 1)
        # Both sides of the square in x, and both in y, cut off an arc around the output.
        from_x = np.sort(np.copysign(np.arccos(x), at), axis=0)
        rises = np.where(z[:, 0] > 0, np.arcsin(y), np.copysign(np.pi, at) - np.arcsin(y))
        from_y = np.sort(rises, axis=0)
        middle = (np.maximum(from_x[0], from_y[0]) + np.minimum(from_x[1], from_y[1])) / 2
        dots, left = np.cos(middle - angle), np.arange(100_000)
        for i in range(20):
            rows = np.tile(second, (left.size, 1))
            lengths = np.full(left.size, length)
            norms = direction.segment_norms(rows)
            found = direction.draw(rows, norms, dots[left], lengths, seeded_generator(109, i))
            left = left[(found != outputs[left]).any(axis=1)]
        return left.size

    assert unreached() == 0
    in_float32(monkeypatch)
    assert unreached() >= 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_without_length_have_no_signs(dtype):
    """Where nothing is left of the noise, a zero would have the sign of the update."""
    mechanism, rows = PrivUnit.from_epsilon(1000, 0.1), np.tile(random_unit(1000), (3, 1))
    lengths, rows = np.array([0.0, 1e-46, -1e-46]), rows.astype(dtype)
    outputs = mechanism.draw(rows, direction.segment_norms(rows), lengths, seeded_generator(107))
    assert (outputs == 0.0).any()
    assert not np.signbit(outputs[outputs == 0.0]).any()


def test_rounding_leaves_the_norm():
    """What it adds to the square of the norm is a twelfth of that of the grid a coordinate."""
    mechanism = PrivUnit.from_epsilon(3_000_000, 100.0)
    unit = random_unit(mechanism.dim, dtype=np.float32)
    output = mechanism.privatize(unit, seeded_generator(104)).astype(np.float64)
    assert np.linalg.norm(output) == pytest.approx(mechanism.scale, rel=2e-6)
