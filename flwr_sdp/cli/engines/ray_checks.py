"""What can be said before Ray starts about the clients it is to run at once.

A run that is too large for its machine hangs, or is killed, minutes later and without a reason that
anyone could read. What is estimated here is only ever warned of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr_sdp.cli.engines.app_facts import AppFacts, Messages
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.gpu_share import SMALLEST, room, share_for, started
from flwr_sdp.cli.engines.machine import Machine
from flwr_sdp.cli.errors import CommandError

MIB = 2**20
GIB = 2**30

# Measured with Ray 2.55 and Flower 1.42, see docs/sizes.md.
ENGINE_MEMORY = 900 * MIB  # all processes but server and workers, and the libraries that all share
WORKER_EXTRA = 70 * MIB  # what Ray adds to a process of the app
IDLE_MEMORY = 110 * MIB  # a worker that has no message
CLIENT_COPIES = 15  # of the model, in a worker that trains and privatizes
SERVER_COPIES = 25  # and in the server's process

# Smaller ones travel inside the call, and not through the object store.
INLINED = 100_000
# A message lies there until that of the next call takes its place.
STORED_AT_ONCE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A machine of Ray's: the CPUs and GPUs that it gives out."""

    cpus: int
    gpus: int = 0


def clients_at_once(nodes: Iterable[Node], resources: Resources) -> int:
    """Return how many clients Flower runs at once.

    Raises
    ------
    CommandError
        If there is room for none, or for fewer than Flower would start: the run would hang.
    """
    nodes = list(nodes)
    _check_gpus(nodes, resources.num_gpus)
    cpus = max((node.cpus for node in nodes), default=0)
    if resources.num_cpus > cpus:
        raise CommandError(
            f"--num-cpus is {resources.num_cpus}, and no machine of this run has more than {cpus}: "
            f"pass at most {cpus}"
        )
    total = 0
    for node in nodes:
        by_cpus = node.cpus // resources.num_cpus
        if resources.num_gpus == 0:
            total += by_cpus
            continue
        clients = min(by_cpus, started(node.gpus, resources.num_gpus))
        fit = room(node.gpus, resources.num_gpus)
        if clients > fit:
            fewer = share_for(fit // node.gpus)
            raise CommandError(
                f"--num-gpus is {resources.num_gpus:g}: Flower would start {clients} clients on "
                f"{node.gpus} GPUs, and Ray has room for {fit}, as none can have parts of two "
                f"GPUs: pass --num-gpus {fewer:g}"
            )
        total += clients
    if total == 0:
        raise CommandError(
            f"--num-cpus {resources.num_cpus} and --num-gpus {resources.num_gpus:g} are not to be "
            "had on one machine: pass less of either"
        )
    return total


def _check_gpus(nodes: Sequence[Node], share: float) -> None:
    gpus = max((node.gpus for node in nodes), default=0)
    if share == 0:
        return
    if gpus == 0:
        raise CommandError(
            f"--num-gpus is {share:g}, and no GPU is to be seen: leave the option out (a driver, a "
            "PyTorch built for CUDA and CUDA_VISIBLE_DEVICES decide what is seen)"
        )
    if share > gpus:
        raise CommandError(
            f"--num-gpus is {share:g}, and no machine of this run has more than {gpus}: pass at "
            f"most {gpus}"
        )
    if share < SMALLEST or (share > 1 and share != int(share)):
        raise CommandError(
            f"--num-gpus must be a part of one GPU, of at least {SMALLEST:g}, or a whole number; "
            f"got {share:g}"
        )


def unused_gpus(nodes: Iterable[Node], resources: Resources) -> list[str]:
    """Return a warning if there are GPUs, and clients get none."""
    gpus = sum(node.gpus for node in nodes)
    if gpus == 0 or resources.num_gpus > 0:
        return []
    return [
        f"{gpus} {'GPU is' if gpus == 1 else 'GPUs are'} there, and clients train on CPUs: pass "
        "--num-gpus 1, or a part such as 0.25 for four clients on each (flwr-sdp preflight says "
        "how many fit)"
    ]


def tight_memory(machine: Machine, facts: AppFacts, clients: int) -> list[str]:
    """Return warnings about memory and shared memory that are likely to run out.

    Parameters
    ----------
    machine : Machine
        Where everything runs.
    facts : AppFacts
        What the app's own check has found out.
    clients : int
        How many Flower runs at once.
    """
    if not facts.runs:
        return []
    warnings = []
    largest = max(facts.runs, key=lambda run: run.request_bytes)
    busy = min(clients, largest.count)
    if facts.memory is not None and machine.memory is not None:
        need = _memory(facts.memory, largest, busy, clients - busy)
        if need > machine.memory:
            fewer = _fewer(machine, facts.memory, largest, clients)
            fix = f"pass --num-cpus {_cpus_for(machine.cores, fewer)}, for fewer clients at once"
            if clients == 1 or fewer == clients:
                fix = "a smaller model, less data or a larger machine would do"
            warnings.append(
                f"{clients} clients at once may need {need / GIB:.1f} GiB of memory, and "
                f"{machine.memory / GIB:.1f} GiB are free: {fix}"
            )
    stored = busy * stored_bytes(largest)
    if machine.shared_memory is not None and stored > machine.shared_memory:
        size = f"{-(-2 * stored // GIB)}g"
        warnings.append(
            f"{busy} clients at once may keep {stored / MIB:.0f} MiB of messages in /dev/shm, and "
            f"{machine.shared_memory / MIB:.0f} MiB are free there, so that Ray takes the disk: "
            f"docker run --shm-size={size}, or mount -o remount,size={size} /dev/shm"
        )
    return warnings


def stored_bytes(messages: Messages) -> int:
    """Return what the messages of one client take in Ray's object store."""
    sizes = (messages.request_bytes, messages.reply_bytes)
    return STORED_AT_ONCE * sum(size for size in sizes if size > INLINED)


def _memory(own: int, messages: Messages, busy: int, idle: int) -> int:
    model = messages.request_bytes
    worker = own + WORKER_EXTRA
    return (
        ENGINE_MEMORY
        + worker
        + SERVER_COPIES * model
        + busy * (worker + CLIENT_COPIES * model + stored_bytes(messages))
        + idle * IDLE_MEMORY
    )


def _fewer(machine: Machine, own: int, messages: Messages, clients: int) -> int:
    """Return how many clients the memory is enough for, at least one."""
    for number in range(clients, 1, -1):
        busy = min(number, messages.count)
        if _memory(own, messages, busy, number - busy) <= (machine.memory or 0):
            return number
    return 1


def _cpus_for(cores: int, clients: int) -> int:
    """Return the CPUs a client that leave room for at most so many clients."""
    return cores // (clients + 1) + 1
