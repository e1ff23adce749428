"""PrivUnit: an unbiased, pure-DP release of a direction.

Algorithm 1 and Theorem 1 of Bhowmick, Duchi, Freudiger, Kapoor and Rogers, *Protection Against
Reconstruction and Its Applications in Private Federated Learning*, arXiv:1812.00984v2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_sdp import _validate
from flwr_sdp._numerics import MAX_DIM, root
from flwr_sdp.arrays import Array, TorchRows, as_rows, check_room, draws_on_device, like, to_host
from flwr_sdp.direction import Floats, draw, draw_on_device, segment_norms
from flwr_sdp.randomness import FloatArray, KeystreamGenerator, as_generator
from flwr_sdp.sphere import (
    MAX_THRESHOLD,
    Cap,
    sample_dots,
    sample_dots_anywhere,
    threshold_for_log_odds,
)

Rule = Literal["tight", "paper"]
RULES: tuple[Rule, ...] = ("tight", "paper")

# Vectors are normalised again. A norm that is summed up in float32, as PyTorch's is, is off by 0.5%
# at 6e7 coordinates.
_UNIT_TOLERANCE = 0.05

# From there on the squared error is a number in every dimension.
_MIN_EPSILON = 1e-140


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivUnit:
    r"""Privatize a unit vector: draw from a cap around it, or from the rest of the sphere.

    With probability p the output direction is uniform on the cap
    :math:`\{v : \langle v, u\rangle \ge \gamma\}`, otherwise uniform on its complement; it is then
    scaled by a constant 1/m so that the output is unbiased.

    Parameters
    ----------
    dim : int
        Number of coordinates, at least 2.
    cap_threshold : float
        gamma, in ``[0, 1 - 1e-6]``.
    epsilon_flip : float
        :math:`\epsilon_0 = \log p/(1-p)`, at least 0. Kept as log-odds because p itself rounds to
        1 from 37 on.

    Raises
    ------
    ValueError
        If a parameter is out of range, or if both are (next to) 0: the output would not depend on
        the input.

    Notes
    -----
    **Privacy.** Pure :math:`\epsilon`-local differential privacy between any two unit vectors,
    with the exact loss :attr:`epsilon` = ``epsilon_flip + epsilon_cap`` (some output lies in one
    cap and outside the other, so it is attained).

    **Accuracy.** Unbiased: ``E[Z | u] = u``. Every output has norm :attr:`scale`, and
    ``E|Z - u|^2 = scale**2 - 1``.

    **Cost.** O(dim) time, one pass, the same whatever is drawn and for whatever vector; memory is
    the input, the output, some 100 bytes a vector, and up to 10 MiB for each thread, which keeps
    most of it.

    **Floating point.** The guarantee is that of the real-number mechanism, whose output is rounded
    to a grid: multiples of a power of two, 2^-17 to 2^-16 of :attr:`scale` in float32 (finer above
    65,536 dimensions) and 2^-40 to 2^-39 in float64. That takes away the digits in which the noise
    could be told from other numbers. Up to 65,536 dimensions all is computed in float64, and one
    report in 1e7 or fewer is rounded otherwise than in real numbers; above, no theorem bounds what
    float32 leaves. See ``docs/mechanisms.md``.
    """

    dim: int
    cap_threshold: float
    epsilon_flip: float
    _cap: Cap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the parameters and evaluate the cap once."""
        _validate.store(
            self,
            dim=_validate.integer("dim", self.dim, minimum=2, maximum=MAX_DIM),
            cap_threshold=_validate.number(
                "cap_threshold", self.cap_threshold, minimum=0.0, maximum=MAX_THRESHOLD
            ),
            epsilon_flip=_validate.number("epsilon_flip", self.epsilon_flip, minimum=0.0),
        )
        object.__setattr__(self, "_cap", Cap(self.dim, self.cap_threshold))
        if not self._mean > 1e-154:
            raise ValueError(
                "cap_threshold and epsilon_flip must not both be 0, or too near it for the square "
                "of the scale to be a number: the output would carry nothing of the input; got "
                f"{self.cap_threshold!r} and {self.epsilon_flip!r}"
            )

    @classmethod
    def from_epsilon(
        cls, dim: int, epsilon: float, *, rule: Rule = "tight", flip_share: float = 0.01
    ) -> PrivUnit:
        r"""Return the mechanism that spends at most `epsilon`.

        Parameters
        ----------
        dim : int
            Number of coordinates; at least 2, or 3 for ``rule="paper"``.
        epsilon : float
            Local privacy budget of one release, at least 1e-140.
        rule : {"tight", "paper"}
            ``"tight"`` prices the cap exactly and splits the budget between flip and cap so that
            the output norm is smallest (there :math:`m = \gamma`). ``"paper"`` follows Theorem 1 to
            the letter: the larger gamma of its two inequalities.
        flip_share : float
            For ``"paper"`` only: share of `epsilon` spent on the flip, in [0, 1). The paper's
            experiments use 0.01.

        Returns
        -------
        PrivUnit
            With ``.epsilon <= epsilon``: the exact loss, which under ``"paper"`` is smaller.
        """
        dim = _validate.integer("dim", dim, minimum=2, maximum=MAX_DIM)
        epsilon = _validate.number("epsilon", epsilon, minimum=_MIN_EPSILON)
        _validate.choice("rule", rule, RULES)
        flip_share = _validate.number("flip_share", flip_share, minimum=0.0, below=1.0)
        if rule == "tight":
            return _tight(dim, epsilon)
        if dim < 3:
            # Lemma small-threshold needs (d-3)/2 >= 0; at d = 2 the printed bound is violated.
            raise ValueError(
                f'dim must be >= 3 for rule="paper"; got {dim}: Theorem 1 fails at dim 2, '
                'use rule="tight"'
            )
        epsilon_flip = flip_share * epsilon
        threshold = min(paper_cap_threshold(dim, epsilon - epsilon_flip), MAX_THRESHOLD)
        return cls(dim=dim, cap_threshold=threshold, epsilon_flip=epsilon_flip)

    # ------------------------------------------------------------------ what it is
    @property
    def cap_probability(self) -> float:
        """Probability p of drawing from the cap (it may round to 1; the mechanism does not)."""
        return float(1.0 / (1.0 + math.exp(-self.epsilon_flip)))

    @property
    def epsilon_cap(self) -> float:
        """Exact log ratio of the probabilities of the cap's complement and of the cap."""
        return self._cap.log_odds

    @property
    def epsilon(self) -> float:
        """Exact privacy loss of one release."""
        return self.epsilon_flip + self._cap.log_odds

    @property
    def scale(self) -> float:
        """Norm 1/m of every output (Eq. norm-of-W)."""
        return 1.0 / self._mean

    @property
    def _mean(self) -> float:
        # m = p E[T | cap] + (1-p) E[T | rest], and E[T] = 0 ties the two means together.
        return self._cap.mean_inside * self.cap_probability * -math.expm1(-self.epsilon)

    @property
    def expected_squared_error(self) -> float:
        """``E|Z - u|^2``, the same for every input."""
        return self.scale * self.scale - 1.0

    # ------------------------------------------------------------------ what it does
    def privatize(self, unit: Array, rng: Any = None, *, threads: int = 1) -> Array:
        """Return an unbiased private view of a unit vector.

        Parameters
        ----------
        unit : ndarray or torch.Tensor
            ``(dim,)`` or ``(n, dim)``, float32 or float64, each row of norm 0.95 to 1.05 (it is
            normalised again inside).
        rng : generator, optional
            By default a secure one. A generator of this package, or one of NumPy or torch, which
            provides the key of a new stream. A tensor on an accelerator together with a
            ``torch.Generator`` of that accelerator is privatized there, by that generator, not
            rounded to the grid, and waited for once, to check the norms; it is for simulation. Any
            other tensor goes through host memory, where the keystream is.
        threads : int
            Threads that share the work on vectors of more than 524,288 coordinates. The output
            does not depend on it.

        Returns
        -------
        ndarray or torch.Tensor
            Same shape, dtype and device; every row has norm :attr:`scale`, up to the rounding.
            Rows are independent releases, each at :attr:`epsilon`.

        Raises
        ------
        ValueError
            If the shape, the dtype or a norm is wrong, a value is not finite, or the scale is
            beyond the dtype.
        """
        rows = as_rows("unit", unit, self.dim)
        check_room("unit", rows.dtype, self.scale)
        threads = _validate.integer("threads", threads, minimum=1)
        lengths = np.full(len(rows), self.scale)
        if draws_on_device(rows, rng):
            norms = TorchRows.dots(rows, rows) ** 0.5
            out = self.draw_on_device(rows, norms, lengths, rng)
            _check_unit(to_host(norms))  # last: the only wait for the device
            return out.reshape(unit.shape)
        rows = to_host(rows)
        segments = segment_norms(rows, threads)
        _check_unit(np.hypot.reduce(segments, axis=1))
        return like(unit, self.draw(rows, segments, lengths, as_generator(rng), threads))

    def draw(
        self,
        rows: FloatArray,
        norms: Floats,
        lengths: Floats,
        rng: KeystreamGenerator,
        threads: int = 1,
    ) -> FloatArray:
        """Return private directions of ``(n, dim)`` rows, times `lengths` (may be negative).

        The building block of :meth:`privatize`, for callers that hold vectors and their
        ``segment_norms`` and would rather not store the unit vectors too.
        A zero row has no direction, and gets a random one.
        """
        dots = self._dots_or_any(np.asarray(norms.any(axis=1)), rng)
        return draw(rows, norms, dots, lengths, rng, threads)

    def draw_on_device(self, rows: Array, norms: Array, lengths: Floats, generator: Any) -> Array:
        """Do what :meth:`draw` does for tensors on an accelerator, with its own generator."""
        known = np.ones(len(rows), dtype=np.bool_)
        if isinstance(norms, np.ndarray):
            known &= norms > 0
        dots = self._dots_or_any(known, as_generator(generator))
        return draw_on_device(rows, norms, dots, lengths, generator)

    def _dots_or_any(self, known: NDArray[np.bool_], rng: KeystreamGenerator) -> Floats:
        """Return dot products, and those of random directions for rows whose own is not known."""
        dots = self._dots(known.size, rng)
        return np.where(known, dots, sample_dots_anywhere(self.dim, known.size, rng))

    def _dots(self, count: int, rng: KeystreamGenerator) -> Floats:
        return sample_dots(self._cap, rng.bernoullis(self.epsilon_flip, count), rng)


