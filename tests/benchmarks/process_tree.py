"""The processes below one, and what memory each has (Linux)."""

from __future__ import annotations

from pathlib import Path


def tree(pid: int) -> set[int]:
    """Return a process and all below it, whichever of its threads has started them."""
    found = {pid}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:  # it has ended
            continue
        for child in below:
            found |= tree(int(child))
    return found


def proportional_size(pid: int) -> int:
    """Return the bytes of a process, and its share of those that several have."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
