"""A SuperLink and SuperNodes on loopback: real processes, TLS, keys, a folder for each."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.deployment.credentials import Certificates, make_certificates, make_node_key

BIN = Path(sys.executable).parent
CONNECTION = "fleet"
# Every process of a fleet has it in its environment, those that left the process group as well.
MARK = "FLWR_SDP_TEST_FLEET"


def superlink_command(address: str, certificates: Certificates, database: Path) -> list[str]:
    """Return the command of docs/deployment.md."""
    host, port = address.split(":")
    return [
        str(BIN / "flower-superlink"),
        *("--ssl-ca-certfile", str(certificates.ca)),
        *("--ssl-certfile", str(certificates.certificate)),
        *("--ssl-keyfile", str(certificates.key)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", host, "--port", port),
        *("--database", str(database)),
    ]


def supernode_command(
    superlink: str, certificates: Certificates, key: Path, node_config: dict[str, Any]
) -> list[str]:
    """Return the command of docs/deployment.md."""
    settings = (f"{name}={json.dumps(value)}" for name, value in node_config.items())
    return [
        str(BIN / "flower-supernode"),
        *("--superlink", superlink),
        *("--root-certificates", str(certificates.ca)),
        *("--auth-supernode-private-key", str(key)),
        *("--node-config", " ".join(settings)),
    ]


class Process:
    """A command in a process group of its own, with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 30) -> str:
        return f"--- {self.log}\n" + "\n".join(self.text().splitlines()[-lines:])

    def kill(self) -> None:
        """Kill the process as a power cut would, its children with it."""
        signal_group(self.popen.pid, signal.SIGKILL)
        self.popen.wait(timeout=10.0)

    def terminate(self) -> None:
        signal_group(self.popen.pid, signal.SIGTERM)

    def wait(self) -> None:
        """Wait for the end of a process that was asked to end; kill it if it does not."""
        try:
            self.popen.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self.kill()


class Node(Process):
    """A SuperNode; its folder has its key, and whatever the device keeps."""

    def __init__(
        self, fleet: "Fleet", name: str, node_config: dict[str, Any], *, key: bool = True
    ) -> None:
        self.folder = fleet.folder / name
        command = supernode_command(
            fleet.address, fleet.certificates, self.folder / "node.key", node_config
        )
        if not key:
            place = command.index("--auth-supernode-private-key")
            del command[place : place + 2]
        # On machines of their own they would share neither the port nor the copy of the app.
        command += ["--port", str(free_port())]
        environment = fleet.environment(self.folder / "flwr")
        super().__init__(command, self.folder / "supernode.log", environment, self.folder)


