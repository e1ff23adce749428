"""Run configs checked and one client measured, as the launcher asks the app."""

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")

import torch

from simulations.engine import measure as measure_module
from simulations.engine import process_memory
from simulations.engine.check import check
from simulations.engine.measure import measure

ROOT = Path(__file__).resolve().parents[3]
DIM = 9_610


def config(**changes):
    """Return the run config of the digits, with these keys changed."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    return {**pyproject["tool"]["flwr"]["app"]["config"], "task": "digits", **keys}


# ------------------------------------------------------------------ check
@pytest.mark.parametrize(
    ("changes", "messages", "reply_per_coordinate"),
    [
        ({}, 50, 4),  # half of 100 clients, with a node each
        ({"num_nodes": 3}, 3, 8),  # sums, in double precision
        ({"sdp_cohort_size": 7}, 7, 4),
        ({"num_clients": 10, "num_nodes": 9, "sdp_cohort_size": 2}, 2, 8),
    ],
)
def test_check_says_what_goes_to_and_fro(changes, messages, reply_per_coordinate):
    facts = check([config(**changes)])
    (run,) = facts["runs"]
    assert run["messages"] == messages
    # Little is added to the numbers themselves.
    assert 4 * DIM < run["request-bytes"] < 4 * DIM + 1000
    assert 0 <= run["reply-bytes"] - reply_per_coordinate * DIM < 1000
    assert facts["gpus"] == torch.cuda.device_count()


def test_check_refuses_what_the_run_would():
    assert len(check([config(), config(seed=3)])["runs"]) == 2
    with pytest.raises(ValueError, match="projected-population must be at least"):
        check([config(), config(projected_population=10)])


# ------------------------------------------------------------------ measure
def test_one_client_is_measured():
    facts = measure(config(num_clients=50, evaluate_every=3))
    assert (facts["dim"], facts["num-clients"], facts["cohort"]) == (DIM, 50, 25.0)
    assert facts["evaluate-every"] == 3
    for name in ("first-seconds", "second-seconds", "evaluation-seconds"):
        assert 0 < facts[name] < 60
    # As a node that stands for many: it replies with a sum.
    assert 8 * DIM < facts["reply-bytes"] < 8 * DIM + 1000
    assert facts["gpus"] == torch.cuda.device_count()


def test_a_longer_update_takes_longer():
    """What is timed is the training of this run, and not some other."""
    short, long = (measure(config(local_steps=steps)) for steps in (1, 2000))
    assert long["second-seconds"] > 2 * short["second-seconds"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_that_training_takes_is_found(monkeypatch):
    """Two hundred MiB that a client takes and gives back."""
    asked = measure_module._asked

    def wasteful(*arguments):
        held = bytearray(200 * 2**20)
        held[:: 2**12] = bytes([1]) * len(held[:: 2**12])  # touch every page
        return asked(*arguments)

    modest = measure(config())["client-memory"]
    monkeypatch.setattr(measure_module, "_asked", wasteful)
    facts = measure(config())
    assert facts["client-memory"] > 190 * 2**20
    assert facts["client-memory"] - modest > 100 * 2**20
    assert facts["peak-memory"] > facts["client-memory"]
    assert 0 < facts["memory"] < facts["peak-memory"]


def test_without_proc_nothing_is_said_of_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(process_memory, "_STATUS", tmp_path / "none")
    facts = measure(config())
    assert [facts[name] for name in ("memory", "peak-memory", "client-memory")] == [None] * 3
    assert check([config()])["memory"] is None


@pytest.mark.parametrize("baseline", [False, True])
def test_a_client_that_fails_is_no_measurement(monkeypatch, baseline):
    from simulations.tasks.digits import Digits

    def fails(*_, **__):
        raise RuntimeError("the client is broken")

    monkeypatch.setattr(Digits, "local_update", fails)
    with pytest.raises(RuntimeError, match="a client failed, flwr-sdp simulate --engine local"):
        measure(config(baseline=baseline))


def test_no_gpu_is_no_memory_of_one():
    facts = process_memory.gpu_memory()
    assert (facts is None) == (not torch.cuda.is_available())


def test_gpu_memory_is_told_apart(monkeypatch):
    """With the figures of a GPU that is not there: 30 of 80 taken, 8 of them by PyTorch."""
    for name, value in {
        "is_available": True,
        "synchronize": None,
        "mem_get_info": (50, 80),
        "memory_reserved": 8,
        "max_memory_allocated": 9,
        "max_memory_reserved": 12,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert process_memory.gpu_memory() == process_memory.GpuMemory(
        total=80, context=22, allocated=9, reserved=12
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu():
    memory = measure(config())["gpu-memory"]
    assert 0 < memory["allocated"] <= memory["reserved"] < memory["total"]
    assert memory["context"] > 0
