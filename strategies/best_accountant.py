"""Central accounting by every method that fits, of which the best one counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from flwr.serverapp import PrivacyConfig

from flwr_sdp.strategies._quiet import quiet
from flwr_sdp.strategies.pld_accountant import PldAccountant
from flwr_sdp.strategies.privacy_loss import Array, SampledGaussian, gaussian_epsilon, unsampled

# Per release; dp-accounting's sums of logarithms may end this far below the true divergence. (It
# takes one that comes out negative for a proof that epsilon is 0.)
_RDP_ROUNDING = 1e-11


class BestAccountant(PldAccountant):
    """The smallest of three valid bounds of epsilon, and which one it was.

    ``accounting_method`` of what is spent is

    - ``"pld"``: :class:`PldAccountant`,
    - ``"gaussian"``: the exact value of the unsampled Gaussian (Balle and Wang, ICML 2018), which
      bounds the sampled one as well,
    - ``"rdp"``: dp-accounting's Renyi accountant, an implementation independent of ours.

    Parameters
    ----------
    config : PrivacyConfig
        As for :class:`PldAccountant`, which says what is claimed.

    Raises
    ------
    ImportError
        If dp-accounting is missing; ``pip install 'flwr-sdp[server]'`` brings it.

    Notes
    -----
    **Privacy.** Each bound holds at the same delta, so their minimum holds.
    """

    _method: ClassVar[str] = "best"

    def __init__(self, config: PrivacyConfig) -> None:
        super().__init__(config)
        try:
            import dp_accounting.rdp  # type: ignore[import-untyped]  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "central accounting needs dp-accounting: pip install 'flwr-sdp[server]'"
            ) from error
        self._divergences: dict[SampledGaussian, tuple[Array, Array]] = {}

    def bound(self, counts: Mapping[SampledGaussian, int], delta: float) -> tuple[float, str]:
        """Return an upper bound of epsilon after some releases, and the method that gave it."""
        if not counts:
            return 0.0, "gaussian"
        bounds = {"gaussian": gaussian_epsilon(unsampled(counts), delta)}
        if any(release.sampling_rate < 1.0 for release in counts):
            bounds["pld"] = self._loss.epsilon(counts, delta)
            bounds["rdp"] = self._renyi(counts, delta)
        method = min(bounds, key=lambda name: bounds[name])
        return bounds[method], method

    def _renyi(self, counts: Mapping[SampledGaussian, int], delta: float) -> float:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp

        total: Array = np.zeros(1)
        orders: Array = total
        with quiet("absl", logging.ERROR):
            for release, count in counts.items():
                if release not in self._divergences:
                    accountant = rdp.RdpAccountant()
                    gaussian = GaussianDpEvent(release.noise_multiplier)
                    accountant.compose(PoissonSampledDpEvent(release.sampling_rate, gaussian))
                    self._divergences[release] = (accountant.orders, accountant.rdp)
                orders, divergences = self._divergences[release]
                total = total + count * (np.maximum(divergences, 0.0) + _RDP_ROUNDING)
            return float(rdp.compute_epsilon(orders, total, delta)[0])
