"""Every block of code in the README and the guides works as it stands.

Python blocks are run, those of one page one after the other, and what they print is what the page
says. Of the commands the calculators are run, and those that make keys; the others are checked
against the programs' own options, without starting anything. A block of a kind that nobody checks
is an error.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from flwr.app import Message, MetricRecord, RecordDict

from flwr_sdp.cli.errors import CommandError
from simulations.server_app import run_training
from simulations.settings import Settings
from tests.docs.commands import (
    CALCULATORS,
    check,
    check_extras,
    commands,
    is_for_the_shell,
    run_by_the_shell,
)
from tests.docs.pages import PAGES, ROOT, blocks_of
from tests.messages import FakeGrid, default_run_config, private_reply, record

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = {}
for _block in BLOCKS:
    if _block.kind == "python":
        PYTHON.setdefault(_block.page, []).append(_block)

DIRECTIVES = ("{include}", "{literalinclude}", "{toctree}", "{eval-rst}", "{commands}")
"""What test_site.py builds."""


def of_kind(*kinds):
    chosen = [block for block in BLOCKS if block.kind in kinds]
    assert chosen
    return pytest.mark.parametrize("block", chosen, ids=str)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like the repository, in which blocks may write."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("simulations", "runs", "build"):
            (tmp_path / entry.name).symlink_to(entry)
    shutil.copytree(
        ROOT / "simulations", tmp_path / "simulations", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(page, folder):
    """Write the files that the blocks of a page are."""
    for block in BLOCKS:
        if block.page == page and block.file is not None:
            path = folder / block.file
            assert path.parent.resolve().is_relative_to(folder.resolve()), block
            assert not path.exists(), block
            path.write_text(block.text, encoding="utf-8")


# ------------------------------------------------------------------ every block
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_somebody_checks_it(block):
    kinds = ("python", "sh", "toml", "json", "text")
    assert block.kind in kinds or block.kind.split()[0] in DIRECTIVES
    if block.run_by is not None:
        assert (ROOT / block.run_by).is_file(), block.run_by


# ------------------------------------------------------------------ Python
@pytest.mark.parametrize("page", PYTHON)
def test_python(page, checkout):
    scope = {"__name__": "guide"}
    printed = {}
    for block in PYTHON[page]:
        padded = "\n" * block.line + block.text  # tracebacks have the page's lines
        code = compile(padded, str(ROOT / page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, scope)  # noqa: S102 - these are our own pages
            printed[block.line] = out.getvalue()
    for name, test in scope.items():
        if name.startswith("test_"):
            test()
    if page in CLAIMS:
        CLAIMS[page](scope)
    shown = {block.follows: block.text for block in BLOCKS if block.page == page}
    for line, text in printed.items():
        assert_same_text(text, shown.get(line, ""), f"{page}:{line}")


def the_server_goes_on(scope):
    """The server's guide: the same function starts a run and resumes it."""
    scope["initial_model"] = lambda: record({"w": [0.0, 0.0, 0.0]})
    grid = FakeGrid(range(1, 40), lambda message: private_reply(message, 0.1))
    rounds = []
    for resume, last in ((False, 2), (True, 3)):
        grid.sent.clear()
        scope["main"](
            grid, SimpleNamespace(run_config={"resume": resume, "num-server-rounds": last})
        )
        ledger = json.loads(Path("runs/keyboard/checkpoints/ledger.json").read_text())
        rounds.append(ledger["completed_round"])
    assert rounds == [2, 3]


def the_readme_is_right(scope):
    """What the README says of its examples."""
    strategy, mechanism = scope["strategy"], scope["mechanism"]
    assert strategy.expected_cohort == 100.0
    assert strategy.clip_norm == mechanism.max_output_norm
    for name, array in scope["update"].items():
        assert scope["private"][name].shape == array.shape
        assert (scope["private"][name] != array).all()


CLAIMS = {"README.md": the_readme_is_right, "docs/server.md": the_server_goes_on}


