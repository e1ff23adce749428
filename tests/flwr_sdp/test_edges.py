"""What a constructor admits has outputs and errors that are numbers, to the ends of the floats.

Or it is refused, by the name of a field. Around a million settings would be too many: a grid of
them, the ends of every range included.
"""

import itertools
import math

import numpy as np
import pytest

from flwr_sdp import (
    PrivUnit,
    PrivUnitInfinity,
    ScalarDP,
    ScalarRelDP,
    SeparatedMechanism,
    seeded_generator,
)
from flwr_sdp.arrays import check_room

EPSILONS = (5e-324, 1e-300, 1e-100, 1e-12, 1e-3, 1.0, 40.0, 83.0, 136.0, 710.0, 1e4, 1e300)
NORMS = (5e-324, 1e-310, 2e-300, 1e-160, 1e-40, 1.0, 1e40, 1e100, 1e153, 1e160, 1e300, 1.7e308)
RATIOS = (1.0 + 2.0**-52, 1.0 + 1e-9, 1.5, 2.0, 1e100, 1e300)
FIELDS = ("epsilon", "max_norm", "num_bins", "accuracy", "ratio")


def scalars():
    """Return ways to make magnitudes."""
    for epsilon, most in itertools.product(EPSILONS, NORMS):
        yield lambda e=epsilon, m=most: ScalarDP.from_epsilon(e, m)
        yield lambda e=epsilon, m=most: ScalarRelDP.from_epsilon(e, m)
        for bins in (1, 2, 29, 2**40):
            yield lambda e=epsilon, m=most, k=bins: ScalarDP(epsilon=e, num_bins=k, max_norm=m)
        for share, ratio in itertools.product((1e-300, 1e-9, 0.3, 1.0, 50.0), RATIOS):
            yield lambda e=epsilon, m=most, a=share * most, r=ratio: ScalarRelDP.from_epsilon(
                e, m, accuracy=a, ratio=r
            )
        for ratio, bins in itertools.product(RATIOS, (1, 3, 2**40)):  # far beyond max_norm too
            yield lambda e=epsilon, m=most, r=ratio, k=bins: ScalarRelDP(
                epsilon=e, num_bins=k, accuracy=m, ratio=r, max_norm=m
            )


def made(make):
    """Return the mechanism, or None where it is refused by name."""
    try:
        return make()
    except ValueError as refused:
        text = str(refused)
    assert text.startswith(FIELDS)
    return None


ADMITTED = [mechanism for mechanism in map(made, scalars()) if mechanism is not None]


def test_magnitudes_are_numbers():
    """Outputs within their stated ends, and variances, at 0, in the range and beyond it."""
    rng = seeded_generator(110)
    assert len(ADMITTED) > 2000
    for mechanism in ADMITTED:
        most, longest = mechanism.max_norm, mechanism.max_output
        assert 0.0 < longest
        assert longest * longest < math.inf, mechanism
        assert mechanism.step > 0.0
        assert math.isfinite(mechanism.offset)
        numbers = np.array([0.0, most * 1e-9, most / 3.0, most, 1e308, -1.0])
        outputs = mechanism.privatize(numbers, rng)
        assert np.all(np.abs(outputs) <= longest * (1.0 + 1e-9)), mechanism
        variances = np.array([mechanism.variance(float(r)) for r in numbers])
        assert np.all(variances >= 0.0), mechanism
        assert np.all(variances <= longest * longest * (1.0 + 1e-9)), mechanism


@pytest.mark.parametrize("kind", [ScalarDP, ScalarRelDP])
@pytest.mark.parametrize("power", [-900, -512, -100, 100, 500])
def test_magnitudes_scale_with_their_range(kind, power):
    """In units of the range nothing changes: powers of two are exact."""
    for epsilon in (0.5, 8.0, 40.0):
        one, other = (kind.from_epsilon(epsilon, 2.0**p) for p in (0, power))
        for share in (0.0, 1e-4, 0.3, 1.0):
            r = math.ldexp(share, power)
            close = pytest.approx(math.ldexp(one.deviation(share), power), rel=1e-12, abs=0)
            assert other.deviation(r) == close
            assert other.variance(r) == pytest.approx(other.deviation(r) ** 2, rel=1e-12)
            if power > -512:  # whose squares are no numbers
                assert other.variance(r) > 0.0
        draws = [
            m.privatize(np.full(99, 0.3 * m.max_norm), seeded_generator(111)) for m in (one, other)
        ]
        np.testing.assert_allclose(np.ldexp(draws[1], -power), draws[0], rtol=1e-12)


