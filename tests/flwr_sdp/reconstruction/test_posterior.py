"""What a belief can become: against two-point mechanisms, which reach the bound."""

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp.reconstruction import log_posterior_bound, posterior_bound


@given(prior=st.floats(1e-12, 1.0 - 1e-12), epsilon=st.floats(0.0, 30.0))
def test_randomized_response_reaches_the_bound(prior, epsilon):
    """Tell truly with odds e^epsilon whether the event holds, and Bayes' rule gives the bound."""
    yes, no = 1.0 / (1.0 + math.exp(-epsilon)), 1.0 / (1.0 + math.exp(epsilon))
    posterior = prior * yes / (prior * yes + (1.0 - prior) * no)
    bound = posterior_bound(prior=prior, epsilon=epsilon)
    assert bound == pytest.approx(posterior, rel=1e-9)
    # With the loss of the other lemma it would be larger, with none it would be the prior.
    assert bound <= min(1.0, math.exp(epsilon) * prior) * (1 + 1e-12)
    assert bound >= prior * (1 - 1e-12)


@pytest.mark.parametrize("log_prior", [-1e5, -3000.0, -800.0, -1.0, -1e-3, -1e-12])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 750.0, 2e4, 1e5])
def test_logs_are_right_where_probabilities_are_not_floats(log_prior, epsilon):
    with mpmath.workdps(50):
        prior = mpmath.exp(mpmath.mpf(log_prior))
        gain = mpmath.exp(mpmath.mpf(epsilon))
        exact = mpmath.log(gain * prior / (1 - prior + gain * prior))
        value = log_posterior_bound(log_prior=log_prior, epsilon=epsilon)
        assert value == pytest.approx(float(exact), rel=1e-12, abs=1e-300)
    assert value <= 0.0


def test_certainties_stay():
    assert posterior_bound(prior=0.0, epsilon=1e4) == 0.0
    assert posterior_bound(prior=1.0, epsilon=0.0) == 1.0
    assert log_posterior_bound(log_prior=0.0, epsilon=3.0) == 0.0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"prior": -0.1, "epsilon": 1.0}, "prior"),
        ({"prior": 1.1, "epsilon": 1.0}, "prior"),
        ({"prior": math.nan, "epsilon": 1.0}, "prior"),
        ({"prior": 0.5, "epsilon": -1.0}, "epsilon"),
        ({"prior": 0.5, "epsilon": math.inf}, "epsilon"),
    ],
)
def test_bad_input_is_refused(arguments, field):
    with pytest.raises(ValueError, match=f"{field} must be"):
        posterior_bound(**arguments)
