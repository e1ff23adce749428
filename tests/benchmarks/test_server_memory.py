"""The benchmark of the server runs, and says so when a limit is broken."""

import sys

import pytest

from tests.benchmarks import server_memory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_limits_hold_at_small_sizes(capsys):
    assert server_memory.main(["--quick"]) == 0
    assert "Flower's FedAvg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("models", "growth", "seconds", "broken"),
    [(3.0, 0.0, 1.0, None), (4.1, 0.0, 1.0, "20 replies"), (3.0, 0.2, 1.0, "growth"),
     (3.0, 0.0, 61.0, "budget checks")],
)  # fmt: skip
def test_a_broken_limit_is_named_and_fails(monkeypatch, capsys, models, growth, seconds, broken):
    def measured(_name, _nodes, rounds, _dim):
        return [(models, growth * (index >= 10)) for index in range(rounds)]

    monkeypatch.setattr(server_memory, "measured_apart", measured)
    monkeypatch.setattr(server_memory, "seconds_of_checks", lambda _rounds, reading: seconds)
    assert server_memory.main(["--quick"]) == (broken is not None)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("BROKEN")]
    assert bool(lines) == (broken is not None)
    assert all(broken in line for line in lines)