def test_products_are_numbers():
    """A report of what is admitted carries something, and its expected error is a number."""
    refused, admitted = 0, 0
    for epsilon in (1e-120, 1e-3, 10.0, 1e4):
        direction = PrivUnit.from_epsilon(5, epsilon)
        for magnitude in ADMITTED[::7]:
            mechanism = made(
                lambda d=direction, m=magnitude: SeparatedMechanism(direction=d, magnitude=m)
            )
            if mechanism is None:
                refused += 1
                continue
            admitted += 1
            longest = mechanism.max_output_norm
            assert 0.0 < longest
            assert longest * longest < math.inf
            for share in (0.0, 0.3, 1.0, 1.5):
                norm = share * magnitude.max_norm
                error = mechanism.expected_squared_error(norm)
                assert 0.0 <= error <= 2.0 * (longest + norm) ** 2
    assert min(refused, admitted) > 100


def test_directions_in_the_cube_are_numbers():
    admitted = 0
    for dim, epsilon in itertools.product((1, 2, 3, 64, 999, 2**40 - 1), EPSILONS):
        mechanism = made(lambda d=dim, e=epsilon: PrivUnitInfinity.from_epsilon(d, e))
        if mechanism is None:
            continue
        admitted += 1
        assert mechanism.scale * mechanism.scale * dim < math.inf
        if dim < 1000:
            assert math.isfinite(mechanism.expected_squared_error(np.zeros(dim)))
            assert np.isfinite(mechanism.privatize(np.zeros(dim), seeded_generator(112))).all()
    assert admitted > 40


# ------------------------------------------------------------------ a report that carries nothing
@pytest.mark.parametrize("max_norm", [5e-324, 1e-320, 1e-310])
def test_ranges_without_digits_are_refused(max_norm):
    for kind in (ScalarDP, ScalarRelDP):
        with pytest.raises(ValueError, match=rf"max_norm.* {max_norm!r}|accuracy must be"):
            kind.from_epsilon(10.0, max_norm)


@pytest.mark.parametrize("name", ["float32", np.dtype(np.float32), "float64", np.dtype("float64")])
def test_room(name):
    """Longest outputs that a dtype holds: neither infinite nor, in any dimension, all zeros."""
    limits = np.finfo(name)
    for fine in (limits.tiny, 1e-30, 1.0, 1e30, limits.max / 2):
        check_room("update", name, float(fine))
    for small in (0.0, 5e-324, float(limits.tiny) / 2):
        with pytest.raises(
            ValueError, match=r"^update must be float64 at this max_norm, .* nothing"
        ):
            check_room("update", name, small)
    for large in (float(limits.max), math.inf, math.nan):
        with pytest.raises(ValueError, match=r"^update must be float64 at this budget, .* no room"):
            check_room("update", name, large)


@pytest.mark.parametrize("dim", [10, 100_000])
@pytest.mark.parametrize("factor", [1.0, 1e-4, 1e-8])
def test_reports_of_zeros_are_refused(factor, dim):
    """At the edge float32 still holds the coordinates, in many dimensions; below, none is drawn."""
    direction = PrivUnit.from_epsilon(dim, 5.0)
    most = 1.01 * float(np.finfo(np.float32).tiny) / direction.scale
    magnitude = ScalarDP(epsilon=700.0, num_bins=1, max_norm=factor * most)
    mechanism = SeparatedMechanism(direction=direction, magnitude=magnitude)
    update = np.full(dim, 1e-30, np.float32)
    if factor < 1.0:
        with pytest.raises(ValueError, match=r"^update must be float64 at this max_norm"):
            mechanism.privatize(update)
        assert mechanism.privatize(update.astype(np.float64), seeded_generator(113)).any()
    else:
        output = mechanism.privatize(update, seeded_generator(113))
        assert np.count_nonzero(output) > 0.99 * dim
