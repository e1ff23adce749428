"""From the measurement of one client to how many fit: every limit, on machines that are told of."""

from dataclasses import asdict, replace

import pytest

from flwr_sdp.cli.engines.engine import Resources
from flwr_sdp.cli.engines.machine import Machine
from flwr_sdp.cli.engines.ray_checks import Node, clients_at_once
from flwr_sdp.cli.engines.sizing import MARGIN, GpuMemory, Measurement, propose

MIB, GIB = 2**20, 2**30

MNIST = Measurement(
    dim=3_274_634,
    first_seconds=2.0,
    second_seconds=1.0,
    evaluation_seconds=4.0,
    memory=400 * MIB,
    peak_memory=900 * MIB,
    client_memory=200 * MIB,
    gpus=0,
    gpu_memory=None,
    request_bytes=13_100_000,
    reply_bytes=26_200_000,
    num_clients=2000,
    cohort=20.0,
    evaluate_every=1,
)
SERVER = Machine(cores=16, memory=64 * GIB, shared_memory=32 * GIB)
A_GPU = GpuMemory(total=80 * GIB, context=500 * MIB, allocated=800 * MIB, reserved=1500 * MIB)


def limits(proposal):
    return {limit.what: limit.clients for limit in proposal.limits}


# ------------------------------------------------------------------ CPUs
def test_cores_decide_where_there_is_room():
    proposal = propose(MNIST, SERVER)
    assert proposal.resources == Resources(num_cpus=1, num_gpus=0.0)
    assert proposal.clients_at_once == proposal.num_nodes == 16
    assert set(limits(proposal)) == {"cores", "cohort", "memory", "shared memory"}
    assert proposal.is_safe
    # 20 clients on 16 cores are two turns; then the model is evaluated.
    assert proposal.seconds_at_best == 2 * 1.0 + 4.0
    assert proposal.seconds_at_worst == 20 * 1.0 + 4.0


@pytest.mark.parametrize(
    ("change", "machine", "what", "clients"),
    [
        ({"cohort": 3.4}, SERVER, "cohort", 4),
        ({}, replace(SERVER, memory=6 * GIB), "memory", 5),
        ({"client_memory": 2 * GIB}, SERVER, "memory", 21),
        ({}, replace(SERVER, shared_memory=GIB), "shared memory", 12),
        ({}, replace(SERVER, shared_memory=64 * MIB), "shared memory", 0),
        ({}, replace(SERVER, memory=GIB), "memory", 0),
    ],
)
def test_each_limit_is_stated(change, machine, what, clients):
    proposal = propose(replace(MNIST, **change), machine)
    assert limits(proposal)[what] == clients
    assert 1 <= proposal.clients_at_once <= max(1, min(limits(proposal).values()))
    assert proposal.is_safe == (clients > 0)


def test_what_is_not_known_limits_nothing():
    unknown = replace(MNIST, memory=None, peak_memory=None, client_memory=None)
    assert set(limits(propose(unknown, Machine(cores=4)))) == {"cores", "cohort"}
    # Small messages do not go through shared memory.
    small = replace(MNIST, request_bytes=40_000, reply_bytes=80_000)
    assert "shared memory" not in limits(propose(small, replace(SERVER, shared_memory=1)))


def test_memory_grows_with_what_a_client_takes():
    """A mutant that forgot the clients, or the server, would propose the same everywhere."""
    found = [
        limits(propose(replace(MNIST, client_memory=size * MIB), SERVER))["memory"]
        for size in (100, 400, 1600)
    ]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 3
    each = 1600 + 400 + 70 + 2 * (13_100_000 + 26_200_000) / MIB
    rest = MARGIN * 64 * 1024 - 900 - 70 - (400 + 1600)
    assert found[-1] == int(rest / each)


def test_few_nodes_stand_for_few_clients():
    assert propose(replace(MNIST, num_clients=2, cohort=2.0), SERVER).num_nodes == 2


def test_a_rare_evaluation_costs_less():
    rare = propose(replace(MNIST, evaluate_every=8), SERVER)
    assert rare.seconds_at_best == 2 * 1.0 + 0.5


# ------------------------------------------------------------------ GPUs
def on_gpu(gpus=1, **memory):
    return replace(MNIST, gpus=gpus, gpu_memory=replace(A_GPU, **memory), cohort=200.0)


@pytest.mark.parametrize(
    ("measured", "machine", "fit", "num_cpus", "num_gpus", "at_once"),
    [
        # 72 of 80 GiB for processes of 2,000 MiB: 36, one of them the server's; 16 cores.
        (on_gpu(), SERVER, 35, 1, 0.0625, 16),
        (on_gpu(total=24 * GIB), SERVER, 10, 1, 0.1, 10),
        (on_gpu(total=8 * GIB), SERVER, 2, 1, 0.5, 2),
        (on_gpu(gpus=2, total=24 * GIB), replace(SERVER, cores=64), 20, 1, 0.1, 20),
        (on_gpu(gpus=4, total=8 * GIB), SERVER, 8, 1, 0.5, 8),
        (on_gpu(gpus=3, total=24 * GIB), SERVER, 30, 1, 0.2, 15),
        (on_gpu(total=2 * GIB), SERVER, 0, 16, 1.0, 1),
        (on_gpu(gpus=8), replace(SERVER, cores=4), 280, 1, 1.0, 4),
    ],
)
def test_clients_share_gpus_with_the_server(measured, machine, fit, num_cpus, num_gpus, at_once):
    proposal = propose(measured, machine)
    assert limits(proposal)["GPU memory"] == fit
    assert proposal.resources.num_gpus == pytest.approx(num_gpus)
    assert proposal.clients_at_once == at_once
    assert proposal.resources.num_cpus == (1 if num_cpus == 16 else num_cpus)


@pytest.mark.parametrize("cores", [1, 2, 3, 7, 16, 64, 96])
@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 8])
def test_no_proposal_breaks_a_limit_or_is_refused(cores, gpus):
    """Over machines and sizes: what is proposed runs, and at most as many as every limit allows."""
    for gib in (6, 16, 40, 500):
        for reserved in (100, 700, 3_000, 20_000):
            machine = Machine(cores=cores, memory=gib * GIB, shared_memory=GIB)
            measured = on_gpu(gpus, reserved=reserved * MIB) if gpus else MNIST
            proposal = propose(measured, machine)
            most = min(limits(proposal).values())
            if most >= 1:
                assert proposal.clients_at_once <= most
            started = clients_at_once([Node(cpus=cores, gpus=gpus)], proposal.resources)
            assert started == proposal.clients_at_once >= 1
            if gpus:
                assert proposal.resources.num_gpus > 0


# ------------------------------------------------------------------ as it is printed
@pytest.mark.parametrize("measured", [MNIST, on_gpu()], ids=["CPU", "GPU"])
def test_a_measurement_is_read_as_the_app_prints_it(measured):
    printed = {name.replace("_", "-"): value for name, value in asdict(measured).items()}
    assert Measurement.from_json(printed) == measured
