"""What this machine has for a simulation: cores, memory, shared memory; in a container, its share.

A container sees the files of its host. What it may use, its control groups say, of version 1 or 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = "sys/fs/cgroup"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine, or the container on it, that processes are to share.

    Attributes
    ----------
    cores : int
        What Ray gives out, unless it is told another number.
    memory : int or None
        Bytes that new processes can have; None where the system does not say.
    shared_memory : int or None
        Bytes that are free in ``/dev/shm``; None where there is none, as on macOS and Windows.
    """

    cores: int
    memory: int | None = None
    shared_memory: int | None = None


def this_machine(root: Path = Path("/")) -> Machine:
    """Return the machine that this process runs on, by the files below `root`."""
    limits = [_free_memory(root), *_free_in_groups(root)]
    known = [each for each in limits if each is not None]
    return Machine(
        cores=_cores(root),
        memory=min(known) if known else None,
        shared_memory=_free_space(root / "dev" / "shm"),
    )


# ------------------------------------------------------------------ cores
def _cores(root: Path) -> int:
    """Return what Ray counts: the machine's, or a container's quota or set of cores."""
    counts = [float(os.cpu_count() or 1)]
    groups = root / _CGROUPS
    quota, period = (
        _number(groups / "cpu/cpu.cfs_quota_us"),
        _number(groups / "cpu/cpu.cfs_period_us"),
    )
    if quota is None:
        fields = (_text(groups / "cpu.max") or "").split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
            quota, period = int(fields[0]), int(fields[1])
    if quota is not None and period and quota > 0:
        counts.append(quota / period)
    allowed = _set_size(_text(groups / "cpuset/cpuset.cpus") or "")
    if allowed:
        counts.append(float(allowed))
    return max(1, int(min(counts)))


def _set_size(text: str) -> int:
    """Return how many numbers a list such as ``0-3,8`` names."""
    size = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        size += int(last or first) - int(first) + 1
    return size


# ------------------------------------------------------------------ memory
def _free_memory(root: Path) -> int | None:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield what is left of the limit of every control group around this process."""
    for folder, limit_name, usage_name, cache_name in _memory_groups(root):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is None or usage is None:
            continue  # no limit is a word, "max"
        cache = 0  # of files, which gives way
        for line in (_text(folder / "memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == cache_name:
                cache = int(value)
        yield max(0, limit - usage + cache)


def _memory_groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the folders of this process's groups, from its own up to the root of the tree.

    A container with a name space of its own finds its group at the root; another one below.
    """
    lines = [line.split(":", 2) for line in (_text(root / "proc/self/cgroup") or "").splitlines()]
    paths = {parts[1]: parts[2].strip("/") for parts in lines if len(parts) == 3}
    for controllers, path in paths.items():
        if controllers == "":
            tree = root / _CGROUPS
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            tree = root / _CGROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for folder in (tree / path, *(tree / path).parents):
            yield folder, *names
            if folder == tree:
                break


def _free_space(folder: Path) -> int | None:
    try:
        facts = os.statvfs(folder)
    except (AttributeError, OSError):  # Windows; no such folder
        return None
    return facts.f_frsize * facts.f_bavail


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
