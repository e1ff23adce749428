"""Mechanisms that claim an epsilon and spend more."""

import numpy as np

from flwr_sdp import PrivUnit, ScalarDP, SeparatedMechanism
from flwr_sdp.magnitude import randomized_response
from flwr_sdp.sphere import Cap, sample_dots


class WithoutFlip(PrivUnit):
    """Always draws from the cap."""

    __slots__ = ()

    def _dots(self, count, rng):
        return sample_dots(self._cap, np.ones(count, dtype=bool), rng)


class HeightForThreshold(PrivUnit):
    """Takes the height of the cap for its threshold, and so draws from a smaller one."""

    __slots__ = ()

    def _dots(self, count, rng):
        cap = Cap(self.dim, 1.0 - self.cap_threshold)
        return sample_dots(cap, rng.bernoullis(self.epsilon_flip, count), rng)


class FlipTwiceAsRare(PrivUnit):
    """Draws the flip at twice the log-odds, and one more."""

    __slots__ = ()

    def _dots(self, count, rng):
        odds = 2.0 * self.epsilon_flip + 1.0
        return sample_dots(self._cap, rng.bernoullis(odds, count), rng)


class QuietScalar(ScalarDP):
    """Randomizes the index as if epsilon were larger by one."""

    __slots__ = ()

    def _privatize(self, r, rng):
        index = np.rint(self._positions(r))
        index = randomized_response(index, self.num_bins, self.epsilon + 1.0, rng)
        return self.step * (index - self.offset)


class RoundedScalar(ScalarDP):
    """Rounds the number to the grid, and does nothing else."""

    __slots__ = ()

    def _privatize(self, r, rng):
        return self.step * (np.rint(self._positions(r)) - self.offset)


def direction(kind, mechanism):
    """Return the mutant with the parameters, and so the claim, of a PrivUnit."""
    return kind(
        dim=mechanism.dim,
        cap_threshold=mechanism.cap_threshold,
        epsilon_flip=mechanism.epsilon_flip,
    )


def magnitude(kind, mechanism):
    """Return the mutant with the parameters, and so the claim, of a ScalarDP."""
    return kind(epsilon=mechanism.epsilon, num_bins=mechanism.num_bins, max_norm=mechanism.max_norm)


def report(mechanism, *, of_direction=PrivUnit, of_magnitude=ScalarDP):
    """Return the report with one part replaced."""
    return SeparatedMechanism(
        direction=direction(of_direction, mechanism.direction),
        magnitude=magnitude(of_magnitude, mechanism.magnitude),
    )
