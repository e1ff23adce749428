"""The command that measures one client and proposes how many to run at once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_sdp.cli.commands import preflight
from flwr_sdp.cli.engines.machine import Machine
from flwr_sdp.cli.errors import CommandError
from tests.cli.fake_app import write_app

ROOT = Path(__file__).resolve().parents[3]
COMMAND = Path(sys.executable).parent / "flwr-sdp"
DIGITS = ROOT / "simulations" / "conf" / "digits.toml"

MIB, GIB = 2**20, 2**30
FACTS = {
    "dim": 3_274_634,
    "first-seconds": 2.0,
    "second-seconds": 1.0,
    "evaluation-seconds": 0.0,
    "memory": 400 * MIB,
    "peak-memory": 900 * MIB,
    "client-memory": 200 * MIB,
    "gpus": 1,
    "gpu-memory": {
        "total": 24 * GIB,
        "context": 500 * MIB,
        "allocated": 800 * MIB,
        "reserved": 1500 * MIB,
    },
    "request-bytes": 13_100_000,
    "reply-bytes": 26_200_000,
    "num-clients": 2000,
    "cohort": 20.0,
    "evaluate-every": 1,
}


def test_the_digits_are_measured_here():
    pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")
    done = subprocess.run(
        [COMMAND, "preflight", DIGITS, "--set", "num-clients=40", "--json"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["measured"]["dim"] == 9_610
    assert answer["measured"]["cohort"] == 20.0
    proposal = answer["proposal"]
    cores = answer["machine"]["cores"]
    assert 1 <= proposal["clients_at_once"] <= min(cores, 20)
    assert proposal["resources"]["num_gpus"] == 0.0
    assert 0 < proposal["seconds_at_best"] <= proposal["seconds_at_worst"]


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Return a function that writes an app with an engine that prints such facts."""
    machine = Machine(cores=16, memory=64 * GIB, shared_memory=32 * GIB)
    monkeypatch.setattr(preflight, "this_machine", lambda: machine)

    def written(program):
        config = write_app(tmp_path)
        engine = tmp_path / "simulations" / "engine"
        engine.mkdir(parents=True)
        (engine / "__main__.py").write_text(
            "import json, pathlib, sys\nassert sys.argv[1] == '--measure'\n"
            f"config = json.loads(pathlib.Path(sys.argv[2]).read_text())\n{program}"
        )
        return config

    return written


def test_the_command_to_run_is_printed(app, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    config = app(f"print(json.dumps({FACTS!r}))\n")
    preflight.show(config, set_=[], app_dir=None, as_json=False)
    printed = capsys.readouterr().out
    # 21.6 of 24 GiB for processes of 2,000 MiB: eleven, one of them the server's.
    assert re.search(r"GPU memory +10 ", printed)
    assert f"simulate {config} --num-cpus 1 --num-gpus 0.1 --set num-nodes=10\n" in printed
    assert "10 at once: a round of 20 clients takes from 2 s, " in printed
    assert "warning" not in printed


def test_a_client_that_does_not_fit_is_said(app, capsys, monkeypatch):
    facts = {**FACTS, "client-memory": 80 * GIB}
    preflight.show(app(f"print(json.dumps({facts!r}))\n"), set_=[], app_dir=None, as_json=False)
    assert "not even one client is within every limit" in capsys.readouterr().out


def test_the_run_that_is_measured_is_the_first_of_the_file(app, tmp_path):
    """With what --set says, private, and without a folder to write to."""
    config = app(
        f"pathlib.Path({str(tmp_path / 'asked.json')!r}).write_text(json.dumps(config))\n"
        f"print(json.dumps({FACTS!r}))\n"
    )
    config.write_text('task = "toy"\n[sweep]\nlocal-steps = [3, 4]\n')
    preflight.show(config, set_=["num-clients=7"], app_dir=None, as_json=True)
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert (asked["num-clients"], asked["local-steps"]) == (7, 3)
    assert (asked["baseline"], asked["output-dir"]) == (False, "")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise ValueError('seed must be 1')\n", "^seed must be 1$"),
        ("print('done')\n", "does not measure: its engine printed no JSON"),
    ],
)
def test_what_the_app_says_against_it_is_one_line(app, program, message):
    with pytest.raises(CommandError, match=message):
        preflight.show(app(program), set_=[], app_dir=None, as_json=False)


def test_streams_and_apps_without_an_engine_are_refused(tmp_path):
    config = write_app(tmp_path)
    with pytest.raises(CommandError, match="has no local engine"):
        preflight.show(config, set_=[], app_dir=None, as_json=False)
    stream = ROOT / "simulations" / "conf" / "logistic" / "smoke.toml"
    with pytest.raises(CommandError, match="a stream runs without Ray"):
        preflight.show(stream, set_=[], app_dir=None, as_json=False)
