"""The program: errors in one line with the fix, exit statuses, completion, the light install."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from flwr_sdp.cli import main
from flwr_sdp.cli.app import app
from flwr_sdp.cli.results.figures import FIGURES

COMMANDS = typer.main.get_command(app).commands


def call(monkeypatch, capsys, *arguments):
    """Return exit status, standard output and standard error of the program."""
    monkeypatch.setattr(sys, "argv", ["flwr-sdp", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plan"], "Missing option '--dim': see flwr-sdp plan --help"),
        (["plam"], "No such command 'plam'. Did you mean 'plan'?: see flwr-sdp --help"),
        (
            ["calibrate", "--dim", "x", "--epsilon-direction", "5"],
            "Invalid value for '--dim': 'x' is not a valid integer: see flwr-sdp calibrate --help",
        ),
        (
            ["plot", ".", "--kind", "pie"],
            "Invalid value for '--kind': 'pie' is not one of 'gap', 'accuracy', 'frontier', 'box'"
            ": see flwr-sdp plot --help",
        ),
        (
            ["calibrate", "--dim", "1", "--epsilon-direction", "5"],
            "dim must be an integer >= 2 and <= 1.09951e+12; got 1",
        ),
        (["simulate", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
        (["audit", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
        (["report", "nowhere"], "is not there: pass the folder of a run, or a report.json"),
        (["ledger", "nowhere.db"], "nowhere.db is not there: give the file that sdp-ledger names"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(monkeypatch, capsys, tmp_path, arguments, line):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(monkeypatch, capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("flwr-sdp: ")
    assert line in err
    assert err.count("\n") == 1


def test_done_is_status_0(monkeypatch, capsys):
    arguments = ("calibrate", "--dim", "100", "--epsilon-direction", "5", "--json")
    status, out, err = call(monkeypatch, capsys, *arguments)
    assert (status, err) == (0, "")
    assert out.startswith("{")


def test_without_arguments_it_helps(monkeypatch, capsys):
    status, out, err = call(monkeypatch, capsys)
    assert status == 2
    assert "simulate" in out + err


def test_a_missing_extra_is_named(monkeypatch, capsys):
    """A device has neither SciPy nor the server's accounting."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    for name in [name for name in sys.modules if name.startswith("flwr_sdp.cli.commands")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(
        "flwr_sdp.cli.app.app",
        lambda **_: (_ for _ in ()).throw(ModuleNotFoundError("no", name="scipy.special")),
    )
    status, _, err = call(monkeypatch, capsys, "plan")
    assert status == 2
    assert err == "flwr-sdp: scipy is not installed: pip install 'flwr-sdp[server]'\n"


def test_a_mistake_of_ours_is_not_taken_for_a_missing_extra(monkeypatch):
    def broken(**_):
        raise ModuleNotFoundError("no", name="flwr_sdp.nowhere")

    monkeypatch.setattr("flwr_sdp.cli.app.app", broken)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(ModuleNotFoundError):
        main()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_that_it_would_take(name):
    """The example of the help is parsed by the command itself, files aside."""
    command = COMMANDS[name]
    assert "Example: " in command.help, "add an example to the docstring"
    text = " ".join(command.help.partition("Example: ")[2].split("\n\n")[0].split())
    program, called, *arguments = text.split()
    assert (program, called) == ("flwr-sdp", name)
    command.make_context(name, arguments)  # raises what a person would get


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_prints_json(name):
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options


def test_an_option_of_several_commands_says_the_same_in_each():
    helps = {}
    for name in ("--app", "--set", "--json", "--dim", "--population", "--rounds", "--delta"):
        helps[name] = {
            (parameter.help, parameter.type.name)
            for command in COMMANDS.values()
            for parameter in command.params
            if isinstance(parameter, click.Option) and name in parameter.opts
        }
    assert {name: len(found) for name, found in helps.items()} == dict.fromkeys(helps, 1)


def test_the_kinds_of_figures_are_those_there_are():
    (kind,) = (one for one in COMMANDS["plot"].params if "--kind" in one.opts)
    assert list(kind.type.choices) == list(FIGURES)


def test_a_shell_completes_commands_and_values():
    program = Path(sys.executable).parent / "flwr-sdp"

    def complete(words):
        done = subprocess.run(
            [program],
            env={
                **os.environ,
                "_FLWR_SDP_COMPLETE": "complete_bash",
                "COMP_WORDS": f"flwr-sdp {words}",
                "COMP_CWORD": str(1 + words.count(" ")),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout.split()

    assert complete("cal") == ["calibrate"]
    assert complete("plot --kind fro") == ["frontier"]
