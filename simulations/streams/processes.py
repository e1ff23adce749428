"""Parts of a study spread over processes, one for each core."""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from simulations.streams.outcome import Job, Outcome

# Every core has a process of its own: threads of linear algebra would only take them from others.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, Outcome]]:
    """Run each job in a process of its own, so many at a time; yield its place and its outcome.

    What a job finds does not depend on the others: its streams have keys of their own. None of the
    processes outlives an error or the caller.

    Raises
    ------
    Exception
        Whatever a job raised.
    RuntimeError
        If a process was killed.
    """
    for name in _ONE_THREAD:
        os.environ[name] = "1"  # read by NumPy as it is imported in the new processes
    # Not forked: a fork would have the parent's NumPy, which has counted its threads already.
    context = get_context("spawn")
    waiting = deque(enumerate(jobs))
    running: dict[Connection, tuple[int, SpawnProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                place, job = waiting.popleft()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(job, theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = place, process
            for connection in wait(list(running)):
                place, process = running[connection]  # type: ignore[index]
                found = _receive(connection, process)  # type: ignore[arg-type]
                del running[connection]  # type: ignore[arg-type]
                yield place, found
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _receive(connection: Connection, process: SpawnProcess) -> Outcome:
    try:
        found: Outcome | Exception = connection.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"a process ended with status {process.exitcode} before its part was done: it was "
            "killed, perhaps for want of memory; fewer --processes need less"
        ) from None
    process.join()
    if isinstance(found, Exception):
        raise found
    return found


def _work(job: Job, connection: Connection) -> None:
    try:
        found: Outcome | Exception = job()
    except ValueError as error:  # a setting that does not fit: its text says which
        found = error
    except Exception as error:
        traceback.print_exc()
        found = error
    connection.send(found)
