"""The launcher: what it refuses before it starts anything, and whole runs on Ray."""

import csv
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMMAND = Path(sys.executable).parent / "flwr-sdp"
DIGITS = ROOT / "simulations" / "conf" / "digits.toml"

pytest.importorskip("ray", reason="needs flwr-sdp[simulation]")


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def simulate(*arguments, env=None, timeout=300):
    return subprocess.run(
        [COMMAND, "simulate", *map(str, arguments)],
        env={**os.environ, "COLUMNS": "100", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# ------------------------------------------------------------------ mistakes in the call
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.toml"], "cannot read missing.toml: No such file or directory"),
        ([DIGITS, "--set", "sdp-epsilon-dircetion=3"], "unknown key 'sdp-epsilon-dircetion'"),
        ([DIGITS, "--set", "seed"], "--set wants KEY=VALUE; got 'seed'"),
        ([DIGITS, "--app", ROOT / "simulations"], "no Flower app at"),
        ([DIGITS, "--set", "baseline=true"], "baseline is set by the launcher"),
        ([DIGITS, "--set", "resume=true"], "resume is set by the launcher"),
        ([DIGITS, "--resume", ROOT / "docs"], "docs has no checkpoints"),
        ([DIGITS, "--set", "sdp-clip-norm=inf"], "must be text, a finite number, true or false"),
        ([DIGITS, "--set", "seed=2026-01-01"], "must be text, a finite number, true or false"),
    ],
)
def test_mistakes_are_one_line_with_exit_status_2(arguments, message, tmp_path):
    done = simulate(*arguments, "--output", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_invalid_toml_is_named(tmp_path):
    config = tmp_path / "bad.toml"
    config.write_text("task = ")
    done = simulate(config)
    assert done.returncode == 2
    assert f"{config} is not valid TOML" in done.stderr


def test_other_settings_than_those_of_the_resumed_run_are_named(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    done = simulate(DIGITS, "--output", tmp_path, "--resume", tmp_path)
    assert done.returncode == 2
    assert f"cannot read {tmp_path / 'config.toml'}" in done.stderr
    (tmp_path / "config.toml").write_text("checkpoint-keep = 9\n")
    done = simulate(DIGITS, "--resume", tmp_path)
    assert done.returncode == 2
    assert "was None in the run in" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "config.toml"]


def test_a_superlink_that_is_interrupted_while_it_starts_is_stopped(tmp_path, monkeypatch):
    from flwr_sdp.cli.engines.superlink import LocalSuperLink

    started = []

    def interrupt(self, _url):
        started.append(self._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalSuperLink, "_answers", interrupt)
    with pytest.raises(KeyboardInterrupt), LocalSuperLink(tmp_path / "superlink.log"):
        pass
    assert started[0].poll() is not None


# ------------------------------------------------------------------ runs on Ray
class Recorder(http.server.BaseHTTPRequestHandler):
    """Another user's SuperLink, as far as a health check can tell; writes down who asks."""

    requests: list[str] = []  # noqa: RUF012 - the class is the only instance's memory

    def do_GET(self):
        self.requests.append(self.path)
        self.send_response(200)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        """Say nothing."""


ROUNDS = 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return what the launcher said of a run, with a baseline, beside another SuperLink."""
    folder = tmp_path_factory.mktemp("finished")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = str(server.server_address[1])
    try:
        done = simulate(
            DIGITS,
            *("--output", folder),
            *("--set", f"num-server-rounds={ROUNDS}"),
            *("--set", "num-clients=20"),
            env={"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port, "FLWR_HOME": str(folder / "home")},
        )
    finally:
        server.shutdown()
        server.server_close()
    return done, folder


@pytest.mark.simulation
def test_a_run_leaves_its_results_and_no_other_superlink_is_touched(finished):
    done, folder = finished
    assert done.returncode == 0, done.stdout + done.stderr
    assert Recorder.requests == []
    assert not (folder / "home").exists()

    (run_dir,) = (folder / "digits").iterdir()
    for file in ("metrics.csv", "baseline-metrics.csv"):
        rows = rows_of(run_dir / file)
        assert [int(row["round"]) for row in rows] == list(range(ROUNDS + 1))
        assert all(0.0 <= float(row["accuracy"]) <= 1.0 for row in rows)
    private = rows_of(run_dir / "metrics.csv")
    baseline = rows_of(run_dir / "baseline-metrics.csv")
    # The same seeds: the same first model and the same cohorts, by partition.
    assert private[0]["accuracy"] == baseline[0]["accuracy"]
    assert [row["cohort"] for row in private] == [row["cohort"] for row in baseline]

    report = json.loads((run_dir / "report.json").read_text())
    assert report["local"]["epsilon_per_report"] == pytest.approx(60.0, rel=1e-9)
    assert report["central"]["status"] == "run"
    assert report["central"]["population"] == 20
    assert report["central"]["releases"] == ROUNDS
    assert float(private[-1]["cdp-epsilon"]) == pytest.approx(report["central"]["epsilon"])
    assert report["central_projected"][0]["status"] == "projected, not run"
    assert report["central_projected"][0]["population"] == 10**7
    unprotected = json.loads((run_dir / "baseline-report.json").read_text())
    assert unprotected["local"] is None
    assert unprotected["central"] is None

    results = rows_of(run_dir / "results.csv")
    assert [row["accuracy"] for row in results] == [
        row["accuracy"] for row in (*private, *baseline)
    ]
    assert [row["privacy"] for row in results] == ["private"] * 5 + ["none"] * 5
    assert {row["data"] for row in results} == {report["data"]}

    assert (run_dir / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "num-server-rounds = 4" in (run_dir / "config.toml").read_text()
    assert (run_dir / "report.txt").read_text() in done.stdout + "\n"
    assert "PROJECTED" in done.stdout


@pytest.mark.simulation
def test_a_run_is_resumed_in_its_folder(finished, tmp_path):
    (run_dir,) = (finished[1] / "digits").iterdir()
    folder = shutil.copytree(run_dir, tmp_path / "digits" / run_dir.name)
    before = (folder / "metrics.csv").read_text()
    settings = ("--no-baseline", "--output", tmp_path, "--set", "num-clients=20")
    done = simulate(DIGITS, *settings, "--set", "num-server-rounds=6", "--resume", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "digits").iterdir()) == [folder]
    assert (folder / "metrics.csv").read_text().startswith(before)
    assert [int(row["round"]) for row in rows_of(folder / "metrics.csv")] == list(range(7))
    report = json.loads((folder / "report.json").read_text())
    assert report["rounds"] == report["central"]["releases"] == 6
    assert report["local"]["max_reports_per_client"] == 6


@pytest.fixture
def broken_app(tmp_path):
    """Return the run file of an app whose client 3 raises."""
    app = tmp_path / "app"
    shutil.copytree(ROOT / "simulations", app / "simulations")
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, app)
    (app / "simulations" / "tasks" / "broken.py").write_text(
        """
from simulations.tasks import digits


class Broken(digits.Digits):
    def local_update(self, model, *, client, server_round):
        if client == 3:
            raise RuntimeError("the third client is broken")
        return super().local_update(model, client=client, server_round=server_round)


def task(settings):
    return Broken(settings)
"""
    )
    config = app / "broken.toml"
    config.write_text(
        'task = "broken"\nnum-clients = 6\nnum-server-rounds = 500\nsdp-sampling-rate = 1.0\n'
    )
    return config


@pytest.mark.simulation
def test_a_client_that_raises_fails_the_run_with_its_traceback_and_partition(broken_app, tmp_path):
    """500 rounds would take minutes: the run must end in the first."""
    start = time.monotonic()
    done = simulate(broken_app, "--output", tmp_path / "runs", "--no-baseline")
    assert done.returncode == 1
    assert "partition 3" in done.stdout
    assert 'raise RuntimeError("the third client is broken")' in done.stdout
    assert "1 client(s) failed in round 1" in done.stdout
    (run_dir,) = (tmp_path / "runs" / "broken").iterdir()
    rows = rows_of(run_dir / "metrics.csv")
    assert len(rows) == 2
    assert time.monotonic() - start < 180
