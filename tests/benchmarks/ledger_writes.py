"""What a report costs in flash: bytes that are written for it, over the bytes of the model.

    python -m tests.benchmarks.ledger_writes [--quick]

Prints a table and exits with 1 where the limit is exceeded. Bytes are counted by Linux: those that
the process hands to the system (``wchar``), and those that go to the disk (``write_bytes``; 0 where
the folder is in memory). Each row is the mean of reports that replace each other, each charged by
the mod's calls.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from flwr_sdp.clients import DeviceLedger, Request
from flwr_sdp.separated import SeparatedEvent

LIMIT = 1.05
SIZES = {"small model, 0.4 MB": 400_000, "language model, 53 MB": 53_411_500}


def counted() -> dict[str, int]:
    """Return what the system has counted for this process."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}


def measure(size: int, folder: str, reports: int = 5) -> tuple[float, float]:
    """Return the bytes handed to the system and the bytes to the disk, in models a report."""
    ledger = DeviceLedger.create(f"{folder}/ledger.db", total_epsilon_cap=1e6)
    cost = SeparatedEvent(epsilon_direction=500.0, epsilon_magnitude=10.0)
    reply = os.urandom(size)
    before: dict[str, int] = {}
    for number in range(reports + 1):
        if number == 1:  # the first one has nothing to replace
            before = counted()
        asked = Request(data_set="default", run_id="1", message_id=str(number))
        ledger.check(asked, cost)
        with ledger.room(size) as room:
            ledger.charge(asked, cost, [reply], max_norm=5.0, dim=size // 4, room=room)
    after = counted()
    handed, on_disk = (
        (after[key] - before[key]) / (reports * size) for key in ("wchar", "write_bytes")
    )
    return handed, on_disk


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small model alone")
    parser.add_argument("--folder", help="where the ledger is; by default the temporary folder")
    options = parser.parse_args(arguments)
    broken = []
    print(f"{'written for a report, in models':34}{'handed over':>12}{'on disk':>10}{'limit':>8}")
    for name, size in list(SIZES.items())[: 1 if options.quick else None]:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            handed, on_disk = measure(size, folder)
        # A small model is no more than the pages of the database.
        limit = LIMIT + 65_536 / size
        print(f"{name:34}{handed:>12.3f}{on_disk:>10.3f}{limit:>8.3f}")
        if handed > limit:
            broken.append(name)
    for name in broken:
        print(f"BROKEN: {name}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
