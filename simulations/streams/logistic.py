"""The simulated logistic regression of section 5.1 of Bhowmick et al., arXiv:1812.00984v2."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import PrivUnit, ScalarDP, SeparatedMechanism, _validate, seeded_generator
from flwr_sdp.privunit import RULES, Rule, paper_cap_threshold
from flwr_sdp.sphere import MAX_THRESHOLD, threshold_for_log_odds
from simulations.streams import theory
from simulations.streams.arrays import Floats
from simulations.streams.descents import Euclidean
from simulations.streams.likelihood import maximum_likelihood
from simulations.streams.outcome import Job, Outcome
from simulations.streams.releases import NoPrivacy, OnSphere
from simulations.streams.sphere_risk import SphereRisk
from simulations.streams.stream import recorded_iterations, run_stream
from simulations.streams.study import Study, common_settings, reader
from simulations.streams.users import Users, on_sphere, trial_generators

PRIVATE, OPEN, LIKELIHOOD = "private", "none", "mle"


@dataclass(frozen=True, kw_only=True, slots=True)
class Logistic(Study):
    """The run file of the study; `num_users` and `dim` are N and d in the paper.

    Parameters
    ----------
    signal : float
        Norm of the true parameter (tau in the paper).
    without_privacy, maximum_likelihood : bool
        Whether to run these two beside the private levels.
    share_cap, share_flip, share_magnitude : float
        What each part of the mechanism gets of a level; at most 1 together.
    rule : {"tight", "paper"}
        How the cap's share is turned into its threshold: by the exact price of a cap, or by the
        sufficient inequalities of Theorem 1. The split between cap and flip is as stated in both.
    max_norm : float
        Longest gradient (r_max); covariates of norm 1 make no gradient longer than 1.
    stepsize_factor : float
        The k-th step is ``stepsize_factor * sqrt(epsilon / dim) * k**-stepsize_exponent``.
    stepsize_without_privacy : float
        Takes the place of ``sqrt(epsilon / dim)`` without privacy.
    """

    signal: float
    without_privacy: bool
    maximum_likelihood: bool
    share_cap: float
    share_flip: float
    share_magnitude: float
    rule: Rule
    max_norm: float
    stepsize_factor: float
    stepsize_without_privacy: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Logistic:
        """Return the settings of a run file's content.

        Raises
        ------
        ValueError
            Naming the first key that is unknown, missing or out of range.
        """
        read = reader(config, "logistic")
        rule = read.choice("rule", RULES)
        # Theorem 1 fails at dim 2.
        least_dim = 3 if rule == "paper" else 2
        settings = cls(
            **common_settings(read, least_dim=least_dim, epsilons_above=0.0),
            signal=read.number("signal", above=0.0, maximum=1e4),
            without_privacy=read.flag("without-privacy"),
            maximum_likelihood=read.flag("maximum-likelihood"),
            share_cap=read.number("share-cap", above=0.0, below=1.0),
            share_flip=read.number("share-flip", minimum=0.0, below=1.0),
            share_magnitude=read.number("share-magnitude", above=0.0, below=1.0),
            rule=rule,
            max_norm=read.number("max-norm", above=0.0),
            stepsize_factor=read.number("stepsize-factor", above=0.0),
            stepsize_without_privacy=read.number("stepsize-without-privacy", above=0.0),
        )
        read.refuse_others()
        shares = math.fsum((settings.share_cap, settings.share_flip, settings.share_magnitude))
        if not _validate.within(shares, 1.0):
            raise ValueError(
                "share-cap, share-flip and share-magnitude must add up to at most 1; "
                f"got {_validate.apart(shares, 1.0)[0]}"
            )
        return settings

    def jobs(self) -> list[Job]:
        """Return the parts of the study, the longest first."""
        private = [Level(self, epsilon) for epsilon in sorted(self.epsilons)]
        likelihood = [Likelihood(self)] if self.maximum_likelihood else []
        without = [Level(self, math.inf)] if self.without_privacy else []
        return [*private, *likelihood, *without]

    def facts(self) -> dict[str, Any]:
        """Return what is the same at every level."""
        risk = SphereRisk(self.dim, self.signal)
        zero = np.zeros(1)
        return {
            "task": "logistic",
            "settings": asdict(self),
            "gap_of_zero": float(risk.gap(zero, zero)[0]),
            "error_of_zero": self.signal,
            "asymptotic_error_without_privacy": math.sqrt(
                theory.asymptotic_square_error(
                    risk, theory.second_moment(risk, None), self.num_users
                )
            ),
        }

    def mechanism(self, epsilon: float) -> SeparatedMechanism:
        """Return the mechanism of a level, with the stated split."""
        cap = self.share_cap * epsilon
        if self.rule == "paper":
            threshold = min(paper_cap_threshold(self.dim, cap), MAX_THRESHOLD)
        else:
            threshold = threshold_for_log_odds(self.dim, cap)
        return SeparatedMechanism(
            direction=PrivUnit(
                dim=self.dim, cap_threshold=threshold, epsilon_flip=self.share_flip * epsilon
            ),
            magnitude=ScalarDP.from_epsilon(self.share_magnitude * epsilon, self.max_norm),
        )

    def stepsize(self, epsilon: float) -> float:
        """Return the size of the first step of a level.

        The paper's sqrt(epsilon / d) keeps the step times the norm of a private gradient, about
        sqrt(d / epsilon) times that of the gradient, at the same size for every level. From
        epsilon = d on the norms hardly differ any more: without privacy the factor is 1.
        """
        base = math.sqrt(epsilon / self.dim)
        return self.stepsize_factor * (
            base if math.isfinite(epsilon) else self.stepsize_without_privacy
        )

    def truths(self) -> Floats:
        """Return the true parameters, uniform on the sphere of radius `signal`."""
        generators = trial_generators(self.seed, "logistic", "truth", range(self.trials))
        normals = np.stack([rng.normal(self.dim) for rng in generators])
        truths: Floats = self.signal * normals / np.linalg.norm(normals, axis=1, keepdims=True)
        return truths

    def users(self, trials: range, truths: Floats) -> Users:
        """Return the users of some trials: the same at every level and for the likelihood."""
        generators = trial_generators(self.seed, "logistic", "users", trials)
        return Users(truths[trials.start : trials.stop], generators, on_sphere)


@dataclass(frozen=True, slots=True)
class Level:
    """Stochastic gradient at one level, all trials at once."""

    settings: Logistic
    epsilon: float

    def __call__(self) -> Outcome:
        """Run it."""
        start, settings = time.process_time(), self.settings
        risk = SphereRisk(settings.dim, settings.signal)
        truths = settings.truths()
        is_private = math.isfinite(self.epsilon)
        mechanism = settings.mechanism(self.epsilon) if is_private else None
        release = OnSphere(mechanism) if mechanism else NoPrivacy()
        stepsize = settings.stepsize(self.epsilon)
        curves = run_stream(
            settings.users(range(settings.trials), truths),
            release,
            Euclidean(settings.trials, settings.dim),
            risk.measure(truths),
            iterations=recorded_iterations(settings.num_users, settings.records),
            stepsizes=np.full(settings.trials, stepsize),
            exponent=settings.stepsize_exponent,
            rng=seeded_generator(settings.seed, "logistic", "noise", repr(self.epsilon)),
        )
        moment = theory.second_moment(risk, mechanism)
        predicted = theory.predict(
            risk,
            moment,
            stepsize=stepsize,
            exponent=settings.stepsize_exponent,
            num_users=settings.num_users,
        )
        asymptotic = theory.asymptotic_square_error(risk, moment, settings.num_users)
        return Outcome(
            method=PRIVATE if is_private else OPEN,
            epsilon=self.epsilon,
            gap=curves.average_gap[-1],
            error=curves.average_error[-1],
            seconds=time.process_time() - start,
            curves=curves,
            facts={
                "exact_epsilon": release.epsilon,
                **release.facts(),
                "stepsize": stepsize,
                "mean_last_gap": float(curves.gap[-1].mean()),
                "linearised_last_gap": predicted.gap,
                "root_mean_square_error": float(np.sqrt(np.mean(curves.average_error[-1] ** 2))),
                "linearised_root_mean_square_error": math.sqrt(predicted.average_square_error),
                "asymptotic_root_mean_square_error": math.sqrt(asymptotic),
                "remaining_share_of_start": predicted.remaining,
            },
        )


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The maximum-likelihood estimator on the same users, one trial after the other."""

    settings: Logistic

    def __call__(self) -> Outcome:
        """Run it."""
        start, settings = time.process_time(), self.settings
        truths = settings.truths()
        estimates = np.stack(
            [maximum_likelihood(*self._sample(trial, truths)) for trial in range(settings.trials)]
        )
        gap, error = SphereRisk(settings.dim, settings.signal).measure(truths)(estimates)
        return Outcome(
            method=LIKELIHOOD,
            epsilon=math.inf,
            gap=gap,
            error=error,
            seconds=time.process_time() - start,
        )

    def _sample(
        self, trial: int, truths: Floats
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        settings = self.settings
        users = settings.users(range(trial, trial + 1), truths)
        x = np.empty((settings.num_users, settings.dim), np.float32)
        y = np.empty(settings.num_users, np.float32)
        done = 0
        for covariates, labels in users.blocks(settings.num_users):
            stop = done + len(labels)
            x[done:stop], y[done:stop] = covariates[:, 0], labels[:, 0]
            done = stop
        return x, y
