"""Sparse logistic regression with more coordinates than users: what Algorithm 2 is for.

Section "Privatizing unit l-infinity vectors" of Bhowmick et al., arXiv:1812.00984v2: covariates at
corners of the hypercube, a sparse true parameter in an l1 ball, mirror descent over that ball.
Every method spends the same pure-DP budget a report, and its stepsize is tuned in the same way, on
trials that are not reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flwr_sdp import PrivUnit, PrivUnitInfinity, ScalarDP, SeparatedMechanism, seeded_generator
from simulations.streams.arrays import Floats
from simulations.streams.cube_risk import CubeRisk
from simulations.streams.descents import Descent, Entropic, Euclidean
from simulations.streams.outcome import Job, Outcome
from simulations.streams.releases import NoPrivacy, OnSphere, RoundedOnCube, SeparatedOnCube
from simulations.streams.stream import Curves, recorded_iterations, run_stream
from simulations.streams.study import Study, common_settings, reader
from simulations.streams.users import Users, on_cube, trial_generators

AnyRelease = NoPrivacy | OnSphere | RoundedOnCube | SeparatedOnCube

PRIVATE = ("cube-separated", "cube-rounded", "sphere-mirror", "sphere-euclidean")
OPEN = ("none-mirror", "none-euclidean")
METHODS = (*PRIVATE, *OPEN)
"""Mechanism and optimiser.

