"""Show what a deployment would come to."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console

from flwr_sdp._rounding import power_of_ten, round_up
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.tables import facts
from flwr_sdp.strategies.planner import Plan, plan


def show(*, as_json: bool, **settings: Any) -> None:
    """Print a plan, as tables or as JSON.

    Raises
    ------
    CommandError
        If a setting is out of range, or no budget meets the target.
    """
    try:
        made = plan(**settings)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error
    if as_json:
        print(made.to_json(), end="")
    else:
        _print(made)


def _print(made: Plan) -> None:
    console = Console(highlight=False)
    console.print(
        facts(
            "Against whoever sees a report",
            [
                ("target", f"{made.dim_target:,} dimensions, to cosine {made.tolerance:g}"),
                (
                    "epsilon of one report",
                    f"{made.epsilon_direction:.6g} direction"
                    f" + {made.epsilon_magnitude:.6g} magnitude",
                ),
                ("found from one report", _probability(made.log_breach_one_report)),
                (
                    f"found from all, {made.reports_at_most:,} at most",
                    _probability(made.log_breach_all_reports),
                ),
            ],
        )
    )
    console.print(
        facts(
            f"A round of {made.clients_per_round:,} clients",
            [
                ("signal", f"{made.signal:.4g}"),
                ("noise of the devices", f"{made.local_noise:.4g}"),
                ("noise of the server", f"{made.central_noise:.4g}"),
                ("noise to signal", f"{made.noise_to_signal:.4g}"),
                ("clients that bring it to 1", f"{made.clients_needed:,}"),
                ("clip norm that clips nothing", f"{made.max_output_norm:.6g}"),
            ],
        )
    )
    console.print(
        facts(
            "Against whoever sees the models",
            [
                (
                    "epsilon",
                    f"{round_up(made.central_epsilon, 4)} at delta {made.delta:g}"
                    if math.isfinite(made.central_epsilon)
                    else "none: there is no noise",
                ),
                (
                    "after",
                    f"{made.rounds:,} rounds, noise multiplier {made.noise_multiplier:g},"
                    f" {made.clients_per_round:,} of {made.population:,} clients",
                ),
            ],
        )
    )
    for verdict in made.verdicts:
        console.print(f"! {verdict}")


def _probability(log_bound: float) -> str:
    return f"probability at most {power_of_ten(log_bound)}"
