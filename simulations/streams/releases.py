"""What a user does to a gradient before it leaves: the mechanisms of the library, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_sdp import KeystreamGenerator, PrivUnit, PrivUnitInfinity, ScalarDP, SeparatedMechanism
from simulations.streams.arrays import Singles


@dataclass(frozen=True, slots=True)
class NoPrivacy:
    """The gradient itself."""

    @property
    def epsilon(self) -> float:
        """Infinite."""
        return math.inf

    def __call__(self, gradients: Singles, rng: KeystreamGenerator) -> Singles:
        """Return the gradients."""
        return gradients

    def mean_square(self, gradient: float, dim: int) -> float:
        """Return the mean square of a coordinate where each is `gradient` in size."""
        return gradient * gradient

    def facts(self) -> dict[str, Any]:
        """Return nothing: there are no parameters."""
        return {}


@dataclass(frozen=True, slots=True)
class OnSphere:
    """A private direction on the sphere times a private l2 norm: PrivUnit and ScalarDP."""

    mechanism: SeparatedMechanism

    @property
    def epsilon(self) -> float:
        """Exact loss of direction and norm together."""
        return self.mechanism.event.epsilon

    def __call__(self, gradients: Singles, rng: KeystreamGenerator) -> Singles:
        """Return private gradients."""
        private: Singles = self.mechanism.privatize(gradients, rng)
        return private

    def mean_square(self, gradient: float, dim: int) -> float:
        """Return the mean square of a coordinate where each is `gradient` in size."""
        norm = gradient * math.sqrt(dim)
        second = self.mechanism.magnitude.variance(norm) + norm * norm
        return self.mechanism.direction.scale**2 * second / dim

    def facts(self) -> dict[str, Any]:
        """Return every parameter of the mechanism."""
        return {
            **_direction_facts(self.mechanism.direction),
            **_magnitude_facts(self.mechanism.magnitude),
        }


@dataclass(frozen=True, slots=True)
class RoundedOnCube:
    """Algorithm 2 on the gradient as it is: coordinates in [-1, 1] are rounded to corners inside.

    The output is as long for a small gradient as for a large one.
    """

    mechanism: PrivUnitInfinity

    @property
    def epsilon(self) -> float:
        """Exact loss."""
        return self.mechanism.epsilon

    def __call__(self, gradients: Singles, rng: KeystreamGenerator) -> Singles:
        """Return private gradients."""
        private: Singles = self.mechanism.privatize(gradients, rng)
        return private

    def mean_square(self, gradient: float, dim: int) -> float:
        """Return the square of a coordinate, the same for every gradient."""
        return self.mechanism.scale**2

    def facts(self) -> dict[str, Any]:
        """Return every parameter of the mechanism."""
        return _cube_facts(self.mechanism)


@dataclass(frozen=True, slots=True)
class SeparatedOnCube:
    """A private direction in the cube times a private l-infinity norm: Algorithm 2 and ScalarDP.

    The gradient is divided by its largest coordinate in size. Where all of them have one size, as
    for covariates at corners, the direction is a corner and nothing is lost in rounding. Both parts
    are unbiased and independent, and so their product is unbiased; their losses add up.
    """

    direction: PrivUnitInfinity
    magnitude: ScalarDP

    @property
    def epsilon(self) -> float:
        """Exact loss of direction and norm together."""
        return self.direction.epsilon + self.magnitude.epsilon

    def __call__(self, gradients: Singles, rng: KeystreamGenerator) -> Singles:
        """Return private gradients; a zero gradient has a random direction."""
        norms = np.abs(gradients).max(axis=1)
        units = gradients / np.where(norms > 0, norms, np.float32(1.0))[:, None]
        lengths = self.magnitude.privatize(norms.astype(np.float64), rng)
        private: Singles = self.direction.privatize(units, rng)
        private *= lengths.astype(np.float32)[:, None]
        return private

    def mean_square(self, gradient: float, dim: int) -> float:
        """Return the mean square of a coordinate where each is `gradient` in size."""
        return self.direction.scale**2 * (self.magnitude.variance(gradient) + gradient**2)

    def facts(self) -> dict[str, Any]:
        """Return every parameter of the mechanism."""
        return {**_cube_facts(self.direction), **_magnitude_facts(self.magnitude)}


def _direction_facts(direction: PrivUnit) -> dict[str, Any]:
    """Return the parameters of a PrivUnit and its exact loss."""
    return {"cap_threshold": direction.cap_threshold, **_losses(direction)}


def _cube_facts(direction: PrivUnitInfinity) -> dict[str, Any]:
    """Return the parameters of a PrivUnitInfinity and its exact loss."""
    return {"agreement_threshold": direction.agreement_threshold, **_losses(direction)}


def _losses(direction: PrivUnit | PrivUnitInfinity) -> dict[str, Any]:
    return {
        "epsilon_flip": direction.epsilon_flip,
        "epsilon_cap": direction.epsilon_cap,
        "epsilon_direction": direction.epsilon,
        "scale": direction.scale,
    }


def _magnitude_facts(magnitude: Any) -> dict[str, Any]:
    """Return the parameters of a magnitude mechanism and its loss."""
    return {
        "epsilon_magnitude": magnitude.epsilon,
        "num_bins": magnitude.num_bins,
        "max_norm": magnitude.max_norm,
    }
