"""apple/pfl-research, before PrivUnit was removed there."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from flwr_sdp import PrivUnit, seeded_generator
from tests.peers.claims import (
    MNIST,
    Checkout,
    Claim,
    Finding,
    Peer,
    close,
    mean_agreement,
    ours_is_shortest,
    show,
)
from tests.statistics_helpers import random_unit

DRAWS = 4000


def load(folder: Path | None) -> ModuleType:
    # An empty package in place of pfl/__init__.py, which imports the whole framework.
    package = ModuleType("pfl")
    package.__path__ = [f"{folder}/pfl"]
    sys.modules["pfl"] = package
    return importlib.import_module("pfl.internal.priv_unit_functions")


def calibration(pfl: ModuleType) -> Finding:
    norms, unbiased, within = [], [], True
    for epsilon in (1.0, 10.0, 30.0, 50.0, 100.0, 500.0):
        norm, threshold = pfl.compute_optimal_cap_offset(epsilon, MNIST)
        epsilon_flip = epsilon - pfl._compute_cap_offset_epsilon(threshold, MNIST)
        mechanism = PrivUnit(dim=MNIST, cap_threshold=threshold, epsilon_flip=epsilon_flip)
        norms.append(norm.value)
        unbiased.append(mechanism.scale)
        within = within and mechanism.epsilon <= epsilon
    shortest = [PrivUnit.from_epsilon(MNIST, epsilon).scale for epsilon in (1.0, 10.0, 30.0)]
    longer = max(np.divide(norms[:3], shortest)) - 1
    return Finding(
        f"norm {show(*norms)}, up to {longer:.1%} longer than the shortest until epsilon 30",
        within
        and close(norms, [4607, 590.8, 270.0, 0, 0, 0])
        and close(norms[:3], unbiased[:3])
        and 0.06 < longer < 0.065,
    )


def agreement(pfl: ModuleType) -> Finding:
    unit = random_unit(1000)
    np.random.seed(0)  # noqa: NPY002 - the generator it draws from
    mean, error = mean_agreement((pfl.privatize(50.0, unit) for _ in range(DRAWS)), unit)
    norm = np.linalg.norm(pfl.privatize(100.0, unit))
    text = f"mean of <Z, u> {mean:.4f} +- {error:.4f} at 50; norm {show(norm)} at 100"
    return Finding(text, abs(mean - 0.6667) < 0.001 and error < 0.0002 and norm == 0)


def our_agreement() -> Finding:
    unit, rng = random_unit(1000), seeded_generator(0)
    rows = np.tile(unit, (DRAWS, 1))
    mean, error = mean_agreement(PrivUnit.from_epsilon(1000, 50.0).privatize(rows, rng), unit)
    mechanism = PrivUnit.from_epsilon(1000, 100.0)
    norm = np.linalg.norm(mechanism.privatize(unit, rng))
    text = f"mean of <Z, u> {mean:.4f} +- {error:.4f} at 50; norm {show(norm)} at 100"
    unbiased = abs(mean - 1) < 5 * error and error < 0.002
    return Finding(text, unbiased and close(norm, 2.448))


PFL_RESEARCH = Peer(
    name="apple/pfl-research",
    option="pfl",
    checkout=Checkout(
        url="https://github.com/apple/pfl-research",
        commit="e84f8f9dc820d42caa42ed424b2cde8fa66af468",
        file="pfl/internal/priv_unit_functions.py",
    ),
    load=load,
    claims=(
        Claim(
            call="`compute_optimal_cap_offset(epsilon, 3_274_634)`",
            outcome="output norm 4,607, 590.8, 270.0 at epsilon 1, 10, 30: unbiased, and at most "
            "6.5% longer than the shortest; 0 at 50, 100, 500: every update becomes the zero "
            "vector",
            right="196.5, 134.0, 57.88 at 50, 100, 500",
            theirs=calibration,
            ours=lambda: ours_is_shortest(MNIST, 50.0, 100.0, 500.0),
        ),
        Claim(
            call="`privatize(epsilon, u)`, 1,000 coordinates",
            outcome="at epsilon 50 the mean of `<Z, u>` is 0.667: biased; at 100 `Z` is 0",
            right="mean 1; norm 2.448 at 100",
            theirs=agreement,
            ours=our_agreement,
        ),
    ),
)
