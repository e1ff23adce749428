"""The work says nothing of the update, nor of the side of the cap: a server sees how long it took.

What is compared is every call that is made, in Python and into NumPy, with the shapes of its work
following from the words that were drawn. Clocks are for ``tests/benchmarks/time_of_reports.py``.
"""

import gc
import sys

import numpy as np
import pytest

from flwr_sdp import PrivUnit, ScalarDP, SeparatedMechanism, seeded_generator, sphere
from tests.statistics_helpers import random_unit

UPDATES = {
    "zero": lambda unit: 0.0 * unit,
    "small": lambda unit: 1e-15 * unit,
    "beyond the range": lambda unit: 1e4 * unit,
    "half of it zero": lambda unit: unit * (np.arange(unit.size) < unit.size // 2),
    "in the last coordinate alone": lambda unit: 1.0 * (np.arange(unit.size) == unit.size - 1),
}


class OneSided(PrivUnit):
    """Always draws inside, or outside: the flip is drawn, and not used."""

    __slots__ = ()
    inside = True

    def _dots(self, count, rng):
        rng.bernoullis(self.epsilon_flip, count)
        return sphere.sample_dots(self._cap, np.full(count, self.inside), rng)


class Outside(OneSided):
    __slots__ = ()
    inside = False


def work(update, kind=OneSided, epsilon=8.0, seed=1):
    """Return the calls of one report, and how far the generator has come."""
    parameters = PrivUnit.from_epsilon(update.size, epsilon)
    mechanism = SeparatedMechanism(
        direction=kind(
            dim=update.size,
            cap_threshold=parameters.cap_threshold,
            epsilon_flip=parameters.epsilon_flip,
        ),
        magnitude=ScalarDP.from_epsilon(10.0, 1.0),
    )
    rng, calls = seeded_generator(110, seed), []

    def note(frame, event, called):
        name = frame.f_code.co_name if event in ("call", "return") else called.__name__
        calls.append((event, name))

    mechanism.privatize(update, rng)  # what is only done once
    rng = seeded_generator(110, seed)
    gc.disable()  # it calls what other tests have registered with it
    sys.setprofile(note)
    try:
        mechanism.privatize(update, rng)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls, rng.bits(1)[0]


SIZES = [
    pytest.param(dim, dtype, short, id=f"{dim} {dtype.__name__}{' cut' if short else ''}")
    for dim, dtype, short in (
        (2, np.float32, False),
        (3, np.float64, False),
        (1000, np.float32, False),
        (1000, np.float64, False),
        (70_000, np.float32, False),
        (23, np.float32, True),
        (23, np.float64, True),
    )
]


@pytest.fixture
def unit(dim, dtype, short, request):
    if short:
        request.getfixturevalue("short_blocks")
    return random_unit(dim).astype(dtype)


@pytest.mark.parametrize(("dim", "dtype", "short"), SIZES)
def test_either_side_of_the_cap(dim, dtype, short, unit, monkeypatch):
    """Five reports of each. The mutant draws the side that it needs alone."""

    def same():
        return [work(unit, OneSided, seed=i) == work(unit, Outside, seed=i) for i in range(5)]

    assert all(same())

    def needed(cap, inside, rng):
        attempt = sphere._try_inside if inside[0] else sphere._try_outside
        return sphere._accepted(1, lambda count: attempt(cap, count, rng))

    monkeypatch.setattr(sphere, "sample_dots", needed)
    assert not all(same())


@pytest.mark.parametrize(("dim", "dtype", "short"), SIZES)
@pytest.mark.parametrize("what", UPDATES)
def test_whatever_the_update(what, dim, dtype, short, unit):
    update = UPDATES[what](unit).astype(dtype)
    for i in range(3):
        assert work(update, PrivUnit, seed=i) == work(unit, PrivUnit, seed=i)


def test_what_takes_longer_is_noticed():
    """An update of norm 1e-25 is rescaled first, which is said in the threat model."""
    unit = random_unit(1000).astype(np.float32)
    assert work(np.float32(1e-25) * unit) != work(unit)