# ------------------------------------------------------------------ commands
@of_kind("sh")
def test_commands(block, checkout):
    write_files(block.page, checkout)
    if is_for_the_shell(block.text):
        for earlier in BLOCKS:
            if earlier.page == block.page and earlier.kind == "sh" and earlier.line < block.line:
                if is_for_the_shell(earlier.text):
                    run_by_the_shell(earlier.text, checkout)
        run_by_the_shell(block.text, checkout)
        return
    printed = "".join(check(words, checkout) for words in commands(block.text))
    after = [other for other in BLOCKS if (other.page, other.follows) == (block.page, block.line)]
    if after and after[0].kind == "text":
        assert_same_text(printed, after[0].text, str(block))
    else:
        assert not re.search("^flwr-sdp: ", printed, flags=re.MULTILINE), printed


# ------------------------------------------------------------------ output
@of_kind("text")
def test_text(block):
    """Output is compared where it is made; what else there is, is known to be right."""
    if block.run_by is not None:
        return
    above = {other.line: other for other in BLOCKS if other.page == block.page}.get(block.follows)
    if above is not None and above.kind == "python":
        return
    if above is not None and above.kind == "sh":
        assert all(
            words[0] == "flwr-sdp" and words[1] in CALCULATORS for words in commands(above.text)
        )
        return
    if block.text.startswith("Privacy report"):
        assert_same_text(report_of("simulations/conf/digits.toml"), block.text, str(block))
        return
    for line in block.text.splitlines():  # a list of the repository's files
        assert (ROOT / line.split()[0]).exists(), line


def report_of(run_file):
    """Return the report of a run whose clients send their models back as they came."""
    config = {**default_run_config(), **tomllib.loads((ROOT / run_file).read_text())}
    settings = Settings.from_run_config({**config, "evaluate-every": 1000})
    marks = {
        "num-examples": 1,
        "ldp-epsilon-direction": settings.budget.epsilon_direction,
        "ldp-epsilon-magnitude": settings.budget.epsilon_magnitude,
    }

    def reply(message):
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord(marks)}
        return Message(RecordDict(content), reply_to=message)

    grid = FakeGrid(range(1, settings.num_clients + 1), reply)
    return run_training(grid, settings)[1].to_text()


# ------------------------------------------------------------------ data
@of_kind("toml")
def test_toml(block):
    assert tomllib.loads(block.text)


def test_json():
    for block in BLOCKS:
        if block.kind == "json":
            assert json.loads(block.text), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_extras(page):
    check_extras(page.read_text(encoding="utf-8"))


# ------------------------------------------------------------------ the checks themselves
@pytest.mark.parametrize(
    "command",
    [
        "flwr-sdp simulate simulations/conf/no-such-file.toml",
        "flwr-sdp simulate simulations/conf/digits.toml --no-such-option",
        "flwr-sdp simulate simulations/conf/digits.toml --set no-such-key=1",
        "flwr-sdp no-such-command",
        "flwr run docs/examples/logistic fleet --run-config 'no-such-key=1'",
        "flwr supernode no-such-command",
        "flower-supernode --no-such-option",
        "make no-such-target",
        "pip install 'flwr-sdp[no-such-extra]'",
        "python -m no_such_module",
        "no-such-program",
    ],
)
def test_a_mistake_is_noticed(command, checkout):
    (words,) = commands(command)
    with pytest.raises((AssertionError, FileNotFoundError, click.UsageError, CommandError)):
        check(words, checkout)


def test_scripts_are_taken_apart():
    script = (
        "A=1 one --x 'two\n words' \\\n  more  # comment\ncat > f <<'END'\nno command\nEND\nlast\n"
    )
    assert list(commands(script)) == [
        ["one", "--x", "two\n words", "more"],
        ["cat", ">", "f"],
        ["last"],
    ]


def test_a_wrong_number_is_noticed():
    assert_same_text("a  1,234.5\n", "a 1,234.5", "")
    with pytest.raises(AssertionError):
        assert_same_text("a 1,234.5", "a 1,234.6", "")


def assert_same_text(found, shown, where):
    """Compare the words of two texts; numbers up to the rounding of another machine."""
    found, shown = found.split(), shown.split()
    assert len(found) == len(shown), (where, " ".join(found))
    for one, other in zip(found, shown, strict=True):
        numbers = [_number(one), _number(other)]
        if None in numbers:
            assert one == other, (where, " ".join(found))
        else:
            assert math.isclose(*numbers, rel_tol=1e-9), (where, " ".join(found))


def _number(word):
    try:
        return float(word.replace(",", ""))
    except ValueError:
        return None
