"""What runs are started on: what the app is told, and that nothing is left running."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flwr_sdp.cli.engines import Resources
from flwr_sdp.cli.local_engine import LocalEngine
from flwr_sdp.cli.ray_engine import RayEngine
from flwr_sdp.cli.runs import Run
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

    def made(folder, superlink):
        monkeypatch.setattr("flwr_sdp.cli.ray_engine.LocalSuperLink", lambda log_file: superlink)
        return RayEngine(folder, folder, Resources(num_cpus=2, num_gpus=0.5))

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


def test_a_resumed_run_is_told_so_and_a_failed_one_says_why(tmp_path, ray_engine):
    superlink = SuperLink("finished:failed")
    job = ray_engine(tmp_path, superlink).start(run_in(tmp_path), resume=True)
    assert superlink.calls[0][3].endswith("resume=true")
    assert job.trouble() == "finished:failed a detail"
    job.close()
    job.lines.close()


# ------------------------------------------------------------------ one process
def local_app(folder, program):
    config = write_app(folder)
    (folder / "simulations" / "engine").mkdir(parents=True)
    (folder / "simulations" / "engine" / "__main__.py").write_text(program)
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
