"""What the device needs: memory of the mod beyond the two models, the received and the trained.

    python -m tests.benchmarks.device_memory [--quick]

Prints a table and exits with 1 where a limit is exceeded. Each row is measured in a process of its
own: the most that is resident from the moment the app hands over its reply (Linux's ``VmHWM``,
reset there), less what was resident at that moment, both models included, in update-sized vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import DeviceLedger, SeparatedDPMod
from flwr_sdp.clients.testing import context, message
from tests.benchmarks.server_memory import resident

ROOT = Path(__file__).resolve().parents[2]
LIMIT_VECTORS = 2.0

# The paper's language model: embedding, LSTM, decoder. 13,352,875 coordinates.
LANGUAGE = {
    "embedding": (25_003, 256),
    "lstm.kernel": (512, 1024),
    "lstm.bias_ih": (1024,),
    "lstm.bias_hh": (1024,),
    "decoder.kernel": (256, 25_003),
    "decoder.bias": (25_003,),
}
ONE_ARRAY = {"w": (13_352_875,)}
MODELS = {"language model": LANGUAGE, "one array": ONE_ARRAY}


def model_of(shapes: dict[str, tuple[int, ...]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in shapes.items()})


def scaled(shapes: dict[str, tuple[int, ...]], factor: int) -> dict[str, tuple[int, ...]]:
    return {name: (max(shape[0] // factor, 1), *shape[1:]) for name, shape in shapes.items()}


def measure(shapes: dict[str, tuple[int, ...]], ledger: str | None) -> float:
    """Return what one train message takes at the most, in vectors."""
    bases: list[int] = []
    app = ClientApp(
        mods=[
            SeparatedDPMod(
                SeparatedBudget(epsilon_direction=500.0, epsilon_magnitude=10.0),
                5.0,
                ledger=None if ledger is None else DeviceLedger(ledger),
            )
        ]
    )

    @app.train()
    def train(asked: Message, _context: Context) -> Message:
        trained = {}
        for name, array in asked.content["arrays"].items():
            numbers = array.numpy()
            numbers += np.float32(1e-4)
            trained[name] = Array(numbers)
        del numbers, array
        content = RecordDict(
            {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 9})}
        )
        reply = Message(content, reply_to=asked)
        Path("/proc/self/clear_refs").write_text("5")
        bases.append(resident("VmRSS"))
        return reply

    # The library's own memory is no part of a model: run everything once at a small size.
    app(message({"arrays": model_of(scaled(shapes, 20))}, message_id="small"), context())
    reply = app(message({"arrays": model_of(shapes)}), context())
    peak = resident("VmHWM")
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    size = sum(len(array.data) for array in reply.content["arrays"].values())
    return (peak - bases[-1]) / size


def measured_apart(shapes: dict[str, tuple[int, ...]], *, with_ledger: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        ledger = f"{folder}/ledger.db" if with_ledger else None
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.device_memory", "--measure"],
            cwd=ROOT,
            input=json.dumps([shapes, ledger]),
            capture_output=True,
            text=True,
            # Blocks below 32 MB would stay with the C library when freed, for later.
            env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return float(done.stdout.splitlines()[-1])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(measure(*json.load(sys.stdin)))
        return 0
    broken = []
    print(f"{'update-sized vectors beyond the two models':58}{'measured':>10}{'limit':>8}")
    for name, shapes in MODELS.items():
        for with_ledger in (False, True):
            label = f"{name}{', with a ledger' if with_ledger else ''}"
            chosen = scaled(shapes, 4) if options.quick else shapes
            value = measured_apart(chosen, with_ledger=with_ledger)
            print(f"{label:58}{value:>10.3f}{LIMIT_VECTORS:>8g}")
            if value > LIMIT_VECTORS:
                broken.append(label)
    for label in broken:
        print(f"BROKEN: {label}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
