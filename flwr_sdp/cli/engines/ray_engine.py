"""Runs on Ray, under a SuperLink of our own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from flwr_sdp.cli.engines.app_facts import AppFacts
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.gpu_share import not_above
from flwr_sdp.cli.engines.machine import this_machine
from flwr_sdp.cli.engines.ray_checks import Node, clients_at_once, tight_memory, unused_gpus
from flwr_sdp.cli.engines.ray_cluster import cluster_address, cluster_nodes, require_answer
from flwr_sdp.cli.engines.superlink import LocalSuperLink
from flwr_sdp.cli.errors import CommandError, require_packages
from flwr_sdp.cli.runs.grid import Run
from flwr_sdp.cli.runs.run_config import whole_run_config
from flwr_sdp.cli.runs.run_file import RESUME_KEY
from flwr_sdp.cli.runs.values import flower_value

_COMPLETED = "finished:completed"


class RayEngine:
    """Every run is a ``flwr run`` on one SuperLink.

    See :class:`~flwr_sdp.cli.engines.engine.Engine`.

    Flower starts Ray on this machine, or joins the cluster that RAY_ADDRESS names.
    """

    starting = "starting Ray"

    def __init__(self, app_dir: Path, run_dir: Path, resources: Resources) -> None:
        self._app_dir = app_dir
        self._resources = resources
        # Results lie where all machines of a cluster see them; the app has to, too.
        home = None if cluster_address() is None else run_dir / "flwr-home"
        self._superlink = LocalSuperLink(run_dir / "superlink.log", home)

    @staticmethod
    def check(app_dir: Path) -> None:
        """Raise a CommandError if Ray is not installed, or its cluster does not answer."""
        require_packages("ray")
        address = cluster_address()
        if address is not None:
            require_answer(address)

    @staticmethod
    def foresee(facts: AppFacts | None, resources: Resources) -> list[str]:
        """Return warnings about the machine, or the machines of the cluster."""
        address = cluster_address()
        if address is not None:
            nodes = cluster_nodes(address)
            clients_at_once(nodes, resources)
            return unused_gpus(nodes, resources)
        if facts is None:
            return []
        machine = this_machine()
        nodes = [Node(cpus=machine.cores, gpus=facts.gpus)]
        clients = clients_at_once(nodes, resources)
        return [*unused_gpus(nodes, resources), *tight_memory(machine, facts, clients)]

    def __enter__(self) -> RayEngine:
        """Start the SuperLink."""
        self._superlink.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the SuperLink and what it started."""
        self._superlink.__exit__(kind, error, trace)

    def start(self, run: Run, *, resume: bool) -> RayJob:
        """Submit a run."""
        config = whole_run_config(run, resume=resume)
        if not resume:
            del config[RESUME_KEY]  # an app that cannot be resumed has no such key
        answer = self._superlink.flwr(
            "run",
            str(self._app_dir),
            "--run-config",
            " ".join(f"{key}={flower_value(value)}" for key, value in config.items()),
            "--federation-config",
            f"num-supernodes={_num_supernodes(config)} "
            f"client-resources-num-cpus={self._resources.num_cpus} "
            f"client-resources-num-gpus={not_above(self._resources.num_gpus)}",
        )
        return RayJob(self._superlink, str(answer["run-id"]))


class RayJob:
    """A run on the SuperLink, see :class:`~flwr_sdp.cli.engines.engine.Job`."""

    def __init__(self, superlink: LocalSuperLink, run_id: str) -> None:
        self._superlink = superlink
        self._run_id = run_id
        self._stream: subprocess.Popen[str] = superlink.stream_log(run_id)
        self.lines = cast("IO[str]", self._stream.stdout)  # it was opened with a pipe

    def trouble(self) -> str | None:
        """Wait for the end of the run, which may come after that of its log."""
        status, details = self._superlink.wait_for_end(self._run_id)
        return None if status == _COMPLETED else f"{status} {details}".strip()

    def stop(self) -> None:
        """Ask Flower to stop the run."""
        with suppress(CommandError):
            self._superlink.stop_run(self._run_id)

    def close(self) -> None:
        """End the process that streams the log."""
        self._stream.terminate()
        self._stream.wait()


def _num_supernodes(config: Mapping[str, Any]) -> int:
    """Return how many nodes stand for the clients: one each, unless the app says otherwise."""
    return int(config.get("num-nodes", 0) or config.get("num-clients", 2))
