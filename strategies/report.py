"""The privacy report: who is protected against whom, by which numbers, with which exceptions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, TypeVar

from flwr_sdp._rounding import power_of_ten, round_up
from flwr_sdp.reconstruction import log_breach_bound
from flwr_sdp.strategies.accountants import (
    compose,
    delta_warning,
    poisson_accountant,
    poisson_event,
)
from flwr_sdp.strategies.events import rate_of
from flwr_sdp.strategies.projection import ProjectionEffect

SCHEMA_VERSION = 1

# The reconstruction that the report speaks of: half of the way to the exact direction.
_TOLERANCE = 0.5

_Part = TypeVar("_Part", "LocalGuarantee", "CentralGuarantee", ProjectionEffect)

_DEVICES_RUN_IT = "without projection, if every device runs the mechanism"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalGuarantee:
    """Pure local differential privacy of one report, direction and magnitude apart."""

    epsilon_direction: float
    epsilon_magnitude: float

    @property
    def epsilon_per_report(self) -> float:
        """Local epsilon of one report."""
        return self.epsilon_direction + self.epsilon_magnitude

    def total(self, reports: int) -> float:
        """Return the local epsilon of so many reports of one client, by basic composition."""
        return reports * self.epsilon_per_report

    def widened(self, other: LocalGuarantee) -> LocalGuarantee:
        """Return the weaker of the two guarantees, part by part."""
        return replace(
            self,
            epsilon_direction=max(self.epsilon_direction, other.epsilon_direction),
            epsilon_magnitude=max(self.epsilon_magnitude, other.epsilon_magnitude),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CentralGuarantee:
    """(epsilon, delta)-differential privacy of the released models, and what it rests on.

    `sampling_rate` is the one charged. Accountants other than ours charge whole numbers of clients;
    then `expected_cohort`, the divisor of a run's sums, is below that share of the population.
    """

    epsilon: float
    delta: float
    releases: int
    accountant: str
    noise_multiplier: float
    clip_norm: float
    sampling_rate: float
    population: int
    sampling: str = "poisson"
    expected_cohort: float | None = None

    @property
    def warning(self) -> str | None:
        """What to read beside the figure: its delta permits to publish one of the clients."""
        return delta_warning(self.delta, self.population)

    def projected(
        self, *, population: int, noise_multiplier: float, delta: float
    ) -> CentralGuarantee:
        """Return the guarantee the same noise would give in a larger population.

        The paper's way of reporting: the noise on the *average* stays as it was in the run, and the
        cohort grows until that noise is `noise_multiplier` times the clip norm on the sum. The
        figure is projected, not run: report it as such. Its cohorts are Poisson draws, whatever
        those of the run were.

        Raises
        ------
        ValueError
            If a number is out of range, or the population too small for the cohort.
        """
        run_cohort = self.expected_cohort or self.sampling_rate * self.population
        noise_on_average = self.noise_multiplier / run_cohort
        cohort = noise_multiplier / noise_on_average
        if not cohort <= population:
            raise ValueError(
                f"population must be at least the cohort {cohort:.0f} that the projection needs; "
                f"got {population}"
            )
        event = poisson_event(
            noise_multiplier=noise_multiplier,
            sampling_rate=cohort / population,
            population=population,
        )
        accountant = poisson_accountant(population=population, delta=delta)
        compose(accountant, event, self.releases)
        spent = accountant.get_privacy_spent()
        return replace(
            self,
            epsilon=spent.epsilon,
            delta=delta,
            accountant=spent.accounting_method,
            noise_multiplier=noise_multiplier,
            sampling_rate=rate_of(event),
            population=population,
            sampling="poisson",
            expected_cohort=cohort,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyReport:
    """What a training run guarantees. Local and central epsilons are never summed.

    Attributes
    ----------
    rounds : int
        Models released.
    max_reports_per_client : int
        Rounds in which a client may have been asked. A report that has left its device is spent,
        whatever became of the round.
    local : LocalGuarantee or None
        None if any reply without local privacy was used.
    central : CentralGuarantee or None
        None if there was no noise, it could have been predicted, or rounds may have been skipped
        for want of replies, which no noise covers.
    projections : tuple[CentralGuarantee, ...]
        What the same noise would give in larger populations; never a claim about this run.
    without_projection : CentralGuarantee or None
        What the same noise guarantees through the bounded length of the reports alone, if every
        device runs the mechanism it declares. None if no such length was declared by all, or
        releases were charged that are not known well enough.
    projection : ProjectionEffect or None
        What the clip norm does to the reports of the mechanism, at its worst; None if unknown.
    dim : int or None
        Coordinates of an update, for the statement on reconstruction.
    exceptions : tuple[str, ...]
        Everything that a reader of the numbers has to know besides.
    """

    rounds: int
    max_reports_per_client: int
    local: LocalGuarantee | None
    central: CentralGuarantee | None
    exceptions: tuple[str, ...] = ()
    projections: tuple[CentralGuarantee, ...] = ()
    without_projection: CentralGuarantee | None = None
    projection: ProjectionEffect | None = None
    dim: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        report: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "unit": "one client: all it holds, in all rounds it takes part in",
            "rounds": self.rounds,
            "local": None,
            "central": None,
            "central_without_projection": None,
            "projection": None if self.projection is None else _projection_dict(self.projection),
            "central_projected": [
                {**_central_dict(projection), "status": "projected, not run"}
                for projection in self.projections
            ],
            "reconstruction": None,
            "exceptions": list(self.exceptions),
        }
        if self.local is not None:
            report["local"] = {
                "against": "whoever sees a report on its way to the server or at the server",
                "adjacency": "any two data sets of one client (pure local differential privacy)",
                "epsilon_direction": self.local.epsilon_direction,
                "epsilon_magnitude": self.local.epsilon_magnitude,
                "epsilon_per_report": self.local.epsilon_per_report,
                "max_reports_per_client": self.max_reports_per_client,
                "epsilon_total": self.local.total(self.max_reports_per_client),
                "composition": "basic, for a client in every cohort",
            }
            if self.dim is not None and self.dim >= 2:
                report["reconstruction"] = self._reconstruction(self.local, self.dim)
        if self.central is not None:
            report["central"] = {**_central_dict(self.central), "status": "run"}
            if self.without_projection is not None:
                report["central_without_projection"] = {
                    **_central_dict(self.without_projection),
                    "status": "run",
                    "provided": _DEVICES_RUN_IT,
                }
        return report

    @classmethod
    def from_dict(cls, report: Mapping[str, Any]) -> PrivacyReport:
        """Return the report that :meth:`to_dict` wrote, whatever else stands beside it.

        Raises
        ------
        ValueError
            If it is no such report, naming what is missing, or one of another schema.
        """
        if report.get("schema") != SCHEMA_VERSION:
            raise ValueError(
                f"schema must be {SCHEMA_VERSION} in a privacy report; got {report.get('schema')!r}"
            )
        try:
            local, projection = report["local"], report["projection"]
            reconstruction = report["reconstruction"]
            return cls(
                rounds=report["rounds"],
                max_reports_per_client=0 if local is None else local["max_reports_per_client"],
                local=None if local is None else _read(LocalGuarantee, local),
                central=_central(report["central"]),
                exceptions=tuple(report["exceptions"]),
                projections=tuple(
                    _read(CentralGuarantee, entry) for entry in report["central_projected"]
                ),
                without_projection=_central(report["central_without_projection"]),
                projection=None if projection is None else _read(ProjectionEffect, projection),
                dim=None if reconstruction is None else reconstruction["dim_target"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a whole privacy report: {error}") from None

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_text(self) -> str:
        """Return the report for people, at most 80 columns wide but for the notes."""
        lines = ["Privacy report", f"  unit     one client, over {self.rounds} rounds"]
        if self.local is None:
            lines.append("  local    NONE")
        else:
            local = self.local
            total = local.total(self.max_reports_per_client)
            lines += [
                "  local    against whoever sees a report: pure local differential privacy",
                f"           a report   epsilon {round_up(local.epsilon_per_report, 6)}: "
                f"{round_up(local.epsilon_direction, 6)} direction, "
                f"{round_up(local.epsilon_magnitude, 6)} magnitude",
                f"           in total   epsilon {round_up(total, 6)} for a client in every cohort",
            ]
            if self.dim is not None and self.dim >= 2:
                lines += self._reconstruction_lines(local, self.dim)
        if self.central is None:
            lines.append("  central  NONE")
        else:
            lines.append("  central  against whoever sees the models: add or remove one client")
            lines += _central_lines("run      ", self.central)
            other = self.without_projection
            if other is not None and not math.isclose(
                other.noise_multiplier, self.central.noise_multiplier, rel_tol=1e-3
            ):
                lines += _central_lines("UNCLIPPED", other)
                lines.append(f"                      {_DEVICES_RUN_IT}")
        if self.projection is not None and self.projection.share_projected > 0.0:
            lines += _projection_lines(self.projection)
        for projection in self.projections:
            lines += _central_lines("PROJECTED", projection)
        # What stands beside a number already is no note.
        said = {guarantee.warning for guarantee in (self.central, *self.projections) if guarantee}
        lines += [f"  note     {text}" for text in self.exceptions if text not in said]
        return "\n".join(lines)

    def _reconstruction(self, local: LocalGuarantee, dim: int) -> dict[str, Any]:
        bound = {
            scope: log_breach_bound(
                epsilon=epsilon, dim_target=dim, tolerance=_TOLERANCE, rule="tight"
            )
            for scope, epsilon in (
                ("one_report", local.epsilon_per_report),
                ("all_reports", local.total(self.max_reports_per_client)),
            )
        }
        return {
            "target": "direction of the update",
            "onlooker": "has a uniform prior over directions",
            "dim_target": dim,
            "cosine": _TOLERANCE,
            "log_probability_one_report": min(bound["one_report"], 0.0),
            "log_probability_all_reports": min(bound["all_reports"], 0.0),
        }

    def _reconstruction_lines(self, local: LocalGuarantee, dim: int) -> list[str]:
        facts = self._reconstruction(local, dim)
        one = power_of_ten(facts["log_probability_one_report"])
        every = power_of_ten(facts["log_probability_all_reports"])
        return [
            "           an onlooker whose prior over directions is uniform recovers the",
            f"           update to cosine {_TOLERANCE:g} with probability at most",
            f"           {one} from one report, {every} from all",
        ]


def _read(kind: type[_Part], entry: Mapping[str, Any]) -> _Part:
    """Return the dataclass that `entry` has the fields of; null is what is no number or unknown."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.default is MISSING:
            value = entry[field.name]
            values[field.name] = math.nan if value is None else value
        elif field.name in entry:  # reports of before lack it
            values[field.name] = entry[field.name]
    return kind(**values)


