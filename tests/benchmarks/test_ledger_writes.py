"""The benchmark of the ledger's writes runs, and says so when the limit is broken."""

import sys

import pytest

from tests.benchmarks import ledger_writes


@pytest.mark.skipif(sys.platform != "linux", reason="bytes are counted in /proc")
def test_limit_holds_at_a_small_size(capsys):
    assert ledger_writes.main(["--quick"]) == 0
    assert "small model" in capsys.readouterr().out


@pytest.mark.parametrize(("handed", "is_broken"), [(1.04, False), (1.3, True)])
def test_a_broken_limit_is_named_and_fails(monkeypatch, capsys, handed, is_broken):
    monkeypatch.setattr(ledger_writes, "measure", lambda _size, _folder: (handed, 1.0))
    assert ledger_writes.main(["--quick"]) == is_broken
    assert ("BROKEN: small model" in capsys.readouterr().out) == is_broken
