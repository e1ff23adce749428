"""Pythons and platforms: what is promised is what tests/check_versions.py checks."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests import check_versions

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_pythons_that_are_promised_are_those_that_are_run():
    """Fails if a Python is named in one place and not in the others."""
    named = [
        each.rpartition(" ")[2]
        for each in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", each)
    ]
    pythons = check_versions.PYTHONS
    assert named == pythons
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert f"Python {pythons[0]} to {pythons[-1]}" in PAGE
    assert f"Python {pythons[0]} to {pythons[-1]}" in (ROOT / "README.md").read_text("utf-8")
    for resolution in check_versions.RESOLUTIONS:
        ends = check_versions.ENDS[resolution]
        assert ends == [(pythons[0 if resolution == "oldest" else -1], resolution)]


def test_platforms_that_are_promised_are_those_that_are_checked():
    section = PAGE.partition("## Platforms")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+)[^|]*\| ([^|]+) \|$", section, re.M))
    assert rows == {"Linux": "x86_64, aarch64", "macOS": "Apple silicon", "Windows": "x86_64"}
    assert set(check_versions.DEVICES) == {
        *(
            f"{cpu}-{libc}"
            for cpu in ("x86_64", "aarch64")
            for libc in ("manylinux_2_28", "unknown-linux-musl")
        ),
        "aarch64-apple-darwin",
        "x86_64-pc-windows-msvc",
    }
    assert "glibc 2.28" in section
    assert "32-bit ARM" in section


@pytest.mark.parametrize(("argument", "ends"), [("oldest", 1), ("newest", 1), ("all", 6)])
def test_a_failure_anywhere_is_the_exit_status(argument, ends, monkeypatch, capsys):
    """Without an environment: every step is a program that does nothing, and the last one fails."""
    monkeypatch.setattr(check_versions, "UV", [sys.executable, "-c", "pass"])
    monkeypatch.setattr(sys, "argv", ["check_versions.py", "--test", argument])

    class Done:
        def __init__(self, step, **_):
            self.returncode = int("pytest" in step)

    monkeypatch.setattr(check_versions.subprocess, "run", Done)
    assert check_versions.main() == 1
    assert capsys.readouterr().out.count("FAILED") == ends
