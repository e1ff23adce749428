"""How fast the mechanisms are, as ratios to NumPy's normals of the same size in the same run.

    python -m tests.benchmarks.mechanisms [--quick]

Prints a table and exits with 1 where a limit is exceeded. The reference is
``np.random.Generator(PCG64).standard_normal``, float64, which is not secure; the mechanisms draw
from the secure generator.

The first row says what a second core of this machine is worth: how much longer secure normals take
while another process draws some too. Where it is above 1, threads of one process cannot do better;
two hyperthreads of one core give 1.2 and more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from multiprocessing import SimpleQueue, get_context
from multiprocessing.synchronize import Barrier

import numpy as np

from flwr_sdp import (
    PrivUnit,
    PrivUnitInfinity,
    ScalarDP,
    ScalarRelDP,
    SeparatedBudget,
    SeparatedMechanism,
)
from flwr_sdp.randomness import secure_generator
from tests.benchmarks.timing import best_times

MNIST, REDDIT = 3_274_634, 13_352_875
EPSILON = 500.0
BUDGET = SeparatedBudget(epsilon_direction=EPSILON, epsilon_magnitude=10.0)

Row = tuple[str, float, float | None]


def _draw_normals(barrier: Barrier, rounds: int, times: SimpleQueue[float]) -> None:
    rng, out = secure_generator(), np.empty(400_000, dtype=np.float32)
    rng.fill_normal(out)
    barrier.wait()
    start = time.perf_counter()
    for _ in range(rounds):
        rng.fill_normal(out)
    times.put(time.perf_counter() - start)


def second_core(rounds: int) -> list[Row]:
    """Time a process alone, and beside another one."""
    context = get_context("spawn")
    best = {1: float("inf"), 2: float("inf")}
    for _ in range(5):
        for count in best:
            barrier, times = context.Barrier(count), context.SimpleQueue()
            processes = [
                context.Process(target=_draw_normals, args=(barrier, 10 * rounds, times))
                for _ in range(count)
            ]
            for process in processes:
                process.start()
            best[count] = min(best[count], max(times.get() for _ in processes))
            for process in processes:
                process.join()
    return [("secure normals beside another process, over alone", best[2] / best[1], None)]


def long_vectors(dim: int, rounds: int) -> list[Row]:
    """Time one vector of the paper's networks, float32."""
    unit = np.random.default_rng(0).standard_normal(dim, dtype=np.float32)
    unit /= np.linalg.norm(unit)
    mechanism = PrivUnit.from_epsilon(dim, EPSILON)
    product = SeparatedMechanism.from_budget(dim, BUDGET, 5.0)
    cube = PrivUnitInfinity.from_epsilon(dim, EPSILON)
    pcg, rng = np.random.Generator(np.random.PCG64(1)), secure_generator()
    out = np.empty(dim, dtype=np.float32)
    one = best_times(
        {
            "pcg": lambda: pcg.standard_normal(dim),
            "normals": lambda: rng.fill_normal(out),
            "PrivUnit": lambda: mechanism.privatize(unit),
            "product": lambda: product.privatize(unit),
            "cube": lambda: cube.privatize(unit),
        },
        rounds=rounds,
        clock=time.process_time,  # of one thread: what it computes, however busy the machine is
    )
    two = best_times(
        {
            "pcg": lambda: pcg.standard_normal(dim),
            "PrivUnit": lambda: mechanism.privatize(unit, threads=2),
        },
        rounds=rounds,
    )
    at = f"d = {dim:,}, float32"
    return [
        (f"secure normals, {at}", one["normals"] / one["pcg"], None),
        (f"PrivUnit, {at}", one["PrivUnit"] / one["pcg"], 0.5),
        (f"PrivUnit, {at}, 2 threads", two["PrivUnit"] / two["pcg"], 0.4),
        (f"PrivUnit x ScalarDP, {at}", one["product"] / one["pcg"], None),
        (f"PrivUnitInfinity, {at}", one["cube"] / one["pcg"], None),
    ]


