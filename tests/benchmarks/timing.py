"""Times of several pieces of work in one run, interleaved, so that noise falls on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_times(
    work: dict[str, Callable[[], object]],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the shortest time of each piece of work over `rounds` rounds of all of them.

    The shortest is the time least disturbed. On a busy machine ``time.process_time`` counts only
    what this process computed; it adds up over threads.
    """
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, call in work.items():
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return best