``cube-separated``: Algorithm 2 on the direction, ScalarDP on the l-infinity norm, mirror descent.
``cube-rounded``: Algorithm 2 on the gradient as it is, mirror descent. ``sphere-mirror`` and
``sphere-euclidean``: Algorithm 1 on the direction, ScalarDP on the l2 norm, and mirror descent or
gradient descent projected onto the same l1 ball. ``none-*``: no privacy.
"""

_TUNING, _REPORTED = "sparse tuning", "sparse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sparse(Study):
    """The run file of the study; `num_users` and `dim` are n and d in the paper.

    Parameters
    ----------
    sparsity : int
        Coordinates of the true parameter that are not 0; their signs are random, their size is one.
    l1_radius : float
        l1 norm of the true parameter, and radius of the ball that is searched (R_1 in the paper).
    epsilon_magnitude : float
        What a separated method spends on the magnitude; the rest is for the direction.
    methods : tuple of str
        Of :data:`METHODS`.
    stepsize_factors : tuple of float
        Tried for each method and level, in units of the step that theory gives.
    tuning_trials : int
        Trials that choose the factor, by the final risk of the averaged iterate; none is reported.
    held_out : int
        Covariates the risk is taken over.
    """

    sparsity: int
    l1_radius: float
    epsilon_magnitude: float
    methods: tuple[str, ...]
    stepsize_factors: tuple[float, ...]
    tuning_trials: int
    held_out: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Sparse:
        """Return the settings of a run file's content.

        Raises
        ------
        ValueError
            Naming the first key that is unknown, missing or out of range.
        """
        read = reader(config, "sparse")
        magnitude = read.number("epsilon-magnitude", above=0.0)
        # Something must be left for the direction.
        common = common_settings(read, least_dim=2, epsilons_above=magnitude)
        settings = cls(
            **common,
            sparsity=read.integer("sparsity", minimum=1, maximum=common["dim"]),
            l1_radius=read.number("l1-radius", above=0.0),
            epsilon_magnitude=magnitude,
            methods=read.choices("methods", METHODS),
            stepsize_factors=read.numbers("stepsize-factors", above=0.0),
            tuning_trials=read.integer("tuning-trials", minimum=1),
            held_out=read.integer("held-out", minimum=1),
        )
        read.refuse_others()
        return settings

    def jobs(self) -> list[Job]:
        """Return the parts of the study, the longest first."""
        levels: list[Job] = [
            Level(self, method, epsilon)
            for method in self.methods
            for epsilon in (self.epsilons if method in PRIVATE else (math.inf,))
        ]
        return levels

    def facts(self) -> dict[str, Any]:
        """Return what is the same at every level."""
        return {"task": "sparse", "settings": asdict(self)}

    def release(self, method: str, epsilon: float) -> AnyRelease:
        """Return the mechanism of a method at a level."""
        if method in OPEN:
            return NoPrivacy()
        if method == "cube-rounded":
            return RoundedOnCube(PrivUnitInfinity.from_epsilon(self.dim, epsilon))
        rest = epsilon - self.epsilon_magnitude
        if method == "cube-separated":
            return SeparatedOnCube(
                PrivUnitInfinity.from_epsilon(self.dim, rest),
                ScalarDP.from_epsilon(self.epsilon_magnitude, 1.0),
            )
        return OnSphere(
            SeparatedMechanism(
                direction=PrivUnit.from_epsilon(self.dim, rest),
                magnitude=ScalarDP.from_epsilon(self.epsilon_magnitude, math.sqrt(self.dim)),
            )
        )

    def descent(self, method: str, rows: int) -> Descent:
        """Return the optimiser of a method, at 0."""
        if method.endswith("euclidean"):
            return Euclidean(rows, self.dim, self.l1_radius)
        return Entropic(rows, self.dim, self.l1_radius)

    def unit_stepsize(self, method: str, release: AnyRelease) -> float:
        """Return the step that the worst-case bounds are smallest at, up to constants.

        The distance to go in the geometry of the optimiser, over the size of a private gradient:
        sqrt(2 log 2d) and the root mean square of a coordinate for mirror descent, R_1 and the l2
        norm for gradient descent. Every gradient has coordinates of 1/2 at the start.
        """
        coordinate = math.sqrt(release.mean_square(0.5, self.dim))
        if method.endswith("euclidean"):
            return self.l1_radius / (coordinate * math.sqrt(self.dim))
        return math.sqrt(2.0 * math.log(2 * self.dim)) / coordinate

    def truths(self, purpose: str, trials: range) -> Floats:
        """Return true parameters: a random support, random signs, one size."""
        truths = np.zeros((len(trials), self.dim))
        generators = trial_generators(self.seed, purpose, "truth", trials)
        for truth, rng in zip(truths, generators, strict=True):
            support = np.argsort(rng.uniforms(self.dim))[: self.sparsity]
            signs = np.where(rng.bernoullis(0.0, self.sparsity), 1.0, -1.0)
            truth[support] = signs * self.l1_radius / self.sparsity
        return truths


@dataclass(frozen=True, slots=True)
class Level:
    """One method at one level: tuned, then run on all trials at once."""

    settings: Sparse
    method: str
    epsilon: float

    def __call__(self) -> Outcome:
        """Run it."""
        start, settings = time.process_time(), self.settings
        release = settings.release(self.method, self.epsilon)
        unit = settings.unit_stepsize(self.method, release)
        factors = np.array(settings.stepsize_factors)
        # All factors side by side, on the same users: rows are factor by factor.
        tuned = self._run(
            release,
            _TUNING,
            trials=range(settings.tuning_trials),
            stepsizes=unit * factors,
            records=1,
        )
        risks = tuned.average_gap[-1].reshape(len(factors), -1).mean(axis=1)
        best = int(np.argmin(risks))
        curves = self._run(
            release,
            _REPORTED,
            trials=range(settings.trials),
            stepsizes=np.array([unit * factors[best]]),
            records=settings.records,
        )
        return Outcome(
            method=self.method,
            epsilon=self.epsilon,
            gap=curves.average_gap[-1],
            error=curves.average_error[-1],
            seconds=time.process_time() - start,
            curves=curves,
            facts={
                "exact_epsilon": release.epsilon,
                **release.facts(),
                "root_mean_square_coordinate": math.sqrt(release.mean_square(0.5, settings.dim)),
                "stepsize_unit": unit,
                "stepsize_factor": float(factors[best]),
                "stepsize_is_at_an_end": best in (0, len(factors) - 1),
                "tuning_gaps": risks.tolist(),
            },
        )

    def _run(
        self, release: AnyRelease, purpose: str, *, trials: range, stepsizes: Floats, records: int
    ) -> Curves:
        settings, copies = self.settings, len(stepsizes)
        truths = np.tile(settings.truths(purpose, trials), (copies, 1))
        generators = [
            rng
            for _ in range(copies)
            for rng in trial_generators(settings.seed, purpose, "users", trials)
        ]
        held_out = seeded_generator(settings.seed, purpose, "held out")
        noise = seeded_generator(settings.seed, purpose, "noise", self.method, repr(self.epsilon))
        return run_stream(
            Users(truths, generators, on_cube),
            release,
            settings.descent(self.method, len(truths)),
            CubeRisk(truths, settings.held_out, held_out),
            iterations=recorded_iterations(settings.num_users, records),
            stepsizes=np.repeat(stepsizes, len(trials)),
            exponent=settings.stepsize_exponent,
            rng=noise,
        )
