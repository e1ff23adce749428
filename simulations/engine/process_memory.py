"""How much memory this process has, on the host and on the GPU."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_PEAK = "5"  # see proc(5), clear_refs


def own_memory() -> int | None:
    """Return the bytes that this process shares with no other; None where nobody says (not Linux).

    Libraries are not among them: all processes of a machine have them in the same place.
    """
    return _bytes("RssAnon")


def resident_memory() -> int | None:
    """Return the bytes of this process that are in memory, libraries included."""
    return _bytes("VmRSS")


def peak_memory() -> int | None:
    """Return the most that :func:`resident_memory` has been, or has been since the reset."""
    return _bytes("VmHWM")


def reset_peak_memory() -> None:
    """Have :func:`peak_memory` begin anew, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK, encoding="ascii")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Memory of the first GPU, in bytes.

    Attributes
    ----------
    total : int
        What it has.
    context : int
        What is taken beside PyTorch's share: the context of this process, and whatever other
        processes have. So it is a process's own only on a GPU that nobody else uses.
    allocated, reserved : int
        The most that tensors have taken, and that PyTorch has set aside for them.
    """

    total: int
    context: int
    allocated: int
    reserved: int


def gpu_memory() -> GpuMemory | None:
    """Return the memory of the first GPU, or None if this process sees none."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return GpuMemory(
        total=total,
        context=total - free - torch.cuda.memory_reserved(),
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
    )


def _bytes(name: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return None
