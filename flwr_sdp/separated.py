"""Separated differential privacy: a private direction times a private magnitude.

Definition of separated DP and the product mechanism of Bhowmick et al., arXiv:1812.00984v2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_sdp import _validate
from flwr_sdp.arrays import (
    Array,
    TorchRows,
    as_rows,
    check_room,
    draws_on_device,
    is_tensor,
    like,
    to_host,
)
from flwr_sdp.direction import Floats, segment_norms
from flwr_sdp.magnitude import ScalarDP, fits_floats
from flwr_sdp.privunit import PrivUnit, Rule
from flwr_sdp.randomness import as_generator
from flwr_sdp.relative_magnitude import ScalarRelDP

# Norms that vectors are drawn for as they are; others are rescaled, which takes longer.
_MEASURED = {"float32": (1e-18, 1e28), "float64": (1e-270, 1e280)}


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
        _validate.store(
            self,
            epsilon_direction=_validate.number(
                "epsilon_direction", self.epsilon_direction, above=0.0
            ),
            epsilon_magnitude=_validate.number(
                "epsilon_magnitude", self.epsilon_magnitude, above=0.0
            ),
        )

    @classmethod
    def from_total(cls, epsilon: float, *, magnitude_share: float = 0.125) -> SeparatedBudget:
        """Split `epsilon` in two; the paper's logistic experiment gives 1/8 to the magnitude.

        :attr:`total` never exceeds `epsilon`, rounding included.

        That experiment goes on to give 1/16 of the total to the flip, which is 1/14 of the
        direction's part: ``SeparatedMechanism.from_budget(..., rule="paper", flip_share=1 / 14)``.
        """
        epsilon = _validate.number("epsilon", epsilon, above=0.0)
        share = _validate.number("magnitude_share", magnitude_share, above=0.0, below=1.0)
        magnitude = share * epsilon
        direction = epsilon - magnitude
        while direction + magnitude > epsilon:  # whoever compares it bit by bit
            direction = math.nextafter(direction, 0.0)
        return cls(epsilon_direction=direction, epsilon_magnitude=magnitude)

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
    magnitude : ScalarDP or ScalarRelDP
        Mechanism of the norm.

    Raises
    ------
    ValueError
        If a part is of another kind, or the square of the longest output is beyond the floats.

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
    magnitude: ScalarDP | ScalarRelDP

    def __post_init__(self) -> None:
        """Check the parts."""
        if not isinstance(self.direction, PrivUnit):
            raise ValueError(f"direction must be a PrivUnit; got {_validate.shown(self.direction)}")
        if not isinstance(self.magnitude, ScalarDP | ScalarRelDP):
            raise ValueError(
                "magnitude must be a ScalarDP or a ScalarRelDP; "
                f"got {_validate.shown(self.magnitude)}"
            )
        if not fits_floats(self.max_output_norm, self.max_output_norm):
            raise ValueError(
                "max_norm must keep the longest output, and its square, within the floats; at "
                f"this budget got {self.magnitude.max_norm!r}, with outputs up to "
                f"{self.max_output_norm!r}"
            )

    @classmethod
    def from_budget(
        cls,
        dim: int,
        budget: SeparatedBudget,
        max_norm: float,
        *,
        rule: Rule = "tight",
        flip_share: float = 0.01,
    ) -> SeparatedMechanism:
        """Return the mechanism for vectors of `dim` coordinates that spends at most `budget`.

        The parts are :meth:`PrivUnit.from_epsilon` under `rule` (with `flip_share` for the paper's)
        and :meth:`ScalarDP.from_epsilon`.

        Raises
        ------
        ValueError
            If a parameter is out of range, or `budget` is no :class:`SeparatedBudget`.
        """
        if not isinstance(budget, SeparatedBudget):
            raise ValueError(f"budget must be a SeparatedBudget; got {_validate.shown(budget)}")
        direction = PrivUnit.from_epsilon(
            dim, budget.epsilon_direction, rule=rule, flip_share=flip_share
        )
        return cls(
            direction=direction,
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
        """Largest norm that outputs have but for their rounding: who clips there clips nothing."""
        return self.direction.scale * self.magnitude.max_output

    def expected_squared_error(self, norm: float) -> float:
        """Return ``E|Z - w|^2`` for a vector w of the given norm (exact).

        It is inf for a norm so large that its square is.
        """
        norm = _validate.datum("norm", norm, minimum=0.0)
        mean, scale = min(norm, self.magnitude.max_norm), self.direction.scale
        # Each a length before it is squared: squares of the factors may be no numbers.
        noise, turn = scale * self.magnitude.deviation(norm), scale * mean
        beyond = norm - mean
        return noise * noise + (turn - mean) * (turn + mean) + beyond * beyond

    def privatize(self, update: Array, rng: Any = None, *, threads: int = 1) -> Array:
        """Return an unbiased private view of a vector.

        Parameters
        ----------
        update : ndarray or torch.Tensor
            ``(dim,)`` or ``(n, dim)``, float32 or float64, finite.
        rng : generator, optional
            By default a secure one; others as for :meth:`PrivUnit.privatize`. With the generator
            of an accelerator the norm alone comes to the host.
        threads : int
            Threads that share the work on vectors of more than 524,288 coordinates. The output
            does not depend on it.

        Returns
        -------
        ndarray or torch.Tensor
            Same shape, dtype and device. Rows are independent releases.

        Raises
        ------
        ValueError
            If the shape or the dtype is wrong, a value is not finite, or the longest output is
            above or below what the dtype holds. (The mod, on a device, releases a zero vector in
            place of one that is not finite.)
        """
        rows = as_rows("update", update, self.dim)
        check_room("update", rows.dtype, self.max_output_norm)
        threads = _validate.integer("threads", threads, minimum=1)
        on_device = draws_on_device(rows, rng)
        if not on_device:
            rows = to_host(rows)

        def measure(rows: Array) -> Floats:
            if on_device:
                return np.sqrt(to_host(TorchRows.dots(rows, rows)).astype(np.float64))[:, None]
            return segment_norms(rows, threads)

        rows, norms, true_norms = _measured(rows, measure)
        generator = as_generator(rng)
        magnitudes = self.magnitude.privatize(
            np.minimum(true_norms, self.magnitude.max_norm), generator
        )
        lengths = self.direction.scale * magnitudes
        if on_device:
            return self.direction.draw_on_device(rows, norms[:, 0], lengths, rng).reshape(
                update.shape
            )
        return like(update, self.direction.draw(rows, norms, lengths, generator, threads))


def _measured(rows: Array, measure: Callable[[Array], Floats]) -> tuple[Array, Floats, Floats]:
    """Return vectors along the rows, the norms of their segments, and the norms of the rows.

    The vectors are the rows, unless squares overflow or underflow; then they are rescaled copies.
    """
    with np.errstate(over="ignore"):
        norms = measure(rows)
        true_norms = np.hypot.reduce(norms, axis=1)
    given = rows
    on_host = isinstance(rows, np.ndarray)
    least, most = _MEASURED[rows.dtype.name] if on_host else (1e-10, 1e15)
    unsure = ~((true_norms >= least) & (true_norms <= most))
    if on_host:
        unsure &= true_norms != 0.0  # exact: a zero update takes no longer than others
    for i in np.flatnonzero(unsure):
        peak = float(abs(rows[i]).max())
        if not math.isfinite(peak):
            raise ValueError("update must be finite; it has an infinite or NaN coordinate")
        if peak == 0.0:
            continue
        if rows is given:
            rows = rows.clone() if is_tensor(rows) else rows.copy()
        exponent = math.frexp(peak)[1]
        for part in (exponent // 2, exponent - exponent // 2):  # 2**exponent may not be a number
            rows[i] *= 2.0**-part
        norms[i] = measure(rows[i : i + 1])[0]
        norm = math.sqrt(float(norms[i] @ norms[i]))
        true_norms[i] = min(norm * 2.0 ** (exponent - 1), sys.float_info.max / 2) * 2.0
    return rows, norms, true_norms
