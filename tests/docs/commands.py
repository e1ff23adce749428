"""The commands of the guides: run where that costs nothing, and checked where it does."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from flwr_sdp.cli.app import app
from flwr_sdp.cli.commands.simulate_streams import with_options
from flwr_sdp.cli.runs.grid import runs_of
from flwr_sdp.cli.runs.run_config import whole_run_config
from flwr_sdp.cli.runs.run_file import STREAM, Options, app_defaults, read_engine, read_run_file
from simulations.audit.settings import Settings as AuditSettings
from simulations.pretraining.settings import PretrainSettings
from simulations.settings import Settings
from simulations.streams.run import read_study
from tests.docs.pages import ROOT

PLACEHOLDER = re.compile(r"\.\.\.|<\w+>")
_HEREDOC = re.compile(r"<<'?(\w+)'?\n.*?\n\1\n", re.DOTALL)
_ASSIGNMENT = re.compile(r"\w+=")

CALCULATORS = {"plan", "calibrate", "account"}
_OF_THE_SHELL = {"cat", "mkdir", "openssl", "ssh-keygen"}
_WITH_HELP = {"flower-superlink", "flower-supernode", "flwr", "ray"}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a script, without comments and here-documents."""
    line = ""
    for part in _HEREDOC.sub("\n", text).splitlines():
        line += part
        if line.endswith("\\"):
            line = line[:-1] + " "
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # within quotes
            line += "\n"
            continue
        line = ""
        while words and _ASSIGNMENT.match(words[0]):
            words = words[1:]
        if words:
            yield words
    if line:
        raise ValueError(f"the script ends within {line!r}")


def is_for_the_shell(text: str) -> bool:
    """Return whether a script has nothing but programs that may be run for real."""
    return {words[0] for words in commands(text)} <= _OF_THE_SHELL


def run_by_the_shell(text: str, folder: Path) -> None:
    """Run a script; a program that is not on this machine skips the test."""
    for words in commands(text):
        if shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-eu"],
        input=text,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def check(words: list[str], folder: Path) -> str:
    """Check one command, and return what it prints if it was run.

    Raises
    ------
    AssertionError
        If it would not work, or nothing is known of such a program.
    """
    program, *rest = words
    if program == "flwr-sdp":
        return _check_ours(rest, folder)
    if program in _WITH_HELP:
        _check_options(program, rest)
        if words[:2] == ["flwr", "run"]:
            _check_flwr_run(rest, folder)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert rest, words
        assert set(rest) <= set(targets), words
    elif program == "pip":
        check_extras(" ".join(words))
    elif program == "git":
        assert rest[0] in ("clone", "apply"), words
    elif program == "cp":
        assert (folder / rest[1]).exists(), words
    elif program in ("python", ".venv/bin/python"):
        assert rest[0] == "-m", words
        assert importlib.util.find_spec(rest[1]), words
    elif program == "podman":
        for word in rest:
            assert not word.startswith("docs/") or (ROOT / word).exists(), word
    elif program == ".":
        assert rest == [".venv/bin/activate"], words  # what make run and make test leave
    else:
        assert program == "export", f"nothing is known of {program!r}: {words}"
    return ""


def check_extras(text: str) -> None:
    """Check that every extra that a text has pip install is one of ours."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"""pip install ['"]?(?:flwr-sdp|\.)\[([\w,-]+)]""", text):
        assert set(extras.split(",")) <= set(ours), extras


# ------------------------------------------------------------------ flwr-sdp
def _check_ours(words: list[str], folder: Path) -> str:
    if words[0] in CALCULATORS or "--help" in words:
        result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
        if result.exception is None or isinstance(result.exception, SystemExit):
            assert result.exit_code == 0, result.output
            return result.output
        assert type(result.exception).__name__ == "CommandError", result.exception
        return f"{result.output}flwr-sdp: {result.exception}\n"  # as `main` says it
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    root = click.Context(group, info_name="flwr-sdp")
    name, command, rest = group.resolve_command(root, list(words))
    assert command is not None, words
    parameters = command.make_context(name, rest, parent=root).params
    if "config" in parameters:
        check_run(folder / parameters["config"], parameters)
    return ""


def check_run(path: Path, parameters: Mapping[str, Any]) -> None:
    """Check a run file and the options beside it as the command does, but for the data."""
    content = tomllib.loads(path.read_text())
    given = {name: parameters.get(name) for name in ("trials", "engine", "seed")}
    options = Options(
        set_=parameters.get("set_") or (), sweep=parameters.get("sweep") or (), **given
    )
    engine = read_engine(content, options, ("ray", "local", STREAM))
    if engine == STREAM:
        read_study(with_options(content, options))
    elif "pretrain" in path.stem:
        PretrainSettings.from_file(path)
    elif path.parent.name == "audit":
        AuditSettings.read(path)
    else:
        defaults = app_defaults(ROOT)
        file = read_run_file(content, options, engine=engine, app_dir=ROOT, defaults=defaults)
        for run in runs_of(file, path.parent, with_baseline=True):
            Settings.from_run_config(whole_run_config(run, resume=False))


# ------------------------------------------------------------------ others
def _check_options(program: str, words: list[str]) -> None:
    """Check that the program has the subcommand, and each option."""
    subcommands = []
    if program in ("flwr", "ray"):
        subcommands = words[: 2 if words[0] in ("supernode", "config") else 1]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    # Each look at a program's help starts the program: without options one for all subcommands.
    asked = subcommands if options else subcommands[:-1]
    text = _help(program, *asked)
    for name in options or subcommands[-1:]:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), f"{program} has no {name}"


@cache
def _help(program: str, *subcommands: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *subcommands, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _check_flwr_run(words: list[str], folder: Path) -> None:
    """Check the app, and the keys of its run config."""
    pyproject = folder / words[1] / "pyproject.toml"
    keys = set(tomllib.loads(pyproject.read_text())["tool"]["flwr"]["app"]["config"])
    for option, value in pairwise(words):
        if option == "--run-config":
            given = folder / value
            text = given.read_text() if value.endswith(".toml") else "\n".join(_settings(value))
            assert set(tomllib.loads(text)) <= keys, value


def _settings(value: str) -> list[str]:
    """Return the settings of ``key=value key="text"``, each on a line of TOML."""
    return re.findall(r"""[\w-]+=(?:"[^"]*"|'[^']*'|\S+)""", value)
