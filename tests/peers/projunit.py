"""apple/ml-projunit: PrivUnitG, the Gaussian relative of PrivUnit."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from flwr_sdp import PrivUnit, seeded_generator
from tests.peers.claims import (
    CIFAR,
    Checkout,
    Claim,
    Finding,
    Peer,
    close,
    error_of,
    mean_agreement,
    ours_is_shortest,
    show,
)
from tests.statistics_helpers import random_unit

DRAWS = 10_000


def load(folder: Path | None) -> ModuleType:
    # Its modules import each other by bare names.
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("PrivUnitAlgs")
    finally:
        sys.path.remove(str(folder))


def calibration(projunit: ModuleType) -> Finding:
    p = projunit.priv_unit_G_get_p(100.0)
    threshold, sigma = projunit.get_gamma_sigma(p, 100.0)
    norm, unit = math.sqrt(CIFAR) * sigma, random_unit(100)
    np.random.seed(0)  # noqa: NPY002 - the generator it draws from
    outputs = (projunit.PrivUnitG(unit, 100.0, p, threshold, sigma) for _ in range(DRAWS))
    mean, error = mean_agreement(outputs, unit)
    _, too_large = projunit.priv_unit_G_get_p(707.0, return_sigma=True)
    errors = [error_of(projunit.priv_unit_G_get_p, epsilon) for epsilon in (1000.0, 5000.0)]
    as_stated = (
        close(norm, 76.61)
        and abs(mean - 1) < 5 * error
        and error < 0.002
        and math.isnan(too_large)
        and errors == ["OverflowError"] * 2
    )
    return Finding(
        f"norm {show(norm)}, {too_large}, {', '.join(errors)} at 100, 707, 1,000, 5,000; "
        f"mean of <Z, u> {mean:.3f} +- {error:.4f} at 100",
        as_stated,
    )


def exact_mechanism(projunit: ModuleType) -> Finding:
    error = error_of(projunit.privatize_vector, random_unit(1000), 100.0, 1, "PrivUnit")
    return Finding(error, error == "NameError")


def our_exact_mechanism() -> Finding:
    mechanism = PrivUnit.from_epsilon(1000, 100.0)
    norm = np.linalg.norm(mechanism.privatize(random_unit(1000), seeded_generator(0)))
    return Finding(f"norm {show(norm)}", close(norm, 2.448))


PROJUNIT = Peer(
    name="apple/ml-projunit",
    option="projunit",
    checkout=Checkout(
        url="https://github.com/apple/ml-projunit",
        commit="166f449f94f5aeb5200315af78daea11dc1e616b",
        file="PrivUnitAlgs.py",
    ),
    load=load,
    claims=(
        Claim(
            call="`priv_unit_G_get_p(epsilon)`, for 1,068,298 coordinates",
            outcome="at epsilon 100 right: unbiased, root mean square norm 76.61; NaN at 707; "
            "`OverflowError` at 1,000 and 5,000",
            right="76.51, 23.27, 10.38 at 100, 1,000, 5,000",
            theirs=calibration,
            ours=lambda: ours_is_shortest(CIFAR, 100.0, 1000.0, 5000.0),
        ),
        Claim(
            call='`privatize_vector(u, 100., k, "PrivUnit")`',
            outcome="`NameError`: PrivUnit itself is not there",
            right="a vector of norm 2.448, for 1,000 coordinates",
            theirs=exact_mechanism,
            ours=our_exact_mechanism,
        ),
    ),
)
