"""The site is built without a warning, and has every public name and every command."""

import importlib
import re
import subprocess
import sys

import pytest

from flwr_sdp.cli.app import app
from tests.docs.pages import ROOT

REFERENCE = {
    "flwr_sdp": "core",
    "flwr_sdp.clients": "clients",
    "flwr_sdp.strategies": "strategies",
    "flwr_sdp.reconstruction": "reconstruction",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    build += ["-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")]
    done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_public_name_is_in_the_reference(site):
    for module, page in REFERENCE.items():
        html = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
        for name in importlib.import_module(module).__all__:
            documented = f'id="{module}.{name}"' in html
            # What a package takes over from another is documented there, or is a constant.
            owner = getattr(getattr(importlib.import_module(module), name), "__module__", None)
            assert documented or owner is None, f"{module}.{name}"


def test_every_command_is_in_the_reference(site):
    html = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f'<section id="{name}">' in html
    assert "--clients-per-round" in html


def test_the_readme_is_the_first_page(site):
    html = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="deployment.html"' in html
    assert 'src="_images/digits.png"' in html


def test_links_to_files_of_the_repository_lead_to_copies(site):
    html = (site / "porting.html").read_text(encoding="utf-8")
    (path,) = re.findall(r'href="(_downloads/[^"]*/port\.py)"', html)
    assert (site / path).read_bytes() == (ROOT / "tests" / "docs" / "port.py").read_bytes()
