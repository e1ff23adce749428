"""Modules of an app: found in its folder, with the packages that are installed.

The test's stand-in for a package is NumPy: this one is itself found last where it is installed as
editable.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from flwr_sdp.cli.engines.app_module import ask, check_settings, module_command
from flwr_sdp.cli.errors import CommandError


@pytest.fixture
def app(tmp_path):
    """An app with a program, beside a folder that has the name of a package."""
    program = tmp_path / "simulations" / "engine"
    program.mkdir(parents=True)
    (program / "__main__.py").write_text(
        "import sys, numpy\n"
        "from pathlib import Path\n"
        "if 'wrong' in Path(sys.argv[1]).name or 'wrong' in Path(sys.argv[1]).read_text():\n"
        "    raise ValueError('it: is wrong')\n"
        "print(__name__, sys.argv[1:], numpy.__file__)\n"
    )
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise RuntimeError('no package')\n")
    (tmp_path / "question").write_text("right")
    return tmp_path


def test_what_is_installed_is_what_runs(app):
    question = str(app / "question")
    printed = ask(app, "simulations.engine", question, "--check")
    assert printed == f"__main__ {[question, '--check']} {Path(np.__file__)}\n"


def test_python_itself_would_take_the_folders_of_the_app(app):
    """Why it is not ``python -m``."""
    python, *_ = module_command(app, "simulations.engine")
    done = subprocess.run(
        [python, "-m", "simulations.engine", "question"], cwd=app, capture_output=True, text=True
    )
    assert "no package" in done.stderr


def test_what_it_says_of_a_mistake_is_passed_on(app):
    with pytest.raises(CommandError, match=r"^it: is wrong$"):
        ask(app, "simulations.engine", str(app / "wrong"))


def test_settings_are_checked_by_a_program_that_can(app):
    check_settings(app, "simulations.engine", {"key": 1})
    with pytest.raises(CommandError, match=r"^it: is wrong$"):
        check_settings(app, "simulations.engine", {"key": "wrong"})
    check_settings(app, "simulations.nowhere", {"key": "wrong"})
