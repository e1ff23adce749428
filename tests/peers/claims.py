"""What is claimed of other code: a call, its outcome, what is right, and a check of all three."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flwr_sdp import PrivUnit
from tests.statistics_helpers import load_oracle

MNIST = 3_274_634
CIFAR = 1_068_298
REDDIT = 13_352_875
"""Coordinates of networks of the paper."""


@dataclass(frozen=True)
class Finding:
    """What a call gave, and whether that is what the claim says."""

    text: str
    as_stated: bool


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A line of the table in docs/comparison.md, with its checks.

    `theirs` is given what :attr:`Peer.load` returned. `ours` makes the same call of this package,
    and finds that it does what `right` says.
    """

    call: str
    outcome: str
    right: str
    theirs: Callable[[Any], Finding]
    ours: Callable[[], Finding]


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A commit of a public repository, and a file by which a folder is recognised as one."""

    url: str
    commit: str
    file: str

    def commands(self, name: str) -> str:
        folder = f"build/{name}"  # which git ignores
        return f"git clone {self.url} {folder} && git -C {folder} checkout {self.commit}"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Other code: how to get it, how to load it, and what is claimed of it.

    Without a `checkout` it is installed, and `load` is given no folder.
    """

    name: str
    option: str
    checkout: Checkout | None
    load: Callable[[Path | None], Any]
    claims: tuple[Claim, ...]


def show(*numbers: float) -> str:
    return ", ".join(f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}" for x in numbers)


def error_of(call: Callable[..., Any], *args: Any) -> str:
    """Return the name of the exception that a call raises, or "no error"."""
    try:
        call(*args)
    except Exception as error:
        return type(error).__name__
    return "no error"


def close(found: Any, stated: Any) -> bool:
    """Say whether numbers are those stated, which have three to five digits."""
    return bool(np.allclose(found, stated, rtol=1e-3, atol=0.0))


# ------------------------------------------------------------------ what is right
def shortest_norm(dim: int, epsilon: float) -> float:
    """Return the smallest norm an unbiased PrivUnit output can have, from the oracle."""
    for case in load_oracle("privunit")["cases"]:
        if case["d"] == dim and float(case["eps_tot"]) == epsilon:
            return float(case["best_split"]["norm"])
    raise LookupError(f"the oracle has no point at dim {dim}, epsilon {epsilon:g}")


def ours_is_shortest(dim: int, *epsilons: float) -> Finding:
    mechanisms = [PrivUnit.from_epsilon(dim, epsilon) for epsilon in epsilons]
    found = [mechanism.scale for mechanism in mechanisms]
    right = [shortest_norm(dim, epsilon) for epsilon in epsilons]
    within = all(m.epsilon <= e for m, e in zip(mechanisms, epsilons, strict=True))
    return Finding(f"norm {show(*found)}", within and np.allclose(found, right, rtol=1e-9))


def ours_is_pure() -> Finding:
    """All of the budget is spent, no more, and none of it is a delta."""
    mechanism = PrivUnit.from_epsilon(MNIST, 100.0)
    text = f"epsilon {mechanism.epsilon:.6g}, delta 0"
    return Finding(text, 100.0 * (1 - 1e-9) <= mechanism.epsilon <= 100.0)


def mean_agreement(outputs: Any, unit: Any) -> tuple[float, float]:
    """Return the mean of <output, unit>, which is 1 where outputs are unbiased, and its error."""
    dots = np.array([np.dot(output, unit) for output in outputs])
    return float(dots.mean()), float(dots.std(ddof=1) / math.sqrt(len(dots)))
