"""Before anyone trains: what a deployment would protect, and whether it would learn anything."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from scipy import special

from flwr_sdp import _validate
from flwr_sdp._rounding import power_of_ten, round_up
from flwr_sdp.privunit import Rule
from flwr_sdp.reconstruction import log_breach_bound, max_epsilon_for
from flwr_sdp.separated import SeparatedBudget, SeparatedMechanism
from flwr_sdp.strategies.accountants import (
    compose,
    default_delta,
    delta_warning,
    poisson_accountant,
    poisson_event,
)

# Beyond this, constants are not tested; below, so little is asked that there is nothing to plan.
_LARGEST_EPSILON = 2e4
_LEAST_EPSILON = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a deployment comes to. Norms are in the units of the model.

    Attributes
    ----------
    dim, clients_per_round, population, rounds : int
        The deployment.
    dim_target, tolerance, target_breach : int, float, float
        What is to be protected: the direction of a k-dimensional view of the update, so that it is
        found to this cosine with at most this probability.
    reports : int
        From how many reports of one client together.
    reports_expected : float
        How many a client sends in all rounds, on average.
    reports_at_most : int
        How many it sends at most, but for one client in a thousand.
    epsilon_direction, epsilon_magnitude : float
        Budget of one report that protects so much.
    log_breach_one_report, log_breach_all_reports : float
        Log of the bound on the probability after one report, and after `reports_at_most`. Above 0
        nothing is protected.
    scale, max_output_norm : float
        Length of a private direction, and of the longest report.
    local_noise, central_noise : float
        Root mean square norms of the two noises in a round's average.
    signal : float
        Norm of the average update.
    noise_to_signal : float
        Norm of both noises together, over that.
    clients_needed : int
        Clients a round at which it is 1.
    noise_multiplier : float
        z of the server's noise.
    central_epsilon, delta : float
        Central guarantee after all rounds; infinity without noise.
    accountant : str
        Whose bound it is.
    verdicts : tuple of str
        What to know before starting, in words.
    """

    dim: int
    clients_per_round: int
    population: int
    rounds: int
    dim_target: int
    tolerance: float
    target_breach: float
    reports: int
    reports_expected: float
    reports_at_most: int
    epsilon_direction: float
    epsilon_magnitude: float
    log_breach_one_report: float
    log_breach_all_reports: float
    scale: float
    max_output_norm: float
    local_noise: float
    central_noise: float
    signal: float
    noise_to_signal: float
    clients_needed: int
    noise_multiplier: float
    central_epsilon: float
    delta: float
    accountant: str
    verdicts: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the plan as indented JSON; infinity is null."""
        facts = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return json.dumps(facts, indent=2) + "\n"


def plan(
    dim: int,
    *,
    clients_per_round: int,
    population: int,
    rounds: int,
    target_breach: float = 1e-3,
    dim_target: int | None = None,
    tolerance: float = 0.5,
    reports: int = 1,
    epsilon_direction: float | None = None,
    epsilon_magnitude: float = 10.0,
    max_norm: float = 1.0,
    update_norm: float | None = None,
    agreement: float = 1.0,
    noise_multiplier: float = 1.0,
    delta: float | None = None,
    rule: Rule = "tight",
) -> Plan:
    r"""Work out budget, noise and central guarantee of a deployment, without training.

    Parameters
    ----------
    dim : int
        Coordinates of an update.
    clients_per_round, population, rounds : int
        Poisson cohorts of this expected size out of so many clients, so often.
    target_breach : float
        Largest probability with which the target may be reconstructed, in (0, 1].
    dim_target : int, optional
        k, the real dimension of the target; by default the whole update. **The smaller, the harder
        to protect**: the low frequencies of an image, or the gradient of one layer.
    tolerance : float
        The target counts as reconstructed from this cosine on.
    reports : int
        Protect against an onlooker of so many reports of one client. 1 is who sees one round;
        against the server it is all the rounds that the client takes part in.
    epsilon_direction : float, optional
        Do not choose the budget, but say what this one protects.
    epsilon_magnitude : float
        Budget of the magnitude of one report.
    max_norm : float
        Longest update that is not shortened.
    update_norm : float, optional
        Root mean square norm of an update; by default `max_norm`.
    agreement : float
        Norm of the average update over `update_norm`, in (0, 1]: 1 if all clients push the same
        way. Measure it on public data; the default is the best case.
    noise_multiplier : float
        z, of the server's noise, in units of the longest report; 0 for none.
    delta : float, optional
        By default the smaller of 1e-5 and 1 / (10 N). From 1 / N on a verdict says what it permits.
    rule : {"tight", "paper"}
        Of PrivUnit.

    Returns
    -------
    Plan
        With `verdicts` that say plainly when the noise drowns the signal, when the target cannot be
        protected, when nothing is protected over all reports, or when delta is too large.

    Raises
    ------
    ValueError
        If a number is out of range, or no budget meets the target: the error says what would.

    Notes
    -----
    The noise of an average of n private reports has the expected squared norm
    :math:`E|Z - w|^2 / n`, exact for the mechanism; that of the server :math:`d (z \rho / n)^2`
    at a rho that clips no report. The sampling of cohorts adds a share of about
    1 / ``scale**2``, which is left out.
    """
    dim = _validate.integer("dim", dim, minimum=2)
    population = _validate.integer("population", population, minimum=1)
    n = _validate.integer("clients_per_round", clients_per_round, minimum=1, maximum=population)
    rounds = _validate.integer("rounds", rounds, minimum=1)
    reports = _validate.integer("reports", reports, minimum=1)
    k = _validate.integer(
        "dim_target", dim if dim_target is None else dim_target, minimum=2, maximum=dim
    )
    target_breach = _validate.number("target_breach", target_breach, above=0.0, maximum=1.0)
    magnitude = _validate.number("epsilon_magnitude", epsilon_magnitude, above=0.0)
    max_norm = _validate.number("max_norm", max_norm, above=0.0)
    norm = _validate.number(
        "update_norm", max_norm if update_norm is None else update_norm, above=0.0
    )
    agreement = _validate.number("agreement", agreement, above=0.0, maximum=1.0)
    z = _validate.number("noise_multiplier", noise_multiplier, minimum=0.0)
    delta = _validate.number(
        "delta", default_delta(population) if delta is None else delta, above=0.0, below=1.0
    )
    if epsilon_direction is None:
        total = max_epsilon_for(
            probability=target_breach, dim_target=k, tolerance=tolerance, rule="tight"
        )
        direction = min(total / reports - magnitude, dim, _LARGEST_EPSILON)
        if direction < _LEAST_EPSILON:
            limit, asked = _validate.apart(total / reports, magnitude, digits=4)
            raise ValueError(
                f"epsilon_magnitude must be below {limit}, all that {reports} "
                f"report(s) may cost for target_breach={target_breach:g} at dim_target={k}; got "
                f"{asked}: choose a larger dim_target or tolerance, or fewer reports"
            )
    else:
        direction = _validate.number("epsilon_direction", epsilon_direction, above=0.0)
    mechanism = SeparatedMechanism.from_budget(
        dim,
        SeparatedBudget(epsilon_direction=direction, epsilon_magnitude=magnitude),
        max_norm,
        rule=rule,
    )
    cost = mechanism.event.epsilon
    expected = rounds * n / population
    most = _reports_at_most(rounds, n / population)

    def log_breach(count: int) -> float:
        return log_breach_bound(
            epsilon=cost * count, dim_target=k, tolerance=tolerance, rule="tight"
        )

    local = mechanism.expected_squared_error(norm)
    central = dim * (z * mechanism.max_output_norm) ** 2
    signal = agreement * norm
    noise = math.sqrt(local / n + central / n**2)
    needed = math.ceil(
        (local + math.sqrt(local**2 + 4.0 * central * signal**2)) / (2.0 * signal**2)
    )
    epsilon, accountant = _central_epsilon(n, population, rounds, z, delta)
    made = Plan(
        dim=dim,
        clients_per_round=n,
        population=population,
        rounds=rounds,
        dim_target=k,
        tolerance=tolerance,
        target_breach=target_breach,
        reports=reports,
        reports_expected=expected,
        reports_at_most=most,
        epsilon_direction=direction,
        epsilon_magnitude=magnitude,
        log_breach_one_report=log_breach(1),
        log_breach_all_reports=log_breach(most),
        scale=mechanism.direction.scale,
        max_output_norm=mechanism.max_output_norm,
        local_noise=math.sqrt(local / n),
        central_noise=math.sqrt(central) / n,
        signal=signal,
        noise_to_signal=noise / signal,
        clients_needed=needed,
        noise_multiplier=z,
        central_epsilon=epsilon,
        delta=delta,
        accountant=accountant,
    )
    return _with_verdicts(made)


def _reports_at_most(rounds: int, rate: float) -> int:
    """Return how many reports all but a thousandth of the clients stay within, at least 1."""
    count = 1
    while count < rounds and special.bdtrc(count, rounds, rate) > 1e-3:
        count += 1
    return count


def _central_epsilon(
    n: int, population: int, rounds: int, noise_multiplier: float, delta: float
) -> tuple[float, str]:
    if noise_multiplier == 0.0:
        return math.inf, "none"
    accountant = poisson_accountant(population=population, delta=delta)
    event = poisson_event(
        noise_multiplier=noise_multiplier, sampling_rate=n / population, population=population
    )
    compose(accountant, event, rounds)
    spent = accountant.get_privacy_spent()
    return spent.epsilon, spent.accounting_method


def _with_verdicts(made: Plan) -> Plan:
    verdicts = []
    ratio, needed = made.noise_to_signal, made.clients_needed
    if ratio > 1.0:
        verdicts.append(
            f"the noise of a round is {ratio:.3g} times its signal: it takes {needed:,} clients a "
            f"round to bring it to 1, and {made.clients_per_round:,} are planned"
        )
    if needed > made.population:
        verdicts.append(
            f"the signal drowns: {needed:,} clients a round are more than the population of "
            f"{made.population:,}; train fewer coordinates, or spend more"
        )
    limit = math.log(made.target_breach) + 1e-9
    if made.log_breach_one_report > limit:
        verdicts.append(
            "one report is found with more than the target's probability of "
            f"{made.target_breach:g}: the bound is {power_of_ten(made.log_breach_one_report)}"
        )
    elif made.log_breach_all_reports > limit:
        verdicts.append(
            f"the server sees up to {made.reports_at_most:,} reports of a client, from which the "
            f"bound is {power_of_ten(made.log_breach_all_reports)}: set `reports` to plan for that"
        )
    if not made.central_epsilon <= 10.0:
        verdicts.append(
            f"the central epsilon of {round_up(made.central_epsilon, 4)} says little: raise the "
            "noise multiplier, or lower the sampling rate or the rounds"
        )
    warning = delta_warning(made.delta, made.population)
    if warning is not None and made.noise_multiplier > 0.0:
        verdicts.append(warning)
    return replace(made, verdicts=tuple(verdicts))
