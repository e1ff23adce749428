"""A small training run that can be killed and resumed; also a program: see `main`.

``python -m tests.strategies.resumable DIRECTORY ROUNDS KILL_AT`` starts the run, or goes on with
the one in DIRECTORY, and kills itself with SIGKILL at the point KILL_AT, ``round:place``.
"""

import json
import os
import signal
import sys

import numpy as np
from flwr.serverapp.strategy import FedAdam

from flwr_sdp import seeded_generator
from flwr_sdp.strategies import Checkpoints
from tests.messages import FakeGrid, flat, private_reply, record
from tests.rounds import Ledger, make

NODES = 12
FIXED = {"sampling_rate": None, "cohort_size": 6, "noise_multiplier": 3.0}
"""Settings of the program: charged by Flower's accountant."""


def build(directory=None, strategy=None, **options):
    """Return a strategy in test mode: its noise and its cohorts go by the round.

    Its accountant counts; Flower's takes a quarter of a second for a Poisson-sampled release.
    """
    checkpoints = None if directory is None else Checkpoints(directory)
    if "sampling_rate" not in options or options["sampling_rate"] is not None:
        accountant = Ledger(options.get("population", NODES))
        options = {"accountant": accountant, **options}
    if options.get("noise_multiplier") == 0:
        del options["accountant"]
    settings = {
        "noise_multiplier": 1.0,
        "sampling_rate": 0.5,
        "rng": lambda server_round: seeded_generator(7, "noise", server_round),
        "checkpoints": checkpoints,
    }
    return make(strategy or FedAdam(fraction_evaluate=0.0), **(settings | options))


def initial_model():
    return record({"w": np.linspace(-1, 1, 5, dtype=np.float32), "steps": np.array([3, 4])})


class Node:
    """Nodes whose reply depends on the model, on who they are, and on nothing else."""

    def __init__(self, on_question=lambda message: None):
        self.on_question = on_question

    def __call__(self, message):
        self.on_question(message)
        sent = flat(message.content["arrays"])
        return private_reply(message, 0.1 * (message.metadata.dst_node_id / NODES - sent))


def run(strategy, rounds, *, resume=False, on_question=lambda message: None, evaluate=None):
    go = strategy.resume if resume else strategy.start
    return go(
        FakeGrid(range(NODES), Node(on_question)),
        initial_model(),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )


def main(directory, rounds, kill_at):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    kill_round, place = kill_at.split(":")

    def kill(here, server_round):
        if (here, server_round) == (place, int(kill_round)):
            os.kill(os.getpid(), signal.SIGKILL)

    strategy = build(directory, **FIXED)
    result = run(
        strategy,
        int(rounds),
        resume=os.path.exists(os.path.join(directory, "ledger.json")),
        on_question=lambda message: kill("asked", message.content["config"]["server-round"]),
        evaluate=lambda server_round, _model: kill("evaluated", server_round),
    )
    spent = strategy.privacy_spent()
    facts = {
        "model": flat(result.arrays).tolist(),
        "epsilon": spent.epsilon,
        "releases": spent.num_releases,
        "rounds": strategy.report().rounds,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
