"""How many clients fit on a machine, from what one of them was measured to take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from flwr_sdp.cli.engines.app_facts import Messages
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.gpu_share import share_for
from flwr_sdp.cli.engines.machine import Machine
from flwr_sdp.cli.engines.ray_checks import (
    ENGINE_MEMORY,
    GIB,
    MIB,
    SERVER_COPIES,
    WORKER_EXTRA,
    Node,
    clients_at_once,
    stored_bytes,
)

MARGIN = 0.9
"""The part of any memory that is counted on; the rest is for what was not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Memory of a GPU in bytes, see ``simulations/engine/process_memory.py``."""

    total: int
    context: int
    allocated: int
    reserved: int

    @property
    def of_a_process(self) -> int:
        """What one process takes: its context, and what PyTorch sets aside."""
        return self.context + self.reserved


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One client of a run, as ``python -m simulations.engine --measure`` prints it.

    Attributes
    ----------
    dim : int
        Coordinates of an update.
    first_seconds, second_seconds : float
        A local update and its privatization; the first has the start of everything in it.
    evaluation_seconds : float
        The server's, of one model.
    memory : int or None
        Bytes of the process's own before it trained; None where the system does not say.
    peak_memory : int or None
        The most it took, libraries included.
    client_memory : int or None
        What training added.
    gpus : int
        GPUs of the machine.
    gpu_memory : GpuMemory or None
        Of the first one, after training and evaluation.
    request_bytes, reply_bytes : int
        Size of the arrays in a message.
    num_clients : int
        The population.
    cohort : float
        Clients of a round, in expectation.
    evaluate_every : int
        Rounds.
    """

    dim: int
    first_seconds: float
    second_seconds: float
    evaluation_seconds: float
    memory: int | None
    peak_memory: int | None
    client_memory: int | None
    gpus: int
    gpu_memory: GpuMemory | None
    request_bytes: int
    reply_bytes: int
    num_clients: int
    cohort: float
    evaluate_every: int

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Measurement:
        """Return what the app's engine has printed."""
        values = {each.name: facts[each.name.replace("_", "-")] for each in fields(cls)}
        gpu = values["gpu_memory"]
        return cls(**{**values, "gpu_memory": None if gpu is None else GpuMemory(**gpu)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What allows so many clients at once, and not more.

    Attributes
    ----------
    what : str
        What is limited.
    clients : int
        How many it allows; 0 if not even one is safe.
    reason : str
        The figures.
    """

    what: str
    clients: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """How to run a simulation on a machine.

    Attributes
    ----------
    limits : tuple of Limit
        The smallest decides.
    resources : Resources
        What each client is to be given.
    clients_at_once : int
        How many Flower then runs at once.
    num_nodes : int
        Nodes that stand for the clients: one message each and round.
    seconds_at_best, seconds_at_worst : float
        Of a round, if clients that run at once do not slow each other down at all, or do as much
        as if they ran one after another. Messages and the server's own work are not in it.
    """

    limits: tuple[Limit, ...]
    resources: Resources
    clients_at_once: int
    num_nodes: int
    seconds_at_best: float
    seconds_at_worst: float

    @property
    def is_safe(self) -> bool:
        """Whether every limit allows one client at least."""
        return all(limit.clients > 0 for limit in self.limits)


def propose(measured: Measurement, machine: Machine) -> Proposal:
    """Return how to run what was measured on a machine, each client on a GPU if there is one."""
    limits = tuple(_limits(measured, machine))
    most = max(1, min(limit.clients for limit in limits))
    gpus = measured.gpus if measured.gpu_memory is not None else 0
    resources = _resources(machine.cores, gpus, most)
    at_once = clients_at_once([Node(cpus=machine.cores, gpus=gpus)], resources)
    cohort, evaluation = measured.cohort, measured.evaluation_seconds / measured.evaluate_every
    return Proposal(
        limits=limits,
        resources=resources,
        clients_at_once=at_once,
        num_nodes=min(at_once, measured.num_clients),
        seconds_at_best=math.ceil(cohort / at_once) * measured.second_seconds + evaluation,
        seconds_at_worst=math.ceil(cohort) * measured.second_seconds + evaluation,
    )


def _limits(measured: Measurement, machine: Machine) -> list[Limit]:
    cohort = math.ceil(measured.cohort)
    limits = [
        Limit(what="cores", clients=machine.cores, reason="one each"),
        Limit(what="cohort", clients=cohort, reason="there are no more in a round"),
    ]
    messages = Messages(
        count=cohort, request_bytes=measured.request_bytes, reply_bytes=measured.reply_bytes
    )
    stored = stored_bytes(messages)
    own, added = measured.memory, measured.client_memory
    if machine.memory is not None and own is not None and added is not None:
        server = own + max(added, SERVER_COPIES * measured.request_bytes)
        rest = MARGIN * machine.memory - ENGINE_MEMORY - WORKER_EXTRA - server
        each = own + WORKER_EXTRA + added + stored
        limits.append(
            Limit(
                what="memory",
                clients=max(0, int(rest / each)),
                reason=f"{each / MIB:.0f} MiB each, of {machine.memory / GIB:.1f} GiB that are "
                f"free less {(ENGINE_MEMORY + WORKER_EXTRA + server) / MIB:.0f} MiB for Ray, "
                "Flower and the server",
            )
        )
    if machine.shared_memory is not None and stored:
        limits.append(
            Limit(
                what="shared memory",
                clients=int(MARGIN * machine.shared_memory / stored),
                reason=f"{stored / MIB:.0f} MiB of messages each, of "
                f"{machine.shared_memory / MIB:.0f} MiB that are free in /dev/shm",
            )
        )
    if measured.gpu_memory is not None:
        limits.append(_gpu_limit(measured.gpu_memory, measured.gpus))
    return limits


def _gpu_limit(memory: GpuMemory, gpus: int) -> Limit:
    """Return how many clients the GPUs have memory for, with the server's process on the first."""
    each = memory.of_a_process
    on_one = max(0, int(MARGIN * memory.total / each) - 1)
    return Limit(
        what="GPU memory",
        clients=gpus * on_one,
        reason=f"{each / MIB:.0f} MiB each (context {memory.context / MIB:.0f}, tensors "
        f"{memory.reserved / MIB:.0f}), of {memory.total / GIB:.1f} GiB on each of {gpus}, with "
        "the server's process on the first",
    )


def _resources(cores: int, gpus: int, most: int) -> Resources:
    """Return what to give each client, so that at most `most` run at once, and close to it."""
    num_gpus, by_gpus = 0.0, cores
    if gpus:
        on_one = max(1, most // gpus)
        num_gpus, by_gpus = share_for(on_one), gpus * on_one
    num_cpus = 1
    while min(cores // num_cpus, by_gpus) > most:
        num_cpus += 1
    return Resources(num_cpus=num_cpus, num_gpus=num_gpus)
