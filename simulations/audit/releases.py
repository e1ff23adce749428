"""Attacks on a release of the data itself, and on the claim: the findings of each."""

from __future__ import annotations

import math

import numpy as np

from flwr_sdp import (
    PrivUnit,
    ScalarDP,
    SeparatedBudget,
    SeparatedMechanism,
    seeded_generator,
)
from flwr_sdp.reconstruction import breach_probability, histogram_breach_probability
from simulations.audit import distinguish, low_frequency, words
from simulations.audit.distinguish import LowerBound
from simulations.audit.findings import Finding
from simulations.audit.images import PIXELS, SIDE, cosines, uniform_directions, unit
from simulations.audit.settings import Settings


def low_frequencies(settings: Settings) -> list[Finding]:
    """Return how often the best estimate of an image's coarse content is good enough."""
    rng = seeded_generator(settings.seed, "audit", "low frequency")
    basis = low_frequency.lowest_frequencies(SIDE, settings.low_frequency_dim_target)
    directions = uniform_directions(settings.low_frequency_trials, PIXELS, rng)
    truth = low_frequency.target(directions, basis)
    found = []
    for epsilon in settings.low_frequency_epsilons:
        mechanism = PrivUnit.from_epsilon(PIXELS, epsilon)
        estimate = low_frequency.target(mechanism.privatize(directions, rng), basis)
        reached = cosines(estimate, truth)
        bound = breach_probability(
            epsilon=mechanism.epsilon,
            dim_target=len(basis),
            tolerance=settings.low_frequency_tolerance,
            rule="tight",
        )
        found.append(
            Finding.of_rate(
                reached >= settings.low_frequency_tolerance,
                confidence=settings.confidence,
                attack="low frequencies",
                target=f"{len(basis)} of {PIXELS} waves",
                measure=f"cosine >= {settings.low_frequency_tolerance:g}",
                epsilon_direction=epsilon,
                epsilon=mechanism.epsilon,
                bound=bound,
                typical=float(np.median(reached)),
            )
        )
    return found


def word_sets(settings: Settings) -> list[Finding]:
    """Return how often a set of words is recovered, from the release alone and with the prior."""
    rng = seeded_generator(settings.seed, "audit", "words")
    size = settings.words_dictionary_size
    prior = words.zipf(size, settings.words_batch_size)
    expected = round(float(prior.sum()))
    used = words.draw(prior, settings.words_trials, rng)
    directions = unit(used.astype(np.float64))

    def finding(named: words.Words, target: str, epsilon: float, loss: float) -> Finding:
        precision, recall = words.precision_and_recall(named, used)
        bound = 1.0
        if math.isfinite(loss):
            bound = histogram_breach_probability(
                epsilon=loss,
                precision=settings.words_precision,
                recall=settings.words_recall,
                dictionary_size=size,
                batch_size=settings.words_batch_size,
            )
        return Finding.of_rate(
            (precision >= settings.words_precision) & (recall >= settings.words_recall),
            confidence=settings.confidence,
            attack="words",
            target=target,
            measure=f"precision >= {settings.words_precision:g}, "
            f"recall >= {settings.words_recall:g}",
            epsilon_direction=epsilon,
            epsilon=loss,
            bound=bound,
            typical=float(np.median(np.minimum(precision, recall))),
        )

    guess = words.name_likeliest(np.tile(prior, (len(used), 1)), expected)
    found = [
        finding(guess, "the prior alone", 0.0, 0.0),
        finding(directions > 0.0, "the release alone", math.inf, math.inf),
    ]
    for epsilon in settings.words_epsilons:
        mechanism = PrivUnit.from_epsilon(size, epsilon)
        released = mechanism.privatize(directions, rng)
        scores = words.log_odds(released, prior, mechanism.expected_squared_error)
        for target, ranks in (("the release alone", released), ("release and prior", scores)):
            named = words.name_likeliest(ranks, expected)
            found.append(finding(named, target, epsilon, mechanism.epsilon))
    return found


def distinguishing(settings: Settings) -> list[Finding]:
    """Return lower bounds of epsilon beside the claims: direction, magnitude and both."""
    rng = seeded_generator(settings.seed, "audit", "distinguish")
    outputs, confidence = settings.distinguish_outputs, settings.confidence
    dim = settings.distinguish_dim

    def finding(found: LowerBound, target: str, epsilon: float, claim: float) -> Finding:
        return Finding(
            attack="distinguishing",
            target=target,
            measure="epsilon",
            epsilon_direction=epsilon,
            epsilon=claim,
            trials=outputs,
            measured=found.estimate,
            low=found.lower,
            high=math.inf,
            bound=claim,
        )

    findings = []
    for epsilon in settings.distinguish_epsilons:
        direction = PrivUnit.from_epsilon(dim, epsilon)
        magnitude = ScalarDP.from_epsilon(epsilon, 1.0)
        half = SeparatedBudget(epsilon_direction=epsilon / 2, epsilon_magnitude=epsilon / 2)
        report = SeparatedMechanism.from_budget(dim, half, 1.0)
        found = distinguish.of_direction(direction, outputs, rng, confidence=confidence)
        findings.append(finding(found, "direction", epsilon, direction.epsilon))
        found = distinguish.of_magnitude(magnitude, outputs, rng, confidence=confidence)
        findings.append(finding(found, "magnitude", 0.0, magnitude.epsilon))
        found = distinguish.of_product(report, outputs, rng, confidence=confidence)
        findings.append(finding(found, "the whole report", epsilon / 2, report.event.epsilon))
    return findings