def _check_unit(norms: FloatArray) -> None:
    wrong = norms[~(np.abs(norms - 1.0) <= _UNIT_TOLERANCE)]
    if wrong.size:
        raise ValueError(
            f"unit must have norm 1 (within {_UNIT_TOLERANCE:g}) in every row; "
            f"{wrong.size} of {norms.size} have not: divide by the norm first"
        )


@lru_cache(maxsize=256)
def paper_cap_threshold(dim: int, epsilon: float) -> float:
    r"""Return the larger gamma of the two inequalities of Theorem 1, for dim >= 3.

    The second inequality needs :math:`\gamma \ge \sqrt{2/d}` and has no solution below an epsilon
    of about 3.14; then the first alone decides.
    """
    small = math.tanh(epsilon / 2.0) * math.sqrt(math.pi / (2.0 * (dim - 1)))

    def excess(gamma: float) -> float:
        price = 0.5 * math.log(dim) + math.log(6.0) + math.log(gamma)
        return price - (dim - 1) / 2 * math.log1p(-gamma * gamma) - epsilon

    lowest = math.sqrt(2.0 / dim)
    if lowest >= MAX_THRESHOLD or excess(lowest) > 0:
        return small
    if excess(MAX_THRESHOLD) <= 0:
        return MAX_THRESHOLD
    big = root(excess, lowest, MAX_THRESHOLD)
    while excess(big) > 0:
        big = math.nextafter(big, 0.0)
    return max(small, big)


@lru_cache(maxsize=256)
def _tight(dim: int, epsilon: float) -> PrivUnit:
    """Return the PrivUnit of the smallest output norm whose exact loss is `epsilon`.

    At the optimum m = gamma; m - gamma changes sign once between gamma = 0 and the threshold that
    spends all of epsilon on the cap.
    """

    def excess(gamma: float) -> float:
        cap = Cap(dim, gamma)
        flip = max(epsilon - cap.log_odds, 0.0)
        return cap.mean_inside / (1.0 + math.exp(-flip)) * -math.expm1(-epsilon) - gamma

    highest = threshold_for_log_odds(dim, epsilon)
    if excess(highest) >= 0:
        threshold = highest
    else:
        threshold = root(excess, 0.0, highest)
    epsilon_flip = max(epsilon - Cap(dim, threshold).log_odds, 0.0)
    mechanism = PrivUnit(dim=dim, cap_threshold=threshold, epsilon_flip=epsilon_flip)
    while mechanism.epsilon > epsilon:
        epsilon_flip = math.nextafter(epsilon_flip, 0.0)
        mechanism = PrivUnit(dim=dim, cap_threshold=threshold, epsilon_flip=epsilon_flip)
    return mechanism
