r"""What reports tell of an update that an onlooker has confined to a few known dimensions.

Whoever chooses the model may make one whose update lies in k coordinates that he knows, or in any
subspace of k dimensions, whatever the dimension d of the report. He keeps those of the report, and
the noise in the others is of no concern to him.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from flwr_sdp import _validate
from flwr_sdp._numerics import CUT, MAX_DIM, NODES, WEIGHTS
from flwr_sdp.privunit import PrivUnit


def confined_cosine(reports: PrivUnit | Sequence[PrivUnit], *, dim_target: int) -> float:
    r"""Return the expected cosine of an update, confined to known dimensions, with its reports.

    Parameters
    ----------
    reports : PrivUnit or sequence of PrivUnit
        The mechanism of each report of the same update; ``[mechanism] * 10`` are ten alike.
    dim_target : int
        k, the known dimensions that the update lies in: at least 2, and at most those of a report.

    Returns
    -------
    float
        In (0, 1]; about :math:`\sqrt{2 \epsilon / (2 \epsilon + k)}` for the sum epsilon of
        epsilon_1 over the reports, where each is large, and k too.

    Raises
    ------
    ValueError
        If there is no report, something else among them, or `dim_target` is out of range.

    Notes
    -----
    This is an attack that is to be expected to succeed, and no bound on others: one is
    :func:`~flwr_sdp.reconstruction.breach_probability`.

    One report, exactly. Of a point that is uniform on the sphere the k coordinates are a direction
    and a length R, independent of each other, and PrivUnit weights it by where
    :math:`R Y_1 \ge \gamma`. With m the mean of :math:`\langle V, u\rangle` the integrals leave
    :math:`m\,E(\gamma^2 + (1 - \gamma^2) X)^{-1/2}`, X of the law Beta((k+1)/2, (d-k)/2).

    Several reports, each with the weight that serves best. Around its mean, V has the variance
    :math:`(1 - \gamma m) / d` in every direction across u, and along u too where
    :math:`m = \gamma`, as ``rule="tight"`` has it. So the sum is taken for normal, with the squared
    signal :math:`I = \sum d m^2 / (1 - \gamma m)` in units of the noise. From k = 10 on that is
    right to 3%, and from 100 on to 0.5%; two or three reports of epsilon_1 below 1 in two
    dimensions are 8% better than it says, or 9% worse in as many dimensions as the report has.
    """
    given = (reports,) if isinstance(reports, PrivUnit) else reports
    directions = list(given) if isinstance(given, Iterable) else []
    if not directions or not all(isinstance(each, PrivUnit) for each in directions):
        raise ValueError("reports must be a PrivUnit, or a list of one or more")
    fewest = min(each.dim for each in directions)
    k = _validate.integer("dim_target", dim_target, minimum=2, maximum=fewest)
    if len(directions) == 1:
        return _of_one(directions[0], k)
    return _of_normal(math.fsum(map(_information, directions)), k)


def max_epsilon_confined(*, cosine: float, dim: int, dim_target: int, reports: int = 1) -> float:
    """Return the largest epsilon_1 of a report at which :func:`confined_cosine` is within bounds.

    Parameters
    ----------
    cosine : float
        Allowed expectation, in (0, 1).
    dim : int
        d, the coordinates of a report.
    dim_target : int
        k, the known dimensions that the update lies in, from 2 to d.
    reports : int
        How many reports of the same update there are, each at that epsilon_1.

    Returns
    -------
    float
        epsilon_1 for ``PrivUnit.from_epsilon(dim, ...)``, to 1e-9 from below; infinite where no
        report gives that much.
    """
    cosine = _validate.number("cosine", cosine, above=0.0, below=1.0)
    dim = _validate.integer("dim", dim, minimum=2, maximum=MAX_DIM)
    reports = _validate.integer("reports", reports, minimum=1)

    def holds(epsilon: float) -> bool:
        direction = PrivUnit.from_epsilon(dim, epsilon)
        return confined_cosine([direction] * reports, dim_target=dim_target) <= cosine

    low = high = 1.0
    while not holds(low):
        low, high = low / 2.0, low
    while holds(high):
        low, high = high, 2.0 * high
        if high > 64.0 * dim + 1e3:  # beyond any price of a cap
            return math.inf
    while high - low > 1e-9 * low:
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _information(direction: PrivUnit) -> float:
    m = 1.0 / direction.scale
    return direction.dim * m * m / (1.0 - direction.cap_threshold * m)


def _of_one(direction: PrivUnit, k: int) -> float:
    m, gamma_squared = 1.0 / direction.scale, direction.cap_threshold**2
    rest = direction.dim - k - 1
    if rest < 0:  # k = d, where X is 1
        return m
    # X = sin^2 of an angle. The log of its density falls from the mode on at least as fast as that
    # of a normal law of variance 1 / (d - 1).
    mode, reach = math.atan2(math.sqrt(k), math.sqrt(rest)), math.sqrt(2.0 * CUT / (k + rest))
    low, high = max(mode - reach, 0.0), min(mode + reach, math.pi / 2.0)
    angle = low + (high - low) * NODES
    log_density = k * np.log(np.sin(angle)) + rest * np.log(np.cos(angle))
    density = WEIGHTS * np.exp(log_density - log_density.max())
    lengths = np.sqrt(gamma_squared + (1.0 - gamma_squared) * np.sin(angle) ** 2)
    return min(m * float(np.sum(density / lengths) / np.sum(density)), 1.0)


def _of_normal(information: float, k: int) -> float:
    r"""Return the expected cosine of N(u, identity / I) with u.

    With :math:`1/|Y| = (2\pi)^{-1/2}\int s^{-1/2} e^{-s|Y|^2/2} ds` the normal integrals are done,
    and :math:`y^2 = s / (1 + s)` leaves
    :math:`\sqrt{2I/\pi}\int_0^1 (1-y^2)^{(k-1)/2} e^{-I y^2/2} dy`.
    """
    reach = min(math.sqrt(2.0 * CUT / (k - 1 + information)), 1.0)
    y = reach * NODES
    values = np.exp((k - 1) / 2.0 * np.log1p(-y * y) - information * y * y / 2.0)
    return min(math.sqrt(2.0 * information / math.pi) * reach * float(WEIGHTS @ values), 1.0)
