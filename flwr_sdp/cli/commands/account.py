"""Account for a training before it runs, in either direction."""

from __future__ import annotations

import json

from rich.console import Console

from flwr_sdp._rounding import round_up
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.tables import facts
from flwr_sdp.strategies import noise_multiplier_for, poisson_accountant, poisson_event
from flwr_sdp.strategies.accountants import compose, default_delta, delta_warning


def show(
    *,
    noise_multiplier: float | None,
    target_epsilon: float | None,
    clients_per_round: int,
    population: int,
    rounds: int,
    delta: float | None,
    as_json: bool,
) -> None:
    """Print epsilon for a noise multiplier, or the noise multiplier for an epsilon.

    Raises
    ------
    CommandError
        If a number is out of range, or not exactly one of the two is given.
    """
    if (noise_multiplier is None) == (target_epsilon is None):
        raise CommandError("give either --noise-multiplier or --target-epsilon")
    if not 1 <= clients_per_round <= population:
        raise CommandError(
            f"clients_per_round must be between 1 and the population of {population}; got "
            f"{clients_per_round}"
        )
    rate = clients_per_round / population
    delta = default_delta(population) if delta is None else delta
    try:
        if noise_multiplier is None and target_epsilon is not None:
            noise_multiplier = noise_multiplier_for(
                epsilon=target_epsilon, delta=delta, sampling_rate=rate, rounds=rounds
            )
        event = poisson_event(
            noise_multiplier=noise_multiplier or 0.0, sampling_rate=rate, population=population
        )
        accountant = poisson_accountant(population=population, delta=delta)
        compose(accountant, event, rounds)
        spent = accountant.get_privacy_spent()
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error
    found = {
        "epsilon": spent.epsilon,
        "delta": delta,
        "noise_multiplier": noise_multiplier,
        "sampling_rate": rate,
        "population": population,
        "rounds": rounds,
        "accountant": spent.accounting_method,
        "adjacency": "add or remove one client",
        "sampling": "poisson",
        "warning": delta_warning(delta, population),
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    console.print(
        facts(
            "Against whoever sees the models: add or remove one client",
            [
                (
                    "epsilon",
                    f"{round_up(spent.epsilon, 6)} at delta {delta:g} ({spent.accounting_method})",
                ),
                ("noise multiplier", f"{noise_multiplier:.6g}"),
                (
                    "after",
                    f"{rounds:,} rounds, Poisson cohorts of {clients_per_round:,} out of "
                    f"{population:,}",
                ),
            ],
        )
    )
    if found["warning"] is not None:
        console.print(f"! {found['warning']}")
