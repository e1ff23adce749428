"""Runs on a Ray cluster that is there already."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.process_job import end_group
from flwr_sdp.cli.engines.ray_checks import Node
from flwr_sdp.cli.engines.ray_cluster import cluster_address, cluster_nodes, require_answer
from flwr_sdp.cli.engines.ray_engine import RayEngine
from flwr_sdp.cli.errors import CommandError

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
DIGITS = ROOT / "simulations" / "conf" / "digits.toml"


# ------------------------------------------------------------------ the address
@pytest.mark.parametrize(
    ("value", "address"),
    [
        (None, None),
        ("", None),
        ("local", None),
        ("auto", "auto"),
        (" 10.0.0.1:6379 ", "10.0.0.1:6379"),
    ],
)
def test_address_of_a_cluster(value, address):
    assert cluster_address({} if value is None else {"RAY_ADDRESS": value}) == address


def test_a_ray_client_is_refused():
    with pytest.raises(CommandError, match=r"must be the HOST:PORT .* not through a Ray client"):
        cluster_address({"RAY_ADDRESS": "ray://10.0.0.1:10001"})


@pytest.mark.parametrize("address", ["10.0.0.1", "head", ":6379", "head:port"])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(CommandError, match="must be HOST:PORT, such as"):
        require_answer(address)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_what_answers_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_answer(f"127.0.0.1:{server.getsockname()[1]}")
    require_answer("auto")  # Ray looks for it


def simulate(*arguments, env, timeout):
    return subprocess.run(
        [BIN / "flwr-sdp", "simulate", DIGITS, *map(str, arguments)],
        env={**os.environ, "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_cluster_that_does_not_answer_is_said_within_seconds_and_nothing_is_left(tmp_path):
    pytest.importorskip("ray", reason="needs flwr-sdp[simulation]")
    address = f"127.0.0.1:{free_port()}"
    start = time.monotonic()
    done = simulate("--output", tmp_path, env={"RAY_ADDRESS": address}, timeout=60)
    assert done.returncode == 2
    assert f"no Ray cluster answers at RAY_ADDRESS={address}" in done.stderr
    assert "ray start --head" in done.stderr
    assert time.monotonic() - start < 20
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ what the engine makes of it
@pytest.fixture
def cluster(monkeypatch):
    """Return a function that makes the engine believe in a cluster of such machines."""

    def named(*nodes):
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        monkeypatch.setattr(
            "flwr_sdp.cli.engines.ray_engine.cluster_nodes", lambda address: list(nodes)
        )

    return named


def test_resources_are_those_of_the_cluster(cluster):
    """Not of this machine, nor its memory: without facts of the app there is a warning as well."""
    cluster(Node(cpus=0), Node(cpus=64, gpus=4))
    (warning,) = RayEngine.foresee(None, Resources(num_cpus=32))
    assert "4 GPUs are there" in warning
    assert RayEngine.foresee(None, Resources(num_cpus=32, num_gpus=1.0)) == []
    with pytest.raises(CommandError, match="no machine of this run has more than 64"):
        RayEngine.foresee(None, Resources(num_cpus=65))


def test_the_app_is_unpacked_among_the_results(cluster, tmp_path, monkeypatch):
    """The machines of a cluster share the disk of the results; here, no folder is left behind."""
    homes = []
    monkeypatch.setattr(
        "flwr_sdp.cli.engines.ray_engine.LocalSuperLink", lambda log_file, home: homes.append(home)
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    RayEngine(tmp_path, tmp_path, Resources())
    cluster(Node(cpus=1))
    RayEngine(tmp_path, tmp_path, Resources())
    assert homes == [None, tmp_path / "flwr-home"]


# ------------------------------------------------------------------ a head on loopback
@pytest.fixture
def head():
    """Start the head of a cluster with ports and files of its own; yield its address and folder."""
    pytest.importorskip("ray", reason="needs flwr-sdp[simulation]")
    port = free_port()
    # Not below tmp_path: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", "--disable-usage-stats",
             "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false",
             "--num-cpus=2", "--num-gpus=1", f"--temp-dir={folder}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
            start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    require_answer(f"127.0.0.1:{port}")
                    break
                except CommandError:
                    time.sleep(0.2)
            yield f"127.0.0.1:{port}", Path(folder)
        finally:
            end_group(process)


@pytest.mark.simulation
@pytest.mark.slow
def test_a_run_on_a_cluster_that_lives_on(head, tmp_path):
    """Two rounds by clients with half of the GPU that the head says it has."""
    address, folder = head
    done = simulate(
        *("--output", tmp_path, "--no-baseline", "--num-gpus", 0.5),
        *("--set", "num-server-rounds=2", "--set", "num-nodes=2"),
        env={"RAY_ADDRESS": address},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = (tmp_path / "digits").iterdir()
    assert (run_dir / "report.json").is_file()
    assert not (run_dir / "flwr-home").exists()
    assert f"{run_dir}/flwr-home/apps/" in (run_dir / "private.log").read_text()
    # The clients were workers of this head, which goes on.
    logs = (folder / "session_latest" / "logs").glob("worker-*")
    assert any("ClientAppActor" in path.read_text() for path in logs)
    assert cluster_nodes(address) == [Node(cpus=2, gpus=1)]
