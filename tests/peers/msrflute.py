"""microsoft/msrflute: PrivUnit and local DP in its privacy extension."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from flwr_sdp import PrivUnit, seeded_generator
from tests.peers.claims import (
    CIFAR,
    MNIST,
    REDDIT,
    Checkout,
    Claim,
    Finding,
    Peer,
    close,
    error_of,
    ours_is_pure,
    ours_is_shortest,
    shortest_norm,
    show,
)
from tests.peers.gaussian import DELTA, needed_noise, spent_delta
from tests.statistics_helpers import random_unit

FILE = "extensions/privacy/__init__.py"


def load(folder: Path | None) -> ModuleType:
    # Stand-ins for what it logs with: its own `utils` imports the framework, and azureml's Run
    # wants a workspace in the cloud.
    run = SimpleNamespace(get_context=lambda: SimpleNamespace(log=_silent))
    stand_ins: dict[str, dict[str, Any]] = {
        "utils": {"print_rank": _silent},
        "azureml": {},
        "azureml.core": {"Run": run},
    }
    for name, content in stand_ins.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    spec = importlib.util.spec_from_file_location("msrflute_privacy", f"{folder}/{FILE}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in stand_ins:
        del sys.modules[name]
    return module


def _silent(*_args: Any, **_kwargs: Any) -> None:
    """Take a line for a log."""


def calibration(msrflute: ModuleType) -> Finding:
    import torch

    torch.manual_seed(0)
    update = torch.randn(CIFAR)
    norms = [
        float(msrflute.add_private_unit2_noise(epsilon, update / update.norm()).double().norm())
        for epsilon in (100.0, 5000.0)
    ]
    excess = [
        (norm**2 - 1) / (shortest_norm(CIFAR, epsilon) ** 2 - 1)
        for norm, epsilon in zip(norms, (100.0, 5000.0), strict=True)
    ]
    probability, threshold = msrflute.privacy_parameters(1.0, 99.0, CIFAR)
    epsilon_flip = math.log(probability / (1.0 - probability))
    spent = PrivUnit(dim=CIFAR, cap_threshold=threshold, epsilon_flip=epsilon_flip).epsilon
    return Finding(
        f"norm {show(*norms)}; squared error {show(*excess)} times the smallest; "
        f"of epsilon 100 it spends {show(spent)}",
        close(norms, [853.3, 596.9]) and close(excess, [124.4, 3341]) and close(spent, 3.142),
    )


def long_vectors(msrflute: ModuleType) -> Finding:
    import torch

    errors, again = [], []
    for dim in (MNIST, REDDIT):
        unit = torch.from_numpy(random_unit(dim, dtype=np.float32))
        probability, threshold = msrflute.privacy_parameters(1.0, 99.0, dim)
        errors.append(error_of(msrflute.private_unit2, unit, threshold, probability))
        unit /= unit.norm()
        again.append(error_of(msrflute.private_unit2, unit, threshold, probability))
    text = f"{', '.join(errors)}; where torch divided by that norm: {', '.join(again)}"
    return Finding(text, errors == ["AssertionError"] * 2)


def our_long_vectors() -> Finding:
    norms, right = [], []
    for dim in (MNIST, REDDIT):
        mechanism = PrivUnit.from_epsilon(dim, 100.0)
        output = mechanism.privatize(random_unit(dim, dtype=np.float32), seeded_generator(0))
        norms.append(float(np.linalg.norm(output.astype(np.float64))))
        right.append(shortest_norm(dim, 100.0))
    return Finding(f"norm {show(*norms)}", np.allclose(norms, right, rtol=1e-5))


def local_step(msrflute: ModuleType) -> Finding:
    noise = float(msrflute.compute_LDP_noise_std(100.0, 1.0, DELTA))
    delta, needed = spent_delta(100.0, noise), needed_noise(100.0)
    root = Path(str(msrflute.__file__)).parents[2]
    uses = _uses(root, "private_unit2"), _uses(root, "add_private_unit2_noise")
    return Finding(
        f"noise {show(noise)} of the sensitivity, delta {show(delta)}, {show(needed)} needed; "
        f"private_unit2 is used {uses[0]} times, its only user {uses[1]} times",
        close(noise, 0.04845) and delta > 0.9999 and close(needed, 0.09467) and uses == (1, 0),
    )


def _uses(root: Path, name: str) -> int:
    """Count where Python files read a name, other than its definition."""
    nodes = (node for path in root.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return sum(name in (getattr(node, "id", None), getattr(node, "attr", None)) for node in nodes)


MSRFLUTE = Peer(
    name="microsoft/msrflute",
    option="msrflute",
    checkout=Checkout(
        url="https://github.com/microsoft/msrflute",
        commit="8bfe0854ab293c6226df66856b3d96b39dbe61fe",
        file=FILE,
    ),
    load=load,
    claims=(
        Claim(
            call="`add_private_unit2_noise(epsilon, u)`, 1,068,298 coordinates",
            outcome="output norm 853.3 and 596.9 at epsilon 100 and 5,000, 124 and 3,341 times the "
            "smallest squared error: of epsilon 100 it spends 3.14",
            right="76.51, 10.38 at 100, 5,000",
            theirs=calibration,
            ours=lambda: ours_is_shortest(CIFAR, 100.0, 5000.0),
        ),
        Claim(
            call="`private_unit2(u, gamma, p)`, float32 on a CPU, 3,274,634 and 13,352,875 "
            "coordinates",
            outcome="`AssertionError` on vectors of norm 1 to nine decimals: it checks five, and "
            "torch's float32 norm is not that exact",
            right="vectors of norm 134.0 and 270.5 at epsilon 100",
            theirs=long_vectors,
            ours=our_long_vectors,
        ),
        Claim(
            call="`compute_LDP_noise_std(100., 1., 1e-5)`, the noise of its local DP step, which "
            "never uses PrivUnit",
            outcome="0.04845 of the sensitivity: the formula is for epsilon below 1, and this "
            "noise has delta 1.000",
            right="0.09467 for a Gaussian; PrivUnit has delta 0",
            theirs=local_step,
            ours=ours_is_pure,
        ),
    ),
)
