"""The paper's own central analysis, beside what its figures come to.

Section on private learning and the experiments of Bhowmick et al., arXiv:1812.00984v2. Nothing here
is used to account for a training; :class:`~flwr_sdp.strategies.BestAccountant` is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from flwr_sdp import _validate
from flwr_sdp.strategies.accountants import poisson_accountant
from flwr_sdp.strategies.privacy_loss import SampledGaussian


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperNoise:
    """The paper's noise, and what it costs.

    Attributes
    ----------
    noise_multiplier : float
        z by the rule: its noise on the sum, in units of rho.
    renyi_epsilon_claimed : float
        What the rule was asked for: Renyi divergence of all rounds together.
    renyi_epsilon : float
        The exact Renyi divergence of order 2 at that noise.
    epsilon, delta : float
        The central guarantee at that noise, by :class:`~flwr_sdp.strategies.BestAccountant`.
    """

    noise_multiplier: float
    renyi_epsilon_claimed: float
    renyi_epsilon: float
    epsilon: float
    delta: float


def paper_noise(
    *, renyi_epsilon: float, sampling_rate: float, rounds: int, delta: float
) -> PaperNoise:
    r"""Apply the paper's rule :math:`\sigma^2 = T q^2 \rho^2 / \epsilon_\alpha`, and price it.

    The rule replaces log(1 + x) by x = epsilon (1 - q) / (T q^2), which is right for small x only.
    In the paper's own experiments x is 148 to 4740, and the noise far too small: read
    ``renyi_epsilon`` and ``epsilon`` of the result before using it. To choose noise, use
    :func:`~flwr_sdp.strategies.noise_multiplier_for`.

    Parameters
    ----------
    renyi_epsilon : float
        epsilon_alpha, positive.
    sampling_rate : float
        q, in (0, 1].
    rounds : int
        T.
    delta : float
        Where to state the central guarantee.
    """
    claimed = _validate.number("renyi_epsilon", renyi_epsilon, above=0.0)
    q = _validate.number("sampling_rate", sampling_rate, above=0.0, maximum=1.0)
    rounds = _validate.integer("rounds", rounds, minimum=1)
    delta = _validate.number("delta", delta, above=0.0, below=1.0)
    z = q * math.sqrt(rounds / claimed)
    return PaperNoise(
        noise_multiplier=z,
        renyi_epsilon_claimed=claimed,
        renyi_epsilon=rounds * _log_moment(q, z, 2),
        epsilon=_best_epsilon(q, z, rounds, delta),
        delta=delta,
    )


def moments_epsilon(
    *, sampling_rate: float, noise_multiplier: float, rounds: int, delta: float
) -> float:
    """Return epsilon as the moments accountant of 2016 did: valid, and rather large.

    Renyi divergences of whole orders up to 33, and the conversion ``rho + log(1/delta) / (order -
    1)`` (Abadi et al., 2016; Mironov, 2017).
    """
    q = _validate.number("sampling_rate", sampling_rate, above=0.0, maximum=1.0)
    z = _validate.number("noise_multiplier", noise_multiplier, above=0.0)
    rounds = _validate.integer("rounds", rounds, minimum=1)
    delta = _validate.number("delta", delta, above=0.0, below=1.0)
    return min(
        (rounds * _log_moment(q, z, order) - math.log(delta)) / (order - 1)
        for order in range(2, 34)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperExperiment:
    """A central guarantee that the paper reports, under the reading that reproduces it.

    The paper's sigma is taken as the noise on the *average*, in a cohort of ``clip_norm / sigma``
    clients, so that the noise multiplier is exactly 1, out of a population of 10^7. The paper
    prints no cohorts: they are inferred from its epsilons. Nothing of that size was run: the
    figures are *projected*.

    Attributes
    ----------
    name : str
        Data set.
    clip_norm : float
        rho.
    noise_on_average : float
        sigma. Not printed for Reddit; 0.001 fits.
    rounds : int
        T.
    epsilon_printed : float
        As in the paper, at delta = 1e-9.
    """

    name: str
    clip_norm: float
    noise_on_average: float
    rounds: int
    epsilon_printed: float

    @property
    def cohort(self) -> int:
        """Clients in a round, on average."""
        return round(self.clip_norm / self.noise_on_average)

    @property
    def sampling_rate(self) -> float:
        """The cohort, as a share of the population."""
        return self.cohort / PAPER_POPULATION

    @property
    def epsilon_projected(self) -> float:
        """The paper's figure: that of the moments accountant, projected, not run."""
        return moments_epsilon(
            sampling_rate=self.sampling_rate,
            noise_multiplier=1.0,
            rounds=self.rounds,
            delta=PAPER_DELTA,
        )

    @property
    def best_epsilon_projected(self) -> float:
        """The same setting by :class:`~flwr_sdp.strategies.BestAccountant`, projected, not run."""
        return _best_epsilon(self.sampling_rate, 1.0, self.rounds, PAPER_DELTA)


PAPER_POPULATION = 10_000_000
PAPER_DELTA = 1e-9
PAPER_EXPERIMENTS = (
    PaperExperiment(
        name="MNIST", clip_norm=100.0, noise_on_average=0.005, rounds=100, epsilon_printed=1.9
    ),
    PaperExperiment(
        name="CIFAR10", clip_norm=30.0, noise_on_average=0.002, rounds=200, epsilon_printed=1.76
    ),
    PaperExperiment(
        name="Reddit", clip_norm=100.0, noise_on_average=0.001, rounds=200, epsilon_printed=3.0
    ),
)


def _log_moment(q: float, z: float, order: int) -> float:
    """Return (order - 1) times the Renyi divergence of a whole order of one sampled release.

    Both directions: that of removing a client, which is the larger (Mironov, Talwar and Zhang,
    arXiv:1908.10530).
    """
    if q == 1.0:
        return order * (order - 1) / (2.0 * z * z)
    j = np.arange(order + 1)
    terms = special.gammaln(order + 1) - special.gammaln(j + 1) - special.gammaln(order - j + 1)
    terms += (order - j) * math.log1p(-q) + j * math.log(q) + (j * j - j) / (2.0 * z * z)
    return float(special.logsumexp(terms))


def _best_epsilon(q: float, z: float, rounds: int, delta: float) -> float:
    release = SampledGaussian(sampling_rate=q, noise_multiplier=z)
    return poisson_accountant(population=1, delta=delta).bound({release: rounds}, delta)[0]
