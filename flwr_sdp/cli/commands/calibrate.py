"""Show the constants of a mechanism, under both rules."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.tables import table
from flwr_sdp.privunit import RULES
from flwr_sdp.separated import SeparatedBudget, SeparatedMechanism


def show(
    dim: int,
    epsilon_direction: float,
    *,
    epsilon_magnitude: float,
    max_norm: float,
    as_json: bool,
) -> None:
    """Print what a budget buys, as a table or as JSON.

    Raises
    ------
    CommandError
        If a number is out of range.
    """
    try:
        budget = SeparatedBudget(
            epsilon_direction=epsilon_direction, epsilon_magnitude=epsilon_magnitude
        )
        constants = {
            rule: _constants(SeparatedMechanism.from_budget(dim, budget, max_norm, rule=rule))
            for rule in RULES
            if rule != "paper" or dim >= 3
        }
    except ValueError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print(json.dumps({"dim": dim, "max_norm": max_norm, "rules": constants}, indent=2))
        return
    shown = table(f"PrivUnit x ScalarDP, dim {dim:,}", "")
    for rule in constants:
        shown.add_column(rule, justify="right")
    for name in next(iter(constants.values())):
        values = (constants[rule][name] for rule in constants)
        shown.add_row(name, *(f"{value:.10g}" for value in values))
    Console(highlight=False).print(shown)


def _constants(mechanism: SeparatedMechanism) -> dict[str, Any]:
    direction, magnitude, event = mechanism.direction, mechanism.magnitude, mechanism.event
    norm = magnitude.max_norm
    return {
        "epsilon_direction": event.epsilon_direction,
        "epsilon_magnitude": event.epsilon_magnitude,
        "cap_threshold": direction.cap_threshold,
        "cap_probability": direction.cap_probability,
        "epsilon_flip": direction.epsilon_flip,
        "epsilon_cap": direction.epsilon_cap,
        "scale": direction.scale,
        "expected_squared_error_of_direction": direction.expected_squared_error,
        "num_bins": magnitude.num_bins,
        "standard_deviation_of_max_norm": magnitude.variance(norm) ** 0.5,
        "max_output_norm": mechanism.max_output_norm,
        "expected_squared_error_of_max_norm": mechanism.expected_squared_error(norm),
    }
