"""The command pretrain: runs the app's pretraining, follows it, and leaves weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from flwr_sdp.cli.app import app
from flwr_sdp.cli.commands import pretrain as command
from flwr_sdp.cli.errors import CommandError
from tests.cli.fake_app import write_app

ROOT = Path(__file__).resolve().parents[3]
COMMAND = Path(sys.executable).parent / "flwr-sdp"

pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")


def pretrain(*arguments):
    return CliRunner().invoke(app, ["pretrain", *map(str, arguments)], catch_exceptions=False)


def write(folder, **keys):
    """Write a file of a pretraining into the app of this repository, as far as the command sees."""
    path = folder / "pretrain.toml"
    path.write_text(tomli_w.dumps({"task": "reddit", "steps": 4, **keys}))
    return path


def test_weights_of_public_text(tmp_path):
    pytest.importorskip("nltk", reason="needs flwr-sdp[tasks]")
    public = tmp_path / "public"
    public.mkdir()
    for name in ("one", "two"):
        text = " ".join(f"The {name} of number {i} is a word. " for i in range(40))
        (public / f"{name}.txt").write_text(text)
    path = write(
        tmp_path,
        **{"data": "text", "data-dir": "public", "model-width": 8, "vocabulary-size": 10,
           "batch-size": 4, "evaluate-every": 2},
    )  # fmt: skip
    done = subprocess.run(
        [COMMAND, "pretrain", path, "--app", ROOT, "--set", "steps=6"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "weights" / "reddit"
    assert f'weights = "{folder.relative_to(tmp_path)}"' in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        "facts.json", "metrics.csv", "pretrain.log", "pretrain.toml", "vocabulary.txt",
        "weights.pt",
    }  # fmt: skip
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["data"] == "text"
    assert facts["step"] in (2, 4, 6)
    again = subprocess.run(
        [COMMAND, "pretrain", path, "--app", ROOT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert again.returncode == 2
    assert "is not empty: pass another folder with --output" in again.stderr


@pytest.mark.parametrize("completed", [True, False])
def test_json_says_where_the_weights_are_once_they_are_there(tmp_path, monkeypatch, completed):
    monkeypatch.setattr(command, "check_settings", lambda *_: None)
    monkeypatch.setattr(command, "ProcessJob", lambda *_: None)
    monkeypatch.setattr(command, "follow", lambda *_, **__: completed)
    folder = tmp_path / "out"
    done = pretrain(write(tmp_path), "--app", ROOT, "--output", folder, "--json")
    told = json.dumps({"task": "reddit", "weights": str(folder)}, indent=2) + "\n"
    assert (done.exit_code, done.stdout) == ((0, told) if completed else (1, ""))


def test_what_the_app_refuses_is_shown(tmp_path):
    path = write(tmp_path, **{"batch-size": 0})
    with pytest.raises(CommandError, match=r"^batch-size must be"):
        pretrain(path, "--app", ROOT, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_task_without_pretraining_says_so(tmp_path):
    with pytest.raises(CommandError, match=r"'digits' is not$"):
        pretrain(write(tmp_path, task="digits"), "--app", ROOT, "--output", tmp_path / "out")


def test_an_app_without_pretraining_is_named(tmp_path):
    path = write_app(tmp_path / "app")
    with pytest.raises(CommandError, match=r"app has no simulations.pretraining"):
        pretrain(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CommandError, match=r"cannot read .*none.toml"):
        pretrain(tmp_path / "none.toml", "--app", ROOT)
