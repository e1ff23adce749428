"""What is said before Ray starts, on machines that are only told of."""

from dataclasses import replace

import pytest

from flwr_sdp.cli.engines.app_facts import AppFacts, Messages
from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.local_engine import LocalEngine
from flwr_sdp.cli.engines.machine import Machine
from flwr_sdp.cli.engines.ray_checks import Node, clients_at_once, tight_memory, unused_gpus
from flwr_sdp.cli.errors import CommandError

MIB, GIB = 2**20, 2**30

# As the check reports them: digits.toml, and the network of 3,274,634 weights on two nodes.
DIGITS = AppFacts(
    gpus=0,
    memory=375 * 10**6,
    runs=(Messages(count=50, request_bytes=38_952, reply_bytes=38_952),) * 2,
)
MNIST = AppFacts(
    gpus=0,
    memory=420 * 10**6,
    runs=(Messages(count=20, request_bytes=13_100_000, reply_bytes=26_200_000),),
)
LAPTOP = Machine(cores=2, memory=8 * GIB, shared_memory=64 * MIB)


def on(cores, gpus=0):
    return [Node(cpus=cores, gpus=gpus)]


# ------------------------------------------------------------------ how many at once
@pytest.mark.parametrize(
    ("nodes", "num_cpus", "num_gpus", "clients"),
    [
        (on(2), 1, 0.0, 2),
        (on(16), 3, 0.0, 5),
        (on(16, gpus=1), 1, 0.25, 4),
        (on(16, gpus=1), 1, 0.1, 10),
        (on(4, gpus=1), 1, 0.1, 4),
        (on(16, gpus=2), 1, 1.0, 2),
        (on(64, gpus=4), 2, 2.0, 2),
        ([Node(cpus=0), Node(cpus=8, gpus=1), Node(cpus=8)], 1, 0.5, 2),
        ([Node(cpus=4), Node(cpus=8)], 3, 0.0, 3),
    ],
)
def test_clients_at_once_are_counted_on_each_machine(nodes, num_cpus, num_gpus, clients):
    assert clients_at_once(nodes, Resources(num_cpus=num_cpus, num_gpus=num_gpus)) == clients


@pytest.mark.parametrize(
    ("nodes", "num_cpus", "num_gpus", "message"),
    [
        (on(2), 4, 0.0, "^--num-cpus is 4, .* has more than 2: pass at most 2$"),
        (on(2), 1, 0.5, "^--num-gpus is 0.5, and no GPU is to be seen: leave the option out"),
        (on(2, gpus=1), 1, 2.0, "^--num-gpus is 2, .* has more than 1: pass at most 1$"),
        (on(8, gpus=4), 1, 1.5, "a part of one GPU, of at least 0.0001, or a whole number"),
        (on(8, gpus=4), 1, 0.00005, "a part of one GPU"),
        (on(64, gpus=8), 1, 0.3, "start 26 clients on 8 GPUs, .* room for 24.*--num-gpus 0.33333"),
        (on(64, gpus=8), 1, 0.7, "start 11 clients on 8 GPUs, .* room for 8.*--num-gpus 1$"),
        ([Node(cpus=1, gpus=1), Node(cpus=8)], 4, 1.0, "not to be had on one machine"),
    ],
)
def test_what_would_hang_or_fail_is_refused_with_the_fix(nodes, num_cpus, num_gpus, message):
    with pytest.raises(CommandError, match=message):
        clients_at_once(nodes, Resources(num_cpus=num_cpus, num_gpus=num_gpus))


def test_a_share_that_is_proposed_is_accepted():
    """And nothing is said where the cores keep Flower from starting too many."""
    assert clients_at_once(on(64, gpus=8), Resources(num_gpus=0.333333)) == 24
    assert clients_at_once(on(24, gpus=8), Resources(num_gpus=0.3)) == 24


def test_gpus_that_nobody_uses_are_said():
    (warning,) = unused_gpus(on(16, gpus=1), Resources())
    assert warning.startswith("1 GPU is there, and clients train on CPUs: pass --num-gpus 1")
    (warning,) = unused_gpus([*on(8, gpus=2), *on(8, gpus=1)], Resources())
    assert warning.startswith("3 GPUs are there")
    assert unused_gpus(on(16, gpus=1), Resources(num_gpus=0.1)) == []
    assert unused_gpus(on(16), Resources()) == []


# ------------------------------------------------------------------ memory
@pytest.mark.parametrize(
    ("facts", "machine", "clients"),
    [
        (DIGITS, LAPTOP, 2),
        (DIGITS, replace(LAPTOP, memory=4 * GIB), 2),
        (MNIST, replace(LAPTOP, shared_memory=4 * GIB), 2),
        (DIGITS, Machine(cores=64, memory=64 * GIB, shared_memory=64 * MIB), 64),
        (MNIST, Machine(cores=2), 2),
        (replace(MNIST, memory=None), Machine(cores=2, memory=1), 2),
        (replace(MNIST, runs=()), Machine(cores=2, memory=1, shared_memory=1), 2),
    ],
    ids=["laptop", "4 GiB", "mnist", "64 cores", "no facts", "no memory known", "no runs"],
)
def test_nothing_is_said_where_there_is_room_or_nothing_is_known(facts, machine, clients):
    assert tight_memory(machine, facts, clients) == []


@pytest.mark.parametrize(("cores", "gib"), [(64, 16), (16, 6), (8, 5), (4, 2.5)])
def test_too_many_clients_for_the_memory_are_said_and_the_fix_helps(cores, gib):
    machine = Machine(cores=cores, memory=int(gib * GIB))
    (warning,) = tight_memory(machine, MNIST, cores)
    assert f"{cores} clients at once may need" in warning
    assert f"{gib:.1f} GiB are free: pass --num-cpus " in warning
    num_cpus = int(warning.split("--num-cpus ")[1].split(",")[0])
    fewer = clients_at_once(on(cores), Resources(num_cpus=num_cpus))
    assert 1 <= fewer < cores
    if gib > 3:  # else not even one is
        assert tight_memory(machine, MNIST, fewer) == []


def test_one_client_that_is_too_large_is_no_matter_of_options():
    (warning,) = tight_memory(Machine(cores=1, memory=GIB), MNIST, 1)
    assert warning.endswith("a smaller model, less data or a larger machine would do")


def test_the_largest_model_of_a_sweep_counts():
    both = replace(MNIST, runs=(*DIGITS.runs, *MNIST.runs))
    assert len(tight_memory(Machine(cores=16, memory=6 * GIB), both, 16)) == 1


def test_small_shared_memory_is_said_with_the_fix():
    """64 MiB are Docker's default; small messages do not go there."""
    (warning,) = tight_memory(LAPTOP, MNIST, 2)
    assert "2 clients at once may keep 150 MiB of messages in /dev/shm, and 64 MiB are" in warning
    assert "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm" in warning
    many = replace(MNIST.runs[0], count=1)  # one message at a time, on however many workers
    assert (
        tight_memory(replace(LAPTOP, shared_memory=80 * MIB), replace(MNIST, runs=(many,)), 2) == []
    )


# ------------------------------------------------------------------ engines
def test_an_engine_that_runs_one_client_at_a_time_needs_no_more_than_its_check_did():
    assert LocalEngine.foresee(replace(MNIST, gpus=1), Resources(num_cpus=99)) == []