class Fleet:
    """Context manager: a SuperLink that only registered SuperNodes can join, and its SuperNodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.certificates = make_certificates(folder / "certificates")
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: dict[str, Node] = {}
        self.node_ids: dict[str, int] = {}
        self.home = folder / "flwr"
        self.home.mkdir()
        (self.home / "config.toml").write_text(
            f"[superlink.{CONNECTION}]\n"
            f'address = "{self.address}"\n'
            f'root-certificates = "{self.certificates.ca}"\n'
        )

    def __enter__(self) -> "Fleet":
        self.superlink = Process(
            superlink_command(self.address, self.certificates, self.folder / "superlink.db"),
            self.folder / "superlink.log",
            self.environment(self.home),
            self.folder,
        )
        try:
            wait_until(lambda: "Uvicorn running" in self.superlink.text(), 60.0, self.superlink)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for node in self.nodes.values():
                node.terminate()
            for node in self.nodes.values():
                node.wait()
            self.superlink.terminate()
            self.superlink.wait()
        finally:
            # A SuperLink's workers have sessions of their own, and end a second or two after it.
            deadline = time.monotonic() + 5.0
            while self.processes() and time.monotonic() < deadline:
                time.sleep(0.1)
            for pid in self.processes():
                signal_group(pid, signal.SIGKILL, group=False)

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of a process; nothing of the user's Flower is in it."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        env.update(
            FLWR_HOME=str(home),
            FLWR_TELEMETRY_ENABLED="0",
            FLWR_DISABLE_UPDATE_CHECK="1",
            FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.1",
            OMP_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1",
            PYTHONUNBUFFERED="1",
            PATH=f"{BIN}{os.pathsep}{env.get('PATH', '')}",
        )
        env[MARK] = self.mark
        for name in ("no_proxy", "NO_PROXY"):
            env[name] = "127.0.0.1,localhost"
        return env

    def processes(self) -> list[int]:
        """Return the processes of this fleet that are running, on systems that tell."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended, or is another user's
        return found

    # ------------------------------------------------------------------ nodes
    def register(self, name: str) -> None:
        """Give a node a key, and tell the SuperLink of it."""
        public = self.make_key(name)
        answer = self.flwr("supernode", "register", str(public), CONNECTION)
        self.node_ids[name] = answer["node-id"]

    def unregister(self, name: str) -> None:
        """Tell the SuperLink that a node is lost."""
        self.flwr("supernode", "unregister", str(self.node_ids[name]), CONNECTION)

    def make_key(self, name: str) -> Path:
        (self.folder / name).mkdir()
        _, public = make_node_key(self.folder / name)
        return public

    def start_node(self, name: str, node_config: dict[str, Any], *, key: bool = True) -> Node:
        """Start a node, with the key it was given or without one."""
        self.nodes[name] = Node(self, name, node_config, key=key)
        return self.nodes[name]

    def wait_online(self, *names: str, timeout: float = 60.0) -> None:
        for name in names:
            node = self.nodes[name]
            wait_until(lambda node=node: "SuperNode ID:" in node.text(), timeout, node)

    # ------------------------------------------------------------------ runs
    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command and return what it printed as JSON."""
        done = subprocess.run(
            [BIN / "flwr", *arguments, "--format", "json"],
            env=self.environment(self.home),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60.0,
        )
        start = done.stdout.find("{")
        answer = json.loads(done.stdout[start:]) if start >= 0 else {}
        if done.returncode != 0 or not answer.get("success"):
            raise RuntimeError(f"flwr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return answer

    def submit(self, app: Path, run_config: dict[str, Any]) -> str:
        """Start a run and return its id."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
        return str(self.flwr("run", str(app), CONNECTION, "--run-config", settings)["run-id"])

    def statuses(self) -> dict[str, str]:
        """Return the status of every run there has been, such as ``finished:completed``."""
        return {run["run-id"]: run["status"] for run in self.flwr("ls", CONNECTION)["runs"]}

    def wait_for_end(self, run_id: str, timeout: float = 180.0) -> None:
        """Wait until a run has ended, well or badly."""
        # Read from the log: to ask with the command every time would take most of a small machine.
        finished = re.compile(rf"Finished task \d+ of run {run_id}\b")
        wait_until(
            lambda: finished.search(self.superlink.text()) is not None,
            timeout,
            self.superlink,
            *self.nodes.values(),
            what=f"run {run_id} to end",
        )

    def logs(self) -> str:
        """Return the last lines of every process."""
        return "\n".join(process.tail() for process in (self.superlink, *self.nodes.values()))


def wait_until(
    condition: Callable[[], bool],
    timeout: float,
    *processes: Process,
    interval: float = 0.05,
    what: str = "",
) -> None:
    """Wait until `condition` holds, or fail with the last lines of the processes concerned."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            tails = "\n".join(process.tail() for process in processes)
            raise TimeoutError(f"waited {timeout:g} s in vain{what and f' for {what}'}\n{tails}")
        time.sleep(interval)


def signal_group(pid: int, sign: signal.Signals, *, group: bool = True) -> None:
    try:
        (os.killpg if group else os.kill)(pid, sign)
    except ProcessLookupError:
        pass  # it has ended


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])
