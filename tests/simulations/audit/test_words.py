"""Recovering a set of words from the release of its histogram."""

import numpy as np
import pytest
from scipy import stats

from flwr_sdp import PrivUnit, seeded_generator
from flwr_sdp.reconstruction import histogram_breach_probability
from simulations.audit import words
from simulations.audit.images import unit
from tests.simulations.audit.checks import assert_rate_at_most
from tests.statistics_helpers import assert_detects, assert_mean_close

SIZE, BATCH = 2000, 50
PRIOR = words.zipf(SIZE, BATCH)
EXPECTED = round(PRIOR.sum())
TRIALS = 200


@pytest.fixture(scope="module")
def used():
    return words.draw(PRIOR, TRIALS, seeded_generator(0))


def release(used, epsilon):
    mechanism = PrivUnit.from_epsilon(SIZE, epsilon)
    released = mechanism.privatize(unit(used.astype(float)), seeded_generator(1, repr(epsilon)))
    return released, mechanism.expected_squared_error


def breached(named, used, precision, recall):
    found = words.precision_and_recall(named, used)
    return (found[0] >= precision) & (found[1] >= recall)


def test_words_follow_the_prior(used):
    assert used[:, :BATCH].all()
    assert_mean_close(used[:, BATCH:], PRIOR[BATCH:], variance=(PRIOR * (1 - PRIOR))[BATCH:])


def test_every_word_is_recovered_without_privacy(used):
    named = unit(used.astype(float)) > 0.0
    np.testing.assert_array_equal(words.precision_and_recall(named, used), np.ones((2, TRIALS)))
    others = words.precision_and_recall(named[::-1], used)
    assert np.mean(others) < 0.7


def test_precision_and_recall():
    named = np.array([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=bool)
    used = np.array([[1, 0, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=bool)
    precision, recall = words.precision_and_recall(named, used)
    np.testing.assert_allclose(precision, [2 / 3, 0.0])
    np.testing.assert_allclose(recall, [0.5, 0.0])


def test_score_is_the_log_odds_of_normal_noise():
    prior, released = np.array([0.5, 0.1, 1.0]), np.array([[0.3, -0.2, 0.0]])
    height, spread = 1.6**-0.5, (6.0 / 3) ** 0.5
    expected = np.array([0.0, np.log(1 / 9)]) + (
        stats.norm.logpdf(released[0, :2], height, spread)
        - stats.norm.logpdf(released[0, :2], 0.0, spread)
    )
    scores = words.log_odds(released, prior, 6.0)
    np.testing.assert_allclose(scores[0, :2], expected, atol=1e-12)
    assert scores[0, 2] == np.inf


def test_noise_is_as_the_score_takes_it_to_be():
    """Unused words have mean 0 and the variance E|Z - u|^2 / d, to a percent."""
    used = words.draw(PRIOR, 50, seeded_generator(2))
    released, squared_error = release(used, 200.0)
    noise = released[~used]
    assert abs(noise.mean()) < 5 * noise.std() / noise.size**0.5
    assert noise.var() == pytest.approx(squared_error / SIZE, rel=0.02)


def test_the_prior_helps(used):
    released, squared_error = release(used, 300.0)
    by_release = words.name_likeliest(released, EXPECTED)
    by_both = words.name_likeliest(words.log_odds(released, PRIOR, squared_error), EXPECTED)
    by_prior = words.name_likeliest(np.tile(PRIOR, (TRIALS, 1)), EXPECTED)
    assert by_both.sum(axis=1).tolist() == [EXPECTED] * TRIALS
    shares = [
        np.mean(words.precision_and_recall(named, used))
        for named in (by_release, by_prior, by_both)
    ]
    assert shares[2] > max(shares[:2]) + 0.05


@pytest.mark.parametrize("epsilon", [2.0, 5.0, 10.0, 50.0, 500.0, 5000.0])
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_success_is_below_the_bound(used, epsilon, share):
    released, squared_error = release(used, epsilon)
    bound = histogram_breach_probability(
        epsilon=epsilon, precision=share, recall=share, dictionary_size=SIZE, batch_size=BATCH
    )
    for scores in (released, words.log_odds(released, PRIOR, squared_error)):
        named = words.name_likeliest(scores, EXPECTED)
        assert_rate_at_most(breached(named, used, share, share), bound)


def test_a_bound_for_less_than_was_spent_is_broken(used):
    named = words.name_likeliest(release(used, 5000.0)[0], EXPECTED)
    bound = histogram_breach_probability(
        epsilon=2.0, precision=0.8, recall=0.8, dictionary_size=SIZE, batch_size=BATCH
    )
    assert bound < 0.1
    assert_detects(assert_rate_at_most, breached(named, used, 0.8, 0.8), bound)
