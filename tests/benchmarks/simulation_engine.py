"""What a simulation costs beside its training: ``python -m tests.benchmarks.simulation_engine``.

Every case trains 20 clients a round, each on 100 images in 5 steps, and prints the median seconds
of a round; the cases of a comparison take turns, so that noise falls on all of them:

- ``bare``: the training alone, in two processes of PyTorch;
- ``engine``: the app of this repository without privacy, two nodes that stand for the clients;
- ``private``: the same with the mod and ``ClipAndNoise``'s noise;
- ``fedavg``: one client a message, no mod, Flower's ``FedAvg`` in place of ``ClipAndNoise``;
- ``message``: one client a message, mod and ``ClipAndNoise``, as a deployment does;
- ``small``, ``small-fedavg``: the 64-32-10 network, by ``engine`` (100 rounds) and ``fedavg``;
- ``population``: cohorts of 1,000 from 1,000,000 clients with the digits, private.

Limits: engine / bare 1.12, message / fedavg 1.15, small 0.11 s, memory of all processes 3 GB at
``engine``, and flat at ``small`` and ``population``.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks.process_tree import proportional_size, tree

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, IMAGES, STEPS, PROCESSES = 20, 100, 5, 2
LIMITS = {"engine / bare": 1.12, "message / fedavg": 1.15}
MANY_ROUNDS = {"small": 100, "small-fedavg": 20, "population": 20}
SMALL_SECONDS, MEMORY_GB, GROWTH = 0.11, 3.0, 1.1
CASES = ("bare", "engine", "private", "fedavg", "message", "small", "small-fedavg", "population")


# ------------------------------------------------------------------ one case, in its own process
def main_of_case(name: str, rounds: int) -> None:
    """Print what a case took, as JSON: seconds of each round, and the peak of memory in GB."""
    memory = _TreeMemory()
    seconds = _bare(rounds) if name == "bare" else _simulated(name, rounds, memory)
    print(json.dumps({"seconds": seconds, "peak": memory.stop(), "memory": memory.by_round}))


def _config(name: str, rounds: int, folder: str) -> dict[str, Any]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    config: dict[str, Any] = pyproject["tool"]["flwr"]["app"]["config"]
    config |= {
        "task": "mnist",
        "data": "digits-28",
        "partition": "sampled",
        "examples-per-client": IMAGES,
        "num-clients": CLIENTS,
        "num-nodes": PROCESSES,
        "num-server-rounds": rounds,
        "evaluate-every": rounds,
        "sdp-cohort-size": CLIENTS,
        "sdp-local-learning-rate": 0.1,
        "sdp-epsilon-direction": 500.0,
        "checkpoint-keep": 0,
        "projected-population": 0,
        "baseline": name in ("engine", "small"),
        "output-dir": folder,
    }
    if name in ("message", "fedavg", "small-fedavg"):
        config["num-nodes"] = 0
    if name == "population":
        config |= {
            "task": "digits",
            "data": "",
            "examples-per-client": 20,
            "num-clients": 1_000_000,
            "sdp-cohort-size": 0,
            "sdp-sampling-rate": 0.001,
            "sdp-noise-multiplier": 1.0,
        }
    return config


def _task(config: dict[str, Any], *, small: bool) -> Any:
    from simulations.settings import Settings
    from simulations.tasks import load_task

    settings = Settings.from_run_config(config)
    if small:
        from tests.benchmarks.small_task import small_task

        return small_task(settings.task_settings)
    return load_task(settings.task, settings.task_settings)


def _bare(rounds: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES + 1)
    workers = [
        context.Process(target=_bare_worker, args=(barrier, rounds, place))
        for place in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    seconds = []
    for _ in range(rounds):
        barrier.wait()
        start = time.perf_counter()
        barrier.wait()
        seconds.append(time.perf_counter() - start)
    for worker in workers:
        worker.join()
    return seconds


def _bare_worker(barrier: Any, rounds: int, place: int) -> None:
    """Train a share of the clients, as anyone would who writes the loop down."""
    import torch
    from torch import nn

    from simulations.models.mnist_cnn import mnist_cnn

    torch.set_num_threads(1)
    torch.manual_seed(place)
    network = mnist_cnn()
    start = {name: value.clone() for name, value in network.state_dict().items()}
    clients = range(place, CLIENTS, PROCESSES)
    data = {c: (torch.rand(IMAGES, 1, 28, 28), torch.randint(10, (IMAGES,))) for c in clients}
    for _ in range(rounds):
        barrier.wait()
        for client in clients:
            network.load_state_dict(start)
            images, labels = data[client]
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            for _ in range(STEPS):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(images), labels).backward()
                optimizer.step()
        barrier.wait()


def _simulated(name: str, rounds: int, memory: _TreeMemory) -> list[float]:
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    folder = tempfile.mkdtemp()
    config = _config(name, rounds, folder)
    small, plain = name.startswith("small"), name.endswith("fedavg")
    seconds: list[float] = []
    server = ServerApp()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        from simulations import server_app
        from simulations.engine.partition_grid import PartitionGrid
        from simulations.settings import Settings

        settings = Settings.from_run_config(config)
        view = PartitionGrid(grid, settings.num_nodes)
        if plain:
            seconds.extend(_fedavg(view, _task(config, small=small).initial_model(), rounds))
            return
        if small:
            server_app.load_task = lambda *_: _task(config, small=True)
        marks: list[float] = []
        evaluate = server_app.Recorder.evaluate

        def marked(recorder: Any, server_round: int, model: Any) -> Any:
            marks.append(time.perf_counter())
            if server_round % max(rounds // 10, 1) == 0:  # few of them, which no median notices
                memory.note()
            return evaluate(recorder, server_round, model)

        server_app.Recorder.evaluate = marked  # type: ignore[method-assign]
        server_app.run_training(view, settings)
        seconds.extend(after - before for before, after in pairwise(marks))

    run_simulation(
        server,
        _client_app(config, small=small, plain=plain),
        num_supernodes=config["num-nodes"] or config["num-clients"],
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": PROCESSES, "log_to_driver": False},
        },
    )
    return seconds


def _client_app(config: dict[str, Any], *, small: bool, plain: bool) -> Any:
    """Return the simulated device, with the run config of the case: no SuperLink hands it out."""
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        import simulations.client_app as client_app

        if small:
            client_app.load_task = lambda *_: _task(config, small=True)  # type: ignore[assignment]
        own = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config={**config, "baseline": True} if plain else config,
        )
        return client_app.app(message, own)

    @app.query()
    def query(message: Any, context: Any) -> Any:
        import simulations.client_app as client_app

        return client_app.partition(message, context)

    return app


def _fedavg(grid: Any, model: Any, rounds: int) -> list[float]:
    from flwr.serverapp.strategy import FedAvg

    marks = []
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy.start(
        grid,
        model,
        num_rounds=rounds,
        evaluate_fn=lambda _round, _arrays: marks.append(time.perf_counter()),
    )
    return [after - before for before, after in pairwise(marks)]


class _TreeMemory:
    """Samples the memory of this process and all below it; pages that are shared count once."""

    def __init__(self) -> None:
        self.peak = 0.0
        self.by_round: list[float] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._end.wait(2.0):
            self.peak = max(self.peak, self._now())

    def _now(self) -> float:
        return sum(proportional_size(pid) for pid in tree(os.getpid())) / 1e9

    def note(self) -> None:
        """Write down what the memory is now."""
        self.by_round.append(round(self._now(), 3))

    def stop(self) -> float:
        """Return the peak in GB."""
        self._end.set()
        self._thread.join()
        return self.peak


# ------------------------------------------------------------------ all cases
def measured(name: str, rounds: int) -> dict[str, Any]:
    """Run a case in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.simulation_engine", "--case", name, "--rounds",
         str(rounds)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"case {name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run the cases in turns, print their medians and ratios, and return 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.case:
        main_of_case(options.case, options.rounds)
        return 0
    seconds: dict[str, list[float]] = {name: [] for name in options.only}
    peaks = dict.fromkeys(options.only, 0.0)
    growths: dict[str, float] = {}
    for turn in range(options.turns):
        for name in options.only:
            if name == "population" and turn:
                continue
            rounds = MANY_ROUNDS.get(name, options.rounds)
            result = measured(name, rounds)
            # The first round has the start of the processes in it.
            seconds[name] += result["seconds"][1:]
            peaks[name] = max(peaks[name], result["peak"])
            if name in ("small", "population"):
                # The first tenth of the rounds has the start of the processes in it.
                growths[name] = max(result["memory"][2:]) / result["memory"][1]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        clients = 1_000 if name == "population" else CLIENTS
        print(
            f"{name:14} {value:8.3f} s a round, {clients / value:.0f} clients a second, "
            f"peak {peaks[name]:.2f} GB of all processes"
        )
    broken = []
    for pair, limit in LIMITS.items():
        above, below = pair.split(" / ")
        if above in medians and below in medians:
            ratio = medians[above] / medians[below]
            print(f"{pair:18} {ratio:.3f} (limit {limit})")
            broken += [pair] * (ratio > limit)
    if "private" in medians and "engine" in medians:
        print(f"{'private / engine':18} {medians['private'] / medians['engine']:.3f}")
    if "small" in medians:
        broken += ["small"] * (medians["small"] > SMALL_SECONDS)
    if "engine" in peaks:
        broken += ["memory"] * (peaks["engine"] > MEMORY_GB)
    for name, growth in growths.items():
        print(
            f"memory of {name} over that after a tenth of the rounds: {growth:.3f} (limit {GROWTH})"
        )
        broken += [f"growth of {name}"] * (growth > GROWTH)
    for name in broken:
        print(f"BROKEN {name}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
