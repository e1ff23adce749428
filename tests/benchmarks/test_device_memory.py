"""The benchmark of the device runs, and says so when the limit is broken."""

import math
import sys

import pytest

from tests.benchmarks import device_memory


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_limit_holds_at_small_sizes(capsys):
    assert device_memory.main(["--quick"]) == 0
    assert "language model" in capsys.readouterr().out


@pytest.mark.parametrize(("vectors", "is_broken"), [(1.9, False), (2.1, True)])
def test_a_broken_limit_is_named_and_fails(monkeypatch, capsys, vectors, is_broken):
    monkeypatch.setattr(device_memory, "measured_apart", lambda _shapes, with_ledger: vectors)
    assert device_memory.main(["--quick"]) == is_broken
    assert ("BROKEN: one array" in capsys.readouterr().out) == is_broken


def test_language_model_is_the_papers():
    assert sum(map(math.prod, device_memory.LANGUAGE.values())) == 13_352_875