def batches(rounds: int) -> list[Row]:
    """Time 1,000 vectors of 500 coordinates at once, and 1,000 magnitudes."""
    rows = np.random.default_rng(0).standard_normal((1000, 500))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    single = rows.astype(np.float32)
    mechanism = PrivUnit.from_epsilon(500, 50.0)
    product = SeparatedMechanism.from_budget(500, BUDGET, 5.0)
    cube = PrivUnitInfinity.from_epsilon(500, 50.0)
    norms = np.random.default_rng(2).uniform(0.0, 5.0, 1000)
    scalar, relative = ScalarDP.from_epsilon(10.0, 5.0), ScalarRelDP.from_epsilon(10.0, 5.0)
    pcg = np.random.Generator(np.random.PCG64(1))
    times = best_times(
        {
            "pcg": lambda: pcg.standard_normal((1000, 500)),
            "float32": lambda: mechanism.privatize(single),
            "float64": lambda: mechanism.privatize(rows),
            "product": lambda: product.privatize(single),
            "cube": lambda: cube.privatize(single),
            "scalar": lambda: scalar.privatize(norms),
            "relative": lambda: relative.privatize(norms),
        },
        rounds=rounds,
        clock=time.process_time,
    )
    cube_ratio = times["cube"] / times["float32"]
    return [
        ("PrivUnit, 1,000 x 500, float32", times["float32"] / times["pcg"], 2.5),
        ("PrivUnit, 1,000 x 500, float64", times["float64"] / times["pcg"], None),
        ("PrivUnit x ScalarDP, 1,000 x 500, float32", times["product"] / times["pcg"], None),
        ("PrivUnitInfinity over PrivUnit, 1,000 x 500, float32", cube_ratio, 3.0),
        ("ScalarRelDP over ScalarDP, 1,000 numbers", times["relative"] / times["scalar"], 4.0),
        ("PrivUnitInfinity, 1,000 x 500, float32, us a row", 1e3 * times["cube"], None),
        ("ScalarRelDP, 1,000 numbers, us each", 1e3 * times["relative"], None),
    ]


def calibration(rounds: int) -> list[Row]:
    """Time ``from_epsilon``, in milliseconds: cold at many dimensions, and from its cache."""
    dims = [2, 3, 10, 500, 10**4, MNIST, 10**8]
    rows: list[Row] = []
    for rule in ("tight", "paper"):
        cold = 0.0
        for dim in dims:
            if rule == "paper" and dim == 2:
                continue
            for i in range(rounds):  # a new epsilon each time, which no cache knows
                epsilon = min(dim / 2.0, 200.0) * (1.0 + 1e-6 * (i + 1))
                start = time.process_time()
                PrivUnit.from_epsilon(dim, epsilon, rule=rule)
                cold = max(cold, time.process_time() - start)
        rows.append((f"from_epsilon, {rule}, slowest of 2 to 10^8, ms", 1e3 * cold, 20.0))
    cached: Callable[[], object] = lambda: PrivUnit.from_epsilon(MNIST, EPSILON)  # noqa: E731
    cached()
    best = best_times({"cached": cached}, rounds=100 * rounds)["cached"]
    rows.append(("from_epsilon, tight, cached, ms", 1e3 * best, 0.1))
    return rows


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    rounds = 2 if quick else 15
    rows = second_core(rounds)
    if quick:
        rows += long_vectors(300_000, rounds)
    else:
        rows += [*long_vectors(MNIST, rounds), *long_vectors(REDDIT, rounds)]
    rows += batches(4 * rounds) + calibration(rounds)
    failed = False
    for name, value, limit in rows:
        verdict = ""
        if limit is not None and not quick:
            verdict = f"limit {limit:g}" + ("" if value <= limit else "  EXCEEDED")
            failed |= value > limit
        print(f"{name:52s} {value:8.3f}  {verdict}".rstrip())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
