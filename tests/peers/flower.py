"""Flower's own local and central differential privacy, as installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.clients.testing import enter_run
from tests.messages import (
    FakeGrid,
    client_app,
    context,
    error_reply,
    numpy_dict,
    private_reply,
    record,
    reply_with,
    request,
)
from tests.peers.claims import Claim, Finding, Peer, close, error_of, ours_is_pure, show
from tests.peers.gaussian import DELTA, needed_noise, spent_delta
from tests.rounds import make, play

EPSILON = 100.0
CLIP = 1.0
BUDGET = SeparatedBudget(epsilon_direction=EPSILON, epsilon_magnitude=10.0)
Arrays = dict[str, Any]


# ------------------------------------------------------------------ on the device
def theirs() -> LocalDpMod:
    return LocalDpMod(clipping_norm=CLIP, sensitivity=1.0, epsilon=EPSILON, delta=DELTA)


def ours() -> SeparatedDPMod:
    return SeparatedDPMod(BUDGET, CLIP, rng=lambda: seeded_generator(0))


def train(mod: Any, received: Arrays, trained: Arrays) -> Message:
    """Return what leaves a device whose app turns one model into the other, with a loss."""
    app = client_app(mod, lambda m, _c: reply_with(m, record(trained), loss=0.125), attach="app")
    return app(request(record(received)), context())


def evaluate(mod: Any) -> Message:
    """Return what leaves the same device when it is asked to evaluate a model."""
    metrics = {"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 32})}
    app = client_app(mod, lambda m, _c: Message(RecordDict(metrics), reply_to=m), attach="app")
    return app(request(record({"w": np.zeros(4)}), "evaluate"), context())


def arrays_of(reply: Message) -> Arrays:
    return numpy_dict(reply.content["arrays"])


def local_noise(_: Any) -> Finding:
    zeros = np.zeros(100_000)
    noise = float(arrays_of(train(theirs(), {"w": zeros}, {"w": zeros + 1.0}))["w"].std())
    delta, needed = spent_delta(EPSILON, noise), needed_noise(EPSILON)
    return Finding(
        f"noise {show(noise)} of the sensitivity, delta {show(delta)}, {show(needed)} needed",
        abs(noise / 0.04845 - 1) < 0.02 and delta > 0.9999 and close(needed, 0.09467),
    )


ZERO, ONES = np.zeros(4), np.ones(4)
ORDINARY_MODELS: dict[str, tuple[Arrays, Arrays]] = {
    "zero update": ({"w": ZERO}, {"w": ZERO}),
    "bool buffer": ({"w": ZERO, "b": ONES > 0}, {"w": ONES, "b": ONES > 0}),
    "int buffer": ({"w": ZERO, "n": np.array([3])}, {"w": ONES, "n": np.array([4])}),
}


def ordinary_models(_: Any) -> Finding:
    raised = [error_of(train, theirs(), *models) for models in ORDINARY_MODELS.values()]
    refused = evaluate(theirs()).has_error()
    return Finding(
        f"{', '.join(raised)}; evaluation {'is an error' if refused else 'passes'}",
        raised == ["ZeroDivisionError", "TypeError", "UFuncTypeError"] and refused,
    )


def our_ordinary_models() -> Finding:
    replies = [train(ours(), *models) for models in ORDINARY_MODELS.values()]
    answered = all(reply.has_content() for reply in replies) and evaluate(ours()).has_content()
    # The update is noise where there was none, and buffers are as they were received.
    kept = answered and all(
        (arrays_of(reply)[name] == received[name]).all() == (name != "w")
        for reply, (received, _) in zip(replies, ORDINARY_MODELS.values(), strict=True)
        for name in received
    )
    return Finding("all answered" if answered else "an error", kept)


def what_leaves(mod: Any) -> tuple[float, Arrays, float]:
    """Return a private scalar, the metrics, and the length of an update with one NaN."""
    received = {"w": np.zeros(1000), "s": np.array(0.5)}
    reply = train(mod, received, {"w": np.ones(1000), "s": np.array(7.25)})
    update = np.full(1000, 1000.0)
    update[0] = np.nan
    with_nan = arrays_of(train(mod, {"w": np.zeros(1000)}, {"w": update}))["w"]
    scalar = float(arrays_of(reply)["s"])
    return scalar, dict(reply.content["metrics"]), float(np.linalg.norm(with_nan[1:]))


def leaks(_: Any) -> Finding:
    scalar, metrics, length = what_leaves(theirs())
    return Finding(
        f"the scalar leaves as {scalar}, with {metrics}; with a NaN length {show(length)}",
        scalar == 7.25
        and metrics == {"num-examples": 32, "loss": 0.125}
        and close(length, 1000.0 * np.sqrt(999)),
    )


def our_leaks() -> Finding:
    scalar, metrics, length = what_leaves(ours())
    longest = SeparatedMechanism.from_budget(1000, BUDGET, CLIP).max_output_norm
    return Finding(
        f"the scalar leaves as {show(scalar)}, with num-examples {metrics['num-examples']} and "
        f"{'a' if 'loss' in metrics else 'no'} loss; with a NaN length {show(length)}",
        scalar not in (0.5, 7.25)
        and metrics["num-examples"] == 1
        and "loss" not in metrics
        and 0 < length <= longest,
    )


# ------------------------------------------------------------------ on the server
CLIENTS = 100
DIM = 20_000


def fixed_clipping(noise_multiplier: float = 1.0, **options: Any) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier, CLIP, CLIENTS, **options
    )


def clip_and_noise(noise_multiplier: float = 1.0) -> Strategy:
    return make(clip_norm=CLIP, noise_multiplier=noise_multiplier)


def one_round(strategy: Strategy, answer: Any) -> Any:
    """Return the model after a round of 100 clients, or None when the round is discarded."""
    arrays, _ = play(strategy, FakeGrid(range(CLIENTS)), record({"w": np.zeros(DIM)}), answer)
    return None if arrays is None else arrays["w"].numpy()


def along(axis: int, length: float = 1.0) -> Any:
    return length * np.eye(1, DIM, axis)[0]


def one_without_update(index: int, message: Message) -> Message:
    return private_reply(message, along(0, 1.0 if index else 0.0))


def one_fails(index: int, message: Message) -> Message:
    return private_reply(message, along(0)) if index else error_reply(message)


def ten_reply(index: int, message: Message) -> Message | None:
    """Ten of a hundred answer, one of them with an update of its own."""
    return private_reply(message, along(1 if index else 0)) if index < 10 else None


def one_client_in_the_way(_: Any) -> Finding:
    zero = error_of(one_round, fixed_clipping(), one_without_update)
    discarded = one_round(fixed_clipping(), one_fails) is None
    return Finding(
        f"{zero} on a zero update; one failure: {'no new model' if discarded else 'a new model'}",
        zero == "ZeroDivisionError" and discarded,
    )


def our_clients_in_the_way() -> Finding:
    moved = [
        one_round(clip_and_noise(0.0), answer)[0] for answer in (one_without_update, one_fails)
    ]
    return Finding(f"the model moves by {show(*moved)}", np.allclose(moved, 0.99, rtol=1e-12))


def noise_per_influence(strategy: Any) -> float:
    """Return the noise on the model, in units of how far one of ten clients can move it."""
    influence = one_round(strategy(0.0), ten_reply)[0]
    return float(one_round(strategy(1.0), ten_reply)[2:].std() / influence)


def few_replies(_: Any) -> Finding:
    multiplier = noise_per_influence(fixed_clipping)
    accountant = RdpAccountant(
        PrivacyConfig(
            target_delta=DELTA,
            population_size=CLIENTS,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
    )
    dropped = one_round(fixed_clipping(accountant=accountant), ten_reply) is None
    return Finding(
        f"noise multiplier {multiplier:.3f}; with an accountant "
        f"{'no new model' if dropped else 'a new model'}",
        abs(multiplier / 0.1 - 1) < 0.03 and dropped,
    )


def our_few_replies() -> Finding:
    multiplier = noise_per_influence(clip_and_noise)
    return Finding(f"noise multiplier {multiplier:.3f}", abs(multiplier - 1) < 0.03)


def load(_folder: Path | None) -> None:
    enter_run()


FLOWER = Peer(
    name="Flower",
    option="flower",
    checkout=None,
    load=load,
    claims=(
        Claim(
            call="`LocalDpMod(epsilon=100, delta=1e-5)`",
            outcome="noise 0.04845 of the sensitivity: the formula is for epsilon below 1, and "
            "this noise has delta 1.000",
            right="0.09467 for a Gaussian; PrivUnit has delta 0",
            theirs=local_noise,
            ours=ours_is_pure,
        ),
        Claim(
            call="`LocalDpMod` of an app: a zero update, a bool buffer, an int buffer where "
            "the update is clipped, an evaluation",
            outcome="`ZeroDivisionError`, `TypeError`, `UFuncTypeError`, an error reply",
            right="replies; buffers as received",
            theirs=ordinary_models,
            ours=our_ordinary_models,
        ),
        Claim(
            call="`LocalDpMod`: an array of shape `()`, a loss, one NaN",
            outcome="the scalar, the loss and the number of examples leave as they are; the NaN "
            "switches clipping off for all coordinates",
            right="all of it private or withheld",
            theirs=leaks,
            ours=our_leaks,
        ),
        Claim(
            call="`DifferentialPrivacyServerSideFixedClipping`, 100 clients: one with a zero "
            "update, one that fails",
            outcome="`ZeroDivisionError`; the round is discarded",
            right="the model moves by 99 of 100 updates",
            theirs=one_client_in_the_way,
            ours=our_clients_in_the_way,
        ),
        Claim(
            call="`DifferentialPrivacyServerSideFixedClipping(noise_multiplier=1)`, 10 of 100 "
            "reply",
            outcome="the mean is over 10, the noise is for 100: the multiplier is 0.1 (a warning "
            "in the log; with an accountant the round is discarded)",
            right="1",
            theirs=few_replies,
            ours=our_few_replies,
        ),
    ),
)
