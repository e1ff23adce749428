"""What the time of a report tells of it, as the area under the curve (AUC) of a test by its clock.

    python -m tests.benchmarks.time_of_reports [--quick]

0.5 is nothing, 1 is all. Pairs of reports are timed in random order in one run: of draws inside and
outside the cap, and of updates beside an ordinary one. Exits with 1 where an AUC is further from
0.5 than 0.02 and five standard errors.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import SeparatedBudget, SeparatedMechanism
from flwr_sdp.randomness import secure_generator

Update = NDArray[np.float32]


def auc(first: list[float], second: list[float]) -> float:
    """Return how often a report of the second kind took longer than one of the first."""
    ranks = np.argsort(np.argsort(np.concatenate([first, second]), kind="stable")) + 1.0
    m, n = len(first), len(second)
    return float((ranks[m:].sum() - n * (n + 1) / 2) / (m * n))


def timed(call: Callable[[], Update]) -> tuple[float, Update]:
    """Return how long a call took on this thread, and what it returned."""
    start = time.perf_counter()
    out = call()
    return time.perf_counter() - start, out


def sides(mechanism: SeparatedMechanism, update: Update, count: int) -> float:
    """Return the AUC of the side of the cap, which the output shows to who knows the update."""
    unit = update.astype(np.float64) / np.linalg.norm(update.astype(np.float64))
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(2 * count):
        seconds, out = timed(lambda: mechanism.privatize(update))
        dot = float(out.astype(np.float64) @ unit)
        side = dot >= 0.999 * mechanism.direction.cap_threshold * float(np.linalg.norm(out))
        times[side].append(seconds)
    return auc(times[False], times[True])


def updates(mechanism: SeparatedMechanism, pair: list[Update], count: int) -> float:
    """Return the AUC of one update beside another."""
    order = secure_generator().integers(2, 2 * count)
    times: tuple[list[float], list[float]] = ([], [])
    update = np.empty_like(pair[0])  # in one place, since places in memory differ in their speed
    for which in order.tolist():
        update[:] = pair[which]
        times[which].append(timed(lambda: mechanism.privatize(update))[0])
    return auc(*times)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few reports, to see that it runs")
    quick = parser.parse_args().quick
    failed = False
    for dim, count in ((1000, 5000), (20_000, 2000), (1_000_000, 300)):
        count = 50 if quick else count
        budget = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=30.0)
        mechanism = SeparatedMechanism.from_budget(dim, budget, 2.0)
        update = np.cos(1.0 + np.arange(dim)).astype(np.float32)
        update /= np.linalg.norm(update)
        half = update * (np.arange(dim) < dim // 2)
        rows = {"inside the cap, or outside": sides(mechanism, update, count)}
        for what, other in (
            ("a zero update", 0.0 * update),
            ("an update of norm 1e-15", np.float32(1e-15) * update),
            ("an update that is half zeros", half),
        ):
            rows[what] = updates(mechanism, [update, other], count)
        error = math.sqrt(1.0 / (6.0 * count))
        for what, value in rows.items():
            failed |= not quick and abs(value - 0.5) > 0.02 + 5.0 * error
            print(f"AUC, d = {dim:9,}, float32: {what:30s} {value:6.3f} (+- {error:.3f})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
