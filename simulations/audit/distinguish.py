r"""Bounding epsilon from below, by telling the outputs for two inputs apart.

A mechanism that is epsilon-locally differentially private has
:math:`P(E \mid a) \le e^\epsilon P(E \mid b)` for all inputs a, b and all events E. So one event
whose two probabilities are further apart refutes the claim. The event is chosen on one half of the
outputs and counted on the other, where the two probabilities get confidence limits of Clopper and
Pearson: what is returned exceeds the true epsilon with a probability below 1 - confidence. (The
auditing of Jagielski, Ullman and Oprea, *Auditing Differentially Private Machine Learning*, NeurIPS
2020, without a training around it.)

The inputs here are the pairs at which the exact loss is attained: opposite directions, the ends of
the range of magnitudes, and both together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import KeystreamGenerator, PrivUnit, ScalarDP, SeparatedMechanism
from simulations.audit.images import Floats, uniform_directions
from simulations.audit.intervals import at_least, at_most

Events = NDArray[np.bool_]

_MAX_INDEX = 200  # of a finer grid, so many indices evenly spread
_ALMOST_ZERO = 1e-9  # a vector of this share of max_norm has a direction, and no magnitude


@dataclass(frozen=True, slots=True)
class LowerBound:
    """What the outputs say of epsilon.

    Attributes
    ----------
    lower : float
        A number that epsilon is above, at the confidence asked for; 0 if nothing was found.
    estimate : float
        The log of the ratio of the two frequencies, infinite if one of them is 0.
    """

    lower: float
    estimate: float


def of_direction(
    mechanism: PrivUnit, outputs: int, rng: KeystreamGenerator, *, confidence: float
) -> LowerBound:
    """Bound the loss of PrivUnit between a direction u and -u, by how much of u an output has."""
    u = uniform_directions(1, mechanism.dim, rng)[0]
    share = outputs // 2

    def events(sign: float) -> Events:
        released = mechanism.privatize(np.tile(sign * u, (share, 1)), rng)
        return _in_caps(released, u, mechanism.cap_threshold)

    return lower_bound(events(1.0), events(-1.0), confidence=confidence)


def of_magnitude(
    mechanism: ScalarDP, outputs: int, rng: KeystreamGenerator, *, confidence: float
) -> LowerBound:
    """Bound the loss of ScalarDP between 0 and the longest norm, by every index it may release."""
    share = outputs // 2
    bins = mechanism.num_bins
    indices = np.rint(np.linspace(0, bins, min(bins, _MAX_INDEX) + 1))  # with both ends

    def events(norm: float) -> Events:
        released = mechanism.privatize(np.full(share, norm), rng)
        found = np.rint(released / mechanism.step + mechanism.offset)
        in_each: Events = found[:, None] == indices[None, :]
        return in_each

    return lower_bound(events(mechanism.max_norm), events(0.0), confidence=confidence)


def of_product(
    mechanism: SeparatedMechanism, outputs: int, rng: KeystreamGenerator, *, confidence: float
) -> LowerBound:
    """Bound the loss of the whole report, between the longest u and next to nothing of -u.

    Magnitude and direction are read off a report together: it is the longest magnitude that gives
    the longest reports, and never a negative one.
    """
    magnitude = mechanism.magnitude
    if not isinstance(magnitude, ScalarDP):
        raise ValueError(f"magnitude must be a ScalarDP; got {magnitude!r}")
    u = uniform_directions(1, mechanism.dim, rng)[0]
    share = outputs // 2
    second_longest = magnitude.step * max(
        magnitude.num_bins - 1 - magnitude.offset, magnitude.offset
    )
    limit = mechanism.direction.scale * (magnitude.max_output + second_longest) / 2.0

    def events(norm: float, sign: float) -> Events:
        released = mechanism.privatize(np.tile(norm * sign * u, (share, 1)), rng)
        longest = (np.linalg.norm(released, axis=1) > limit)[:, None]
        in_caps = _in_caps(released, u, mechanism.direction.cap_threshold)
        return np.concatenate([longest, in_caps, in_caps & longest], axis=1)

    longest, shortest = magnitude.max_norm, _ALMOST_ZERO * magnitude.max_norm
    return lower_bound(events(longest, 1.0), events(shortest, -1.0), confidence=confidence)


def lower_bound(first: Events, second: Events, *, confidence: float) -> LowerBound:
    """Bound epsilon from below by the outputs for two inputs.

    Parameters
    ----------
    first, second : ndarray
        ``(n, events)`` booleans: whether each output for either input is in each event. What is
        not in an event counts as an event too.
    confidence : float
        Probability with which the bound is one.
    """
    error = (1.0 - confidence) / 2.0
    half = len(first) // 2
    sides = [np.concatenate([side, ~side], axis=1) for side in (first, second)]
    sides += sides[::-1]  # the first over the second, and the second over the first
    scores = [
        _log_ratio(int(more), int(less), half, error)
        for over, under in (sides[:2], sides[2:])
        for more, less in zip(over[:half].sum(axis=0), under[:half].sum(axis=0), strict=True)
    ]
    way, event = divmod(int(np.argmax(scores)), sides[0].shape[1])
    more, less = (
        int(np.count_nonzero(side[half:, event])) for side in sides[2 * way : 2 * way + 2]
    )
    if more == 0:
        return LowerBound(0.0, 0.0)
    estimate = math.log(more / less) if less else math.inf
    return LowerBound(max(_log_ratio(more, less, len(first) - half, error), 0.0), estimate)


def _log_ratio(more: int, less: int, trials: int, error: float) -> float:
    lower = at_least(more, trials, error)
    return math.log(lower / at_most(less, trials, error)) if lower > 0.0 else -math.inf


def _in_caps(released: Floats, u: Floats, threshold: float) -> Events:
    """Return whether each output is in caps around u: the mechanism's own, and a grid of others."""
    dots = released @ u / np.linalg.norm(released, axis=1)
    thresholds = np.append(np.linspace(-0.9, 0.9, 19), threshold)
    inside: Events = dots[:, None] >= thresholds[None, :]
    return inside
