"""The benchmark of the engine says so when a limit is broken."""

import pytest

from tests.benchmarks import simulation_engine

FINE = {
    "bare": 10.0, "engine": 11.0, "private": 12.0, "fedavg": 13.0, "message": 14.0, "small": 0.1,
    "small-fedavg": 0.2, "population": 5.0,
}  # fmt: skip


def outcome(monkeypatch, capsys, *, seconds=FINE, peak=2.0, memory=(1.0, 2.0, 2.1, 2.1)):
    def measured(name, rounds):
        return {
            "seconds": [1000.0, *[seconds[name]] * rounds], "peak": peak, "memory": list(memory)
        }  # fmt: skip

    monkeypatch.setattr(simulation_engine, "measured", measured)
    status = simulation_engine.main([])
    lines = capsys.readouterr().out.splitlines()
    broken = {line.split(maxsplit=1)[1] for line in lines if line.startswith("BROKEN")}
    assert status == bool(broken)
    return broken, lines


def test_figures_within_the_limits_pass(monkeypatch, capsys):
    broken, lines = outcome(monkeypatch, capsys)
    assert broken == set()
    assert any("engine / bare" in line and "1.100" in line for line in lines)
    assert any("population" in line and "200 clients a second" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seconds": {**FINE, "engine": 11.3}}, "engine / bare"),
        ({"seconds": {**FINE, "message": 15.0}}, "message / fedavg"),
        ({"seconds": {**FINE, "small": 0.12}}, "small"),
        ({"peak": 3.1}, "memory"),
    ],
)
def test_a_broken_limit_is_named_and_fails(monkeypatch, capsys, change, name):
    assert outcome(monkeypatch, capsys, **change)[0] == {name}


def test_growing_memory_is_named(monkeypatch, capsys):
    broken, _ = outcome(monkeypatch, capsys, memory=(1.0, 2.0, 2.1, 2.3))
    assert broken == {"growth of small", "growth of population"}
