"""Draws from the symmetric Dirichlet law."""

import numpy as np
import pytest
from scipy import stats

from flwr_sdp import seeded_generator
from simulations.data.dirichlet import _log_gammas, dirichlet
from tests.statistics_helpers import assert_detects, assert_follows


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 3.0, 100.0])
def test_gamma_numbers_follow_their_law(alpha):
    """20,000 numbers against scipy, Kolmogorov-Smirnov; the mutant has an alpha 10% off."""
    logs = _log_gammas(alpha, 20_000, seeded_generator(1, "gamma"))
    assert_follows(np.exp(logs), stats.gamma(alpha).cdf)
    assert_detects(assert_follows, np.exp(logs), stats.gamma(1.1 * alpha).cdf)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("count", [1, 2, 10_000])
def test_proportions_add_up_to_one(alpha, count):
    proportions = dirichlet(alpha, count, seeded_generator(2))
    assert proportions.shape == (count,)
    assert np.all(proportions >= 0.0)
    assert proportions.sum() == pytest.approx(1.0, abs=1e-12)


def test_a_tiny_alpha_gives_all_to_one():
    assert dirichlet(1e-6, 100, seeded_generator(3)).max() > 1.0 - 1e-9
