"""Peak memory of a whole ``flwr-sdp simulate``, Ray, Flower and all, by kind of process.

``python -m tests.benchmarks.run_memory simulations/conf/digits.toml --set num-nodes=2``: what
follows the module is passed on. Linux only. Memory does not depend on how busy the machine is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.benchmarks.process_tree import proportional_size, tree

_INTERVAL = 0.5
# How a command line shows what a process is; whatever else there is, is Ray's or Flower's.
_KINDS = {"flwr-simulation": "server", "ray::ClientAppActor": "worker"}


def main(arguments: list[str]) -> int:
    """Run it, and print the memory in MB at the moment when it was most in all."""
    at_peak: list[tuple[str, int]] = []
    with tempfile.TemporaryDirectory() as output:
        command = [str(Path(sys.executable).parent / "flwr-sdp"), "simulate", *arguments]
        run = subprocess.Popen([*command, "--output", output])
        while run.poll() is None:
            now = [(_kind(pid), proportional_size(pid)) for pid in tree(run.pid)]
            at_peak = max(at_peak, now, key=lambda sizes: sum(size for _, size in sizes))
            time.sleep(_INTERVAL)
    total: Counter[str] = Counter()
    for kind, size in at_peak:
        total[kind] += size
    count = Counter(kind for kind, size in at_peak if size)
    print(f"peak {sum(total.values()) / 1e6:.0f} MB of all processes")
    for kind, size in total.most_common():
        print(f"{size / 1e6:8.0f} MB  {kind} ({count[kind]})")
    return run.returncode


def _kind(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "ended"
    return next((kind for text, kind in _KINDS.items() if text in line), "Ray and Flower")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