def _central(entry: Mapping[str, Any] | None) -> CentralGuarantee | None:
    return None if entry is None else _read(CentralGuarantee, entry)


def _central_dict(guarantee: CentralGuarantee) -> dict[str, Any]:
    return {
        "against": "whoever sees the models",
        "adjacency": "add or remove one client",
        **asdict(guarantee),
        "warning": guarantee.warning,
    }


def _projection_dict(effect: ProjectionEffect) -> dict[str, Any]:
    facts = {**asdict(effect), "shrinkage": effect.shrinkage}
    return {name: value if math.isfinite(value) else None for name, value in facts.items()}


def _projection_lines(effect: ProjectionEffect) -> list[str]:
    norm, mean = effect.norm, effect.mean_length
    return [
        f"           clipping   shortens {effect.share_projected:.1%} of the reports of an update",
        f"                      of norm {norm:.4g}; their mean is {mean:.4g} long",
    ]


def _central_lines(status: str, guarantee: CentralGuarantee) -> list[str]:
    cohorts = f"rate {guarantee.sampling_rate:g}"
    if guarantee.sampling != "poisson":
        size = guarantee.sampling_rate * guarantee.population
        cohorts = f"{guarantee.sampling} cohorts of {size:g}"
    epsilon = round_up(guarantee.epsilon, 4)
    return [
        f"           {status}  epsilon {epsilon} at delta {guarantee.delta:g}, "
        f"population {guarantee.population:,}",
        f"                      {guarantee.releases} releases, {cohorts}, "
        f"noise multiplier {guarantee.noise_multiplier:.4g} ({guarantee.accountant})",
        *([] if guarantee.warning is None else [f"           ! {guarantee.warning}"]),
    ]
