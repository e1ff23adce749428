"""Separated differential privacy: a private direction times a private magnitude.

Definition of separated DP and the product mechanism of Bhowmick et al., arXiv:1812.00984v2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flwr_sdp import _validate
from flwr_sdp.magnitude import ScalarDP
from flwr_sdp.privunit import PrivUnit, Rule, norm, random_direction
from flwr_sdp.randomness import FloatArray, KeystreamGenerator, as_generator


@dataclass(frozen=True, kw_only=True, slots=True)
class SeparatedBudget:
    """Local privacy budget of one report, split between direction and magnitude.

    Parameters
    ----------
    epsilon_direction : float
        Budget of the direction, positive (epsilon_1 in the paper).
    epsilon_magnitude : float
        Budget of the magnitude, positive (epsilon_2 in the paper).
    """

    epsilon_direction: float
    epsilon_magnitude: float

    def __post_init__(self) -> None:
        """Check the budgets."""
        _validate.number("epsilon_direction", self.epsilon_direction, above=0.0)
        _validate.number("epsilon_magnitude", self.epsilon_magnitude, above=0.0)

    @property
    def total(self) -> float:
        """Local budget of one report, by basic composition of the two parts."""
        return self.epsilon_direction + self.epsilon_magnitude


@dataclass(frozen=True, kw_only=True, slots=True)
class SeparatedEvent:
    """What one report released: the facts an accountant or a ledger needs.

    Attributes
    ----------
    epsilon_direction, epsilon_magnitude : float
        Exact pure-DP loss of each part.
    """

    epsilon_direction: float
    epsilon_magnitude: float

    @property
    def epsilon(self) -> float:
        """Pure-DP loss of the whole report."""
        return self.epsilon_direction + self.epsilon_magnitude


@dataclass(frozen=True, kw_only=True, slots=True)
class SeparatedMechanism:
    r"""Privatize a vector as (private direction) x (private magnitude).

    Parameters
    ----------
    direction : PrivUnit
        Mechanism of the direction.
    magnitude : ScalarDP
        Mechanism of the norm.

    Notes
    -----
    **Privacy.** (epsilon_1, epsilon_2)-separated, hence pure (epsilon_1 + epsilon_2)-local
    differential privacy between any two vectors, the zero vector and vectors longer than
    ``magnitude.max_norm`` included.

    **Accuracy.** Unbiased for vectors of norm up to ``magnitude.max_norm``; a longer one is
    released as if it had been shortened to that norm.

    A zero vector has no direction: it is released as a uniformly random direction times a private
    zero. Refusing it, or sending zero, would itself tell the onlooker something.
    """

    direction: PrivUnit
    magnitude: ScalarDP

    def __post_init__(self) -> None:
        """Check the parts."""
        for name, part, kind in (
            ("direction", self.direction, PrivUnit),
            ("magnitude", self.magnitude, ScalarDP),
        ):
            if not isinstance(part, kind):
                raise ValueError(f"{name} must be a {kind.__name__}; got {part!r}")

    @classmethod
    def from_budget(
        cls, dim: int, budget: SeparatedBudget, max_norm: float, *, rule: Rule = "tight"
    ) -> SeparatedMechanism:
        """Return the mechanism for vectors of `dim` coordinates that spends at most `budget`.

        The parts are :meth:`PrivUnit.from_epsilon` under `rule` and :meth:`ScalarDP.from_epsilon`.
        """
        return cls(
            direction=PrivUnit.from_epsilon(dim, budget.epsilon_direction, rule=rule),
            magnitude=ScalarDP.from_epsilon(budget.epsilon_magnitude, max_norm),
        )

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.direction.dim

    @property
    def event(self) -> SeparatedEvent:
        """What one report costs, exactly."""
        return SeparatedEvent(
            epsilon_direction=self.direction.epsilon, epsilon_magnitude=self.magnitude.epsilon
        )

    @property
    def max_output_norm(self) -> float:
        """Largest norm any output can have: a server that clips there clips nothing."""
        return self.direction.scale * self.magnitude.max_output

    def expected_squared_error(self, norm: float) -> float:
        """Return ``E|Z - w|^2`` for a vector w of the given norm (exact)."""
        norm = _validate.number("norm", norm, minimum=0.0)
        mean = min(norm, self.magnitude.max_norm)
        second_moment = self.magnitude.variance(norm) + mean * mean
        along = 0.0 if norm == 0 else mean * norm
        return self.direction.scale**2 * second_moment - 2.0 * along + norm * norm

    def privatize(
        self, update: FloatArray, rng: KeystreamGenerator | np.random.Generator | None = None
    ) -> FloatArray:
        """Return an unbiased private view of a vector.

        Parameters
        ----------
        update : ndarray
            ``(dim,)``, float32 or float64, finite.
        rng : generator, optional
            By default a secure one.

        Returns
        -------
        ndarray
            ``(dim,)``, same dtype.

        Raises
        ------
        ValueError
            If the shape or the dtype is wrong, or a value is not finite.
        """
        if not isinstance(update, np.ndarray) or update.shape != (self.dim,):
            shape = update.shape if isinstance(update, np.ndarray) else type(update).__name__
            raise ValueError(f"update must be an array of shape ({self.dim},); got {shape}")
        if update.dtype.type not in (np.float32, np.float64):
            raise ValueError(f"update must be float32 or float64; got {update.dtype}")
        generator = as_generator(rng)
        vector, vector_norm, true_norm = _measure(np.ascontiguousarray(update))
        length = self.direction.scale * self.magnitude.privatize(
            min(true_norm, self.magnitude.max_norm), generator
        )
        out = np.empty_like(vector)
        if vector_norm > 0:
            self.direction.draw(vector, vector_norm, length, out, generator)
        else:
            random_direction(length, out, generator)
        return out


def _measure(update: FloatArray) -> tuple[FloatArray, float, float]:
    """Return a vector along `update`, its norm, and the norm of `update` itself.

    The vector is `update`, unless its squares overflow or underflow; then it is a rescaled copy.
    """
    vector_norm = norm(update)
    if 1e-15 < vector_norm < 1e15:  # then no square has left float32
        return update, vector_norm, vector_norm
    peak = float(np.max(np.abs(update)))
    if not math.isfinite(peak):
        raise ValueError("update must be finite; it has an infinite or NaN coordinate")
    if peak == 0.0:
        return update, 0.0, 0.0
    # Through float64, where the quotient of float32 numbers neither overflows nor vanishes.
    vector = (update.astype(np.float64) / peak).astype(update.dtype)
    vector_norm = norm(vector)
    return vector, vector_norm, min(vector_norm * peak, float(np.finfo(np.float64).max))
