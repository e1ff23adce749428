"""What the attacks found, and the files it is written to."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.audit.intervals import interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One attack at one budget.

    Attributes
    ----------
    attack, target : str
        Which attack, and what it was after.
    measure : str
        What `measured` is: the event whose rate was counted, a mean, or epsilon itself.
    epsilon_direction : float
        epsilon_1 of the release; 0 where no direction was released, infinity without privacy.
    epsilon : float
        Whole privacy loss of the release, at which `bound` is taken.
    trials : int
        Releases that were attacked.
    measured, low, high : float
        Rate of success, mean, or epsilon, and its confidence interval; `high` is infinite for
        epsilon, which no attack bounds from above.
    bound : float
        What is claimed, or predicted; 1 for a rate says nothing.
    typical : float or None
        Median over the trials of the cosine, or of the smaller of precision and recall.
    """

    attack: str
    target: str
    measure: str
    epsilon_direction: float
    epsilon: float
    trials: int
    measured: float
    low: float
    high: float
    bound: float
    typical: float | None = None

    @property
    def holds(self) -> bool:
        """Whether what was measured is consistent with the claim."""
        return self.low <= self.bound

    @classmethod
    def of_rate(
        cls, succeeded: NDArray[np.bool_], *, confidence: float, **described: Any
    ) -> Finding:
        """Return the finding of an attack that succeeded in some of its trials."""
        successes, trials = int(np.count_nonzero(succeeded)), succeeded.size
        low, high = interval(successes, trials, confidence)
        rate = successes / trials
        return cls(trials=trials, measured=rate, low=low, high=high, **described)

    @classmethod
    def of_mean(
        cls, values: NDArray[np.float64], rare: float, *, confidence: float, **described: Any
    ) -> Finding:
        """Return the finding of an attack that got so far in each of its trials, two at least.

        `rare` is the variance from what is too rare to be seen among so few.
        """
        mean, variance = float(np.mean(values)), float(np.var(values, ddof=1)) + rare
        reach = NormalDist().inv_cdf((1.0 + confidence) / 2.0) * math.sqrt(variance / values.size)
        return cls(
            trials=values.size, measured=mean, low=mean - reach, high=mean + reach, **described
        )


def write_csv(findings: list[Finding], path: Path) -> None:
    """Write a row for each finding."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(field.name for field in fields(Finding)), "holds"])
        for finding in findings:
            writer.writerow([*asdict(finding).values(), str(finding.holds).lower()])


def to_json(findings: list[Finding], settings: dict[str, Any]) -> str:
    """Return settings and findings; infinity, which JSON does not have, is null."""
    rows = [
        {name: _finite(value) for name, value in asdict(finding).items()} | {"holds": finding.holds}
        for finding in findings
    ]
    holds = all(finding.holds for finding in findings)
    return json.dumps(
        {"settings": settings, "holds": holds, "findings": rows}, indent=2, allow_nan=False
    )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and math.isinf(value) else value
