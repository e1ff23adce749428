"""What runs are started on: what the app is told, and that nothing is left running."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flwr_sdp.cli.engines import process_job
from flwr_sdp.cli.engines.app_check import check_with_app
from flwr_sdp.cli.engines.app_facts import AppFacts, Messages
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.local_engine import LocalEngine
from flwr_sdp.cli.engines.machine import Machine
from flwr_sdp.cli.engines.ray_engine import RayEngine
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.runs.grid import Run
from tests.cli.fake_app import write_app

COMMAND = Path(sys.executable).parent / "flwr-sdp"
CONFIG = {"task": "it's", "num-clients": 100, "sdp-epsilon-direction": 50.0}


def run_in(folder, *, baseline=False, **config):
    return Run(
        point={},
        trial=0,
        baseline=baseline,
        config={**CONFIG, **config},
        folder=folder,
        label="private",
    )


# ------------------------------------------------------------------ Ray
class SuperLink:
    """Stands for a SuperLink: notes down what it is asked, and ends runs as told."""

    def __init__(self, status="finished:completed"):
        self.calls, self.stopped, self.status = [], [], status

    def flwr(self, *arguments):
        self.calls.append(arguments)
        return {"run-id": 17}

    def stream_log(self, run_id):
        return subprocess.Popen(
            [sys.executable, "-c", f"print({run_id!r})"], stdout=subprocess.PIPE, text=True
        )

    def wait_for_end(self, run_id):
        return self.status, "a detail"

    def stop_run(self, run_id):
        self.stopped.append(run_id)


@pytest.fixture
def ray_engine(monkeypatch):
    """Return a function that makes an engine on a SuperLink that stands in."""

    def made(folder, superlink, num_gpus=0.5):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        name = "flwr_sdp.cli.engines.ray_engine.LocalSuperLink"
        monkeypatch.setattr(name, lambda log_file, home: superlink)
        return RayEngine(folder, folder, Resources(num_cpus=2, num_gpus=num_gpus))

    return made


@pytest.mark.parametrize(
    ("config", "nodes"),
    [({}, 100), ({"num-nodes": 0}, 100), ({"num-nodes": 4}, 4)],
)
def test_nodes_stand_for_the_clients(tmp_path, ray_engine, config, nodes):
    superlink = SuperLink()
    job = ray_engine(tmp_path, superlink).start(run_in(tmp_path, **config), resume=False)
    ((name, app, _, run_config, _, federation),) = superlink.calls
    assert (name, app) == ("run", str(tmp_path))
    assert federation == (
        f"num-supernodes={nodes} client-resources-num-cpus=2 client-resources-num-gpus=0.5"
    )
    assert run_config.startswith('task="it\'s" num-clients=100 sdp-epsilon-direction=50.0')
    assert run_config.endswith(f"baseline=false output-dir='{tmp_path}'")
    assert job.lines.read() == "17\n"
    assert job.trouble() is None
    job.stop()
    assert superlink.stopped == ["17"]
    job.close()
    job.lines.close()


def test_a_share_of_a_gpu_is_passed_on_so_that_no_client_is_lost(tmp_path, ray_engine):
    """Flower holds it in single precision, where 0.2 is more than a fifth."""
    superlink = SuperLink()
    engine = ray_engine(tmp_path, superlink, num_gpus=0.2)
    job = engine.start(run_in(tmp_path), resume=False)
    job.close()
    job.lines.close()
    share = float(superlink.calls[0][-1].split("num-gpus=")[1])
    assert int(1 / float(np.float32(share))) == 5


@pytest.mark.parametrize(("gpus", "num_gpus", "warnings"), [(0, 0.0, 0), (1, 0.0, 1), (1, 0.5, 0)])
def test_warnings_are_about_this_machine(monkeypatch, gpus, num_gpus, warnings):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(
        "flwr_sdp.cli.engines.ray_engine.this_machine", lambda: Machine(cores=2, memory=8 * 2**30)
    )
    runs = (Messages(count=50, request_bytes=38_952, reply_bytes=38_952),)
    facts = AppFacts(gpus=gpus, memory=375 * 10**6, runs=runs)
    assert len(RayEngine.foresee(facts, Resources(num_gpus=num_gpus))) == warnings
    # Of an app that says nothing, nothing is known.
    assert RayEngine.foresee(None, Resources(num_gpus=num_gpus)) == []


def test_a_resumed_run_is_told_so_and_a_failed_one_says_why(tmp_path, ray_engine):
    superlink = SuperLink("finished:failed")
    job = ray_engine(tmp_path, superlink).start(run_in(tmp_path), resume=True)
    assert superlink.calls[0][3].endswith("resume=true")
    assert job.trouble() == "finished:failed a detail"
    job.close()
    job.lines.close()


# ------------------------------------------------------------------ one process
def local_app(folder, program):
    """Write an app whose engine is `program`; there is nothing to say against any run config."""
    config = write_app(folder)
    (folder / "simulations" / "engine").mkdir(parents=True)
    (folder / "simulations" / "engine" / "__main__.py").write_text(
        f"import sys\nif '--check' in sys.argv:\n    sys.exit()\n{program}"
    )
    return config


@pytest.mark.parametrize(("baseline", "resume"), [(False, True), (True, False)])
def test_the_apps_engine_is_given_the_whole_run_config(tmp_path, baseline, resume):
    local_app(tmp_path, "import pathlib, sys\nprint(pathlib.Path(sys.argv[1]).read_text())\n")
    LocalEngine.check(tmp_path)
    with LocalEngine(tmp_path, tmp_path, Resources()) as engine:
        job = engine.start(run_in(tmp_path, baseline=baseline), resume=resume)
        with job.lines as lines:
            told = json.load(io.StringIO(lines.read()))
        assert job.trouble() is None
        job.close()
    assert told == {
        **CONFIG,
        "baseline": baseline,
        "resume": resume,
        "output-dir": str(tmp_path),
    }


@pytest.mark.parametrize(
    ("program", "trouble"),
    [
        ("raise ValueError('a mistake')\n", "exit status 1"),
        ("import os\nos.kill(os.getpid(), 9)\n", "ended by signal 9"),
    ],
)
def test_a_process_that_fails_says_how(tmp_path, program, trouble):
    local_app(tmp_path, program)
    with LocalEngine(tmp_path, tmp_path, Resources()) as engine:
        job = engine.start(run_in(tmp_path), resume=False)
        with job.lines:
            assert job.trouble() == trouble
        job.close()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_run_is_stopped_where_there_are_no_process_groups(tmp_path, monkeypatch, ignored):
    """As on Windows; one that does not listen is killed."""
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(process_job, "_PATIENCE", 2.0)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if ignored else ""
    local_app(tmp_path, f"import signal, time\n{ignore}print('ready')\ntime.sleep(600)\n")
    with LocalEngine(tmp_path, tmp_path, Resources()) as engine:
        job = engine.start(run_in(tmp_path), resume=False)
        with job.lines as lines:
            assert lines.readline() == "ready\n"
            job.stop()
        assert job.trouble() == f"ended by signal {9 if ignored else 15}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_run_ends_with_the_command(tmp_path, number):
    """Stopped at the keyboard or by the system, it leaves no process behind."""
    if not Path("/proc").exists():
        pytest.skip("needs /proc")
    pid_file = tmp_path / "pid"
    config = local_app(
        tmp_path / "app",
        f"import os, pathlib, time\npathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n",
    )
    process = subprocess.Popen(
        [COMMAND, "simulate", config, "--engine", "local", "--output", tmp_path / "runs"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
        # A shell's background job ignores interrupts, and hands that on to what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not Path("/proc", pid_file.read_text()).exists()
    if number == signal.SIGINT:
        assert "stopped: what there is lies in" in errors


# ------------------------------------------------------------------ the app's own check
def checked_app(folder, program):
    """Write an app of which `program` is the check; ``configs`` is what it is asked about."""
    write_app(folder)
    (folder / "simulations" / "engine").mkdir(parents=True)
    (folder / "simulations" / "engine" / "__main__.py").write_text(
        "import json, pathlib, sys\nassert sys.argv[1] == '--check'\n"
        f"configs = json.loads(pathlib.Path(sys.argv[2]).read_text())\n{program}"
    )
    return folder


def test_the_app_is_asked_about_all_runs_at_once(tmp_path):
    app = checked_app(tmp_path, "pathlib.Path('asked.json').write_text(json.dumps(configs))\n")
    check_with_app([run_in(tmp_path), run_in(tmp_path, baseline=True, seed=3)], app)
    asked = json.loads((app / "asked.json").read_text())
    assert [(each["baseline"], each.get("seed")) for each in asked] == [(False, None), (True, 3)]
    assert asked[0]["task"] == "it's"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise FileNotFoundError('/data/x is missing')\n", "^/data/x is missing$"),
        ("raise ValueError('seed must be 1; Error: none')\n", "^seed must be 1; Error: none$"),
        ("sys.exit('no such task')\n", "^no such task$"),
        ("sys.exit(3)\n", "^its check failed$"),
    ],
)
def test_what_the_app_says_against_a_run_is_one_line(tmp_path, program, message):
    with pytest.raises(CommandError, match=message) as caught:
        check_with_app([run_in(tmp_path)], checked_app(tmp_path, program))
    assert caught.value.exit_code == 2


def test_an_app_that_has_no_check_is_not_asked(tmp_path):
    write_app(tmp_path)
    assert check_with_app([run_in(tmp_path)], tmp_path) is None


def test_what_the_app_finds_out_comes_back(tmp_path):
    facts = {
        "gpus": 2,
        "memory": 7,
        "runs": [{"messages": 3, "request-bytes": 10, "reply-bytes": 20}],
    }
    program = f"print('loading')\nprint(json.dumps({facts!r}))\n"
    assert check_with_app([run_in(tmp_path)], checked_app(tmp_path, program)) == AppFacts(
        gpus=2, memory=7, runs=(Messages(count=3, request_bytes=10, reply_bytes=20),)
    )


def test_an_app_whose_check_says_nothing_is_taken_as_it_is(tmp_path):
    for number, program in enumerate(("", "print('all is well')\n")):
        app = checked_app(tmp_path / str(number), program)
        assert check_with_app([run_in(tmp_path)], app) is None
