"""A Ray cluster that is there already, named by RAY_ADDRESS."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from flwr_sdp.cli.engines.ray_checks import Node
from flwr_sdp.cli.errors import CommandError

VARIABLE = "RAY_ADDRESS"

# Words in place of an address: Ray looks for a cluster on this machine, or starts one.
_AUTO, _LOCAL = "auto", "local"
_ANSWER_TIMEOUT = 5.0
_JOIN_TIMEOUT = 90.0


def cluster_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the cluster to run on, or None if Ray is to be started here.

    Raises
    ------
    CommandError
        If it is not one that a simulation can run on.
    """
    address = environment.get(VARIABLE, "").strip()
    if address in ("", _LOCAL):
        return None
    if "://" in address:
        raise CommandError(
            f"{VARIABLE} must be the HOST:PORT that `ray start --head` printed; got {address!r}: "
            "a simulation runs on a machine of the cluster, and not through a Ray client"
        )
    return address


def require_answer(address: str) -> None:
    """Raise a CommandError if nothing answers at a cluster's address, within seconds.

    Ray itself would try for minutes.
    """
    if address == _AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CommandError(f"{VARIABLE} must be HOST:PORT, such as 10.0.0.1:6379; got {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_TIMEOUT):
            pass
    except (OSError, OverflowError) as error:
        raise CommandError(
            f"no Ray cluster answers at {VARIABLE}={address} ({error}): start one with `ray start "
            f"--head`, or unset {VARIABLE} to run on this machine alone"
        ) from None


def cluster_nodes(address: str) -> list[Node]:
    """Return the machines of a cluster, asked from a process that joins it for a moment.

    Raises
    ------
    CommandError
        If it cannot be joined, in Ray's words.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "flwr_sdp.cli.engines.ray_nodes"],
            env={**os.environ, VARIABLE: address, "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_JOIN_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(
            f"the Ray cluster at {VARIABLE}={address} could not be joined within "
            f"{_JOIN_TIMEOUT:g} s: is this one of its machines, and is its Ray of the same version?"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise CommandError(f"the Ray cluster at {VARIABLE}={address} could not be joined: {last}")
    nodes = json.loads(done.stdout.strip().splitlines()[-1])
    return [Node(cpus=int(node["cpus"]), gpus=int(node["gpus"])) for node in nodes]
