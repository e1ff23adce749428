"""What the server needs: memory for a cohort, memory over rounds, time for budget checks.

    python -m tests.benchmarks.server_memory [--quick]

Prints a table and exits with 1 where a limit is exceeded. Memory is measured in a process of its
own for each row: the most that was resident during a round (Linux's ``VmHWM``, reset before it),
less what was resident before it, in models. Flower's own FedAvg stands beside it.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from flwr_sdp.clients.testing import enter_run
from flwr_sdp.strategies import Checkpoints, ClipAndNoise, poisson_accountant, poisson_event
from tests.messages import MARKS, FakeGrid, record

ROOT = Path(__file__).resolve().parents[2]
DIM = 3_274_634  # the paper's MNIST network: 13 MB in single precision
LIMIT_MODELS = 4.0
LIMIT_GROWTH = 0.1  # of a model, from round 10 to round 100
LIMIT_SECONDS = 60.0


# ------------------------------------------------------------------ in a process of its own
class ListingGrid(FakeGrid):
    """As Flower's grids: all replies in a list."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return list(super().send_and_receive(messages, timeout=timeout))


def model_of(dim: int) -> ArrayRecord:
    """Return a model of which nearly all is one array, the worst case for temporary copies."""
    return record({"w": np.zeros(dim - 10, np.float32), "b": np.zeros(10, np.float32)})


def make_answer(model: ArrayRecord) -> Callable[[Message], Message]:
    """Return what answers every message with new bytes of the model's size."""

    def answer(message: Message) -> Message:
        arrays = {
            name: Array(array.dtype, array.shape, array.stype, copied(array.data))
            for name, array in model.items()
        }
        metrics = MetricRecord({"num-examples": 1, **MARKS})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return answer


def copied(data: bytes) -> bytes:
    """Return new bytes, in one copy: a slice of all of them would be the same bytes."""
    return np.frombuffer(data, np.uint8).tobytes()


def strategies(name: str, nodes: int, checkpoints: str) -> Strategy:
    options: dict[str, Any] = {
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling_rate": 1.0,
        "accountant": poisson_accountant(population=nodes, delta=1e-5),
    }
    made: dict[str, Callable[[], Strategy]] = {
        "ClipAndNoise(FedAvg)": lambda: ClipAndNoise(FedAvg(fraction_evaluate=0.0), **options),
        "ClipAndNoise(FedAdam)": lambda: ClipAndNoise(FedAdam(fraction_evaluate=0.0), **options),
        "the same with checkpoints": lambda: ClipAndNoise(
            FedAvg(fraction_evaluate=0.0), checkpoints=Checkpoints(checkpoints), **options
        ),
        "Flower's FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    }
    return made[name]()


def resident(field: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def measure(
    name: str, nodes: int, rounds: int, dim: int, checkpoints: str
) -> list[tuple[float, float]]:
    """Return each round's peak above what was resident before it, and before the first round.

    In models.
    """
    enter_run()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    model = model_of(dim)
    size = float(sum(len(array.data) for array in model.values()))
    # The library's own memory is no part of a model: run everything once at a small size.
    small = model_of(200_000)
    strategies(name, 2, f"{checkpoints}/small").start(
        FakeGrid(range(2), make_answer(small)), small, num_rounds=1
    )
    kind = ListingGrid if name == "Flower's FedAvg" else FakeGrid
    grid, peaks = kind(range(nodes), make_answer(model)), []

    bases: list[int] = []

    def record_peak(server_round: int, _arrays: ArrayRecord) -> None:
        grid.sent.clear()
        if bases:
            peak = resident("VmHWM")
            peaks.append(((peak - bases[-1]) / size, (peak - bases[0]) / size))
        Path("/proc/self/clear_refs").write_text("5")
        bases.append(resident("VmRSS"))

    strategy = strategies(name, nodes, f"{checkpoints}/large")
    strategy.start(grid, model, num_rounds=rounds, evaluate_fn=record_peak)
    return peaks


def measured_apart(*arguments: object) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.server_memory", "--measure"],
            cwd=ROOT,
            input=json.dumps([*arguments, folder]),
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    peaks: list[tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return peaks


# ------------------------------------------------------------------ time
def seconds_of_checks(rounds: int, *, reading: bool) -> float:
    """Return the time of a check and a charge a round, with or without reading epsilon as well."""
    population = 100_000
    accountant = poisson_accountant(population=population, delta=1e-6)
    event = poisson_event(noise_multiplier=1.0, sampling_rate=0.001, population=population)
    start = time.perf_counter()
    for _ in range(rounds):
        if accountant.would_exceed(event, 1e3):
            raise RuntimeError("the budget of the benchmark is too small")
        accountant.compose(event)
        if reading:
            accountant.get_privacy_spent()
    return time.perf_counter() - start


# ------------------------------------------------------------------ the table
def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(*json.load(sys.stdin))))
        return 0
    nodes, dim, rounds = (20, 1_500_000, 20) if options.quick else (200, DIM, 100)
    rows: list[tuple[str, float, float | None]] = []
    peaks: dict[str, float] = {}
    for name, limit in (
        ("ClipAndNoise(FedAvg)", LIMIT_MODELS),
        ("the same with checkpoints", LIMIT_MODELS),
        ("ClipAndNoise(FedAdam)", None),  # its two momenta and the last model come on top
        ("Flower's FedAvg", None),
    ):
        first, second = measured_apart(name, nodes, 2, dim)
        peaks[name] = max(first[0], second[0])
        label = f"{nodes} replies of {4 * dim / 1e6:.1f} MB, models, {name}"
        rows.append((label, peaks[name], limit))
    ratio = peaks["ClipAndNoise(FedAvg)"] / peaks["Flower's FedAvg"]
    rows.append(("ratio of the first to Flower's", ratio, None))
    overall = [peak for _, peak in measured_apart("the same with checkpoints", 2, rounds, dim)]
    growth = max(overall[10:]) - max(overall[:10])
    rows.append((f"growth of the peak, rounds 10 to {rounds}, models", growth, LIMIT_GROWTH))
    checks = 200 if options.quick else 5000
    seconds = seconds_of_checks(checks, reading=False)
    rows.append((f"{checks} rounds of budget checks, s", seconds, LIMIT_SECONDS))
    seconds = seconds_of_checks(checks, reading=True)
    rows.append((f"{checks} rounds, epsilon read in each, s", seconds, None))
    print(f"{'':58}{'measured':>10}{'limit':>8}")
    for label, value, limit in rows:
        print(f"{label:58}{value:>10.3f}{'' if limit is None else f'{limit:g}':>8}")
    broken = [label for label, value, limit in rows if limit is not None and value > limit]
    for label in broken:
        print(f"BROKEN: {label}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
