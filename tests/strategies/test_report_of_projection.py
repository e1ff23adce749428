"""What a run reports about its clip norm: the exact bias, and the guarantee that needs no clipping.

The accountant is the oracle: the same releases, composed here at the multiplier written out.
"""

import json
import math

import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.strategies import (
    Checkpoints,
    ClipAndNoise,
    fixed_size_accountant,
    fixed_size_event,
    poisson_accountant,
    poisson_event,
    projection_effect,
)
from tests.messages import MARKS, FakeGrid, private_reply
from tests.rounds import inner, make, play, vector_model

MECHANISM = SeparatedMechanism.from_budget(
    4, SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=2.0), 1.0
)
LONGEST = MECHANISM.max_output_norm
POPULATION = 20


def strategy(**options):
    settings = {
        "noise_multiplier": 2.0,
        "sampling_rate": 0.5,
        "population": POPULATION,
        "rng": None,
        "clip_norm": LONGEST / 2,
    }
    return make(**(settings | options))


def rounds(private, count=3, longest=LONGEST, first=1):
    marks = MARKS if longest is None else {**MARKS, "ldp-max-output-norm": longest}
    grid = FakeGrid(range(1, POPULATION + 1))
    for server_round in range(first, first + count):
        play(
            private,
            grid,
            vector_model(),
            lambda _, message: private_reply(message, 0.1, marks=marks),
            server_round,
        )
    return private


def poisson_epsilon(multiplier, releases=3, delta=1e-5):
    accountant = poisson_accountant(population=POPULATION, delta=delta)
    event = poisson_event(noise_multiplier=multiplier, sampling_rate=0.5, population=POPULATION)
    accountant.compose(event, releases)
    return accountant.get_privacy_spent().epsilon


@pytest.mark.parametrize("share", [0.5, 0.25, 2.0])
def test_noise_is_measured_by_the_longest_report(share):
    report = rounds(strategy(clip_norm=LONGEST * share)).report()
    assert report.central.epsilon == pytest.approx(poisson_epsilon(2.0), rel=1e-9)
    other = report.without_projection
    assert other.noise_multiplier == pytest.approx(2.0 * share, rel=1e-12)
    assert other.clip_norm == LONGEST
    assert other.epsilon == pytest.approx(poisson_epsilon(2.0 * share), rel=1e-9)
    # The wrong way round, or the run's own multiplier, would be another number.
    assert abs(other.epsilon / poisson_epsilon(2.0 / share) - 1.0) > 0.1
    assert abs(other.epsilon / report.central.epsilon - 1.0) > 0.1


def test_fixed_size_cohorts_are_charged_at_twice_the_longest_report():
    private = rounds(strategy(sampling_rate=None, cohort_size=5))
    accountant = fixed_size_accountant(population=POPULATION, delta=1e-5)
    event = fixed_size_event(noise_multiplier=1.0, cohort_size=5, population=POPULATION)
    accountant.compose(event, 3)
    expected = accountant.get_privacy_spent().epsilon
    assert private.report().without_projection.epsilon == pytest.approx(expected, rel=1e-9)


def test_a_clip_norm_that_clips_nothing_needs_no_second_figure():
    report = rounds(strategy(clip_norm=LONGEST)).report()
    assert report.without_projection == report.central
    assert "UNCLIPPED" not in report.to_text()
    assert report.to_dict()["central_without_projection"]["epsilon"] == report.central.epsilon


def test_the_longest_declaration_counts():
    private = rounds(rounds(strategy(), 1), 1, 3.0 * LONGEST, first=2)
    assert private.report().without_projection.noise_multiplier == pytest.approx(1.0 / 3.0)


@pytest.mark.parametrize("longest", [None, math.inf, math.nan, -1.0, 0.0])
def test_nothing_is_claimed_once_a_device_declares_no_length(longest):
    private = rounds(rounds(strategy(), 1), 1, longest, first=2)
    report = private.report()
    assert report.central is not None
    assert report.without_projection is None
    assert report.to_dict()["central_without_projection"] is None


def test_nothing_is_claimed_without_replies():
    private = strategy()
    play(private, FakeGrid(range(1, 21)), vector_model(), lambda *_: None)
    assert private.report().central is not None
    assert private.report().without_projection is None


def test_nothing_is_claimed_where_the_run_claims_nothing():
    private = rounds(strategy(min_replies=1))
    assert private.report().central is None
    assert private.report().without_projection is None


def test_text_says_what_it_rests_on():
    report = rounds(strategy(mechanism=MECHANISM)).report()
    text = report.to_text()
    assert "UNCLIPPED" in text
    assert "if every device runs the mechanism" in text
    assert max(map(len, text.split("\n  note")[0].splitlines())) <= 80
    assert json.loads(report.to_json())["central_without_projection"]["provided"]


def test_report_has_the_exact_effect_of_the_clip_norm():
    private = rounds(strategy(mechanism=MECHANISM))
    effect = projection_effect(MECHANISM, LONGEST / 2)
    assert 0.5 < effect.share_projected <= 1.0
    assert private.report().projection == effect
    facts = private.report().to_dict()["projection"]
    assert facts["shrinkage"] == effect.mean_length / effect.norm < 1.0
    assert f"shortens {effect.share_projected:.1%}" in private.report().to_text()
    assert rounds(strategy()).report().projection is None


def test_mechanism_gives_the_clip_norm_that_clips_nothing():
    private = rounds(strategy(clip_norm=None, mechanism=MECHANISM))
    assert private.clip_norm == LONGEST
    report = private.report()
    assert report.projection.share_projected == 0.0
    assert "shortens" not in report.to_text()
    assert report.without_projection == report.central


def test_another_mechanism_on_the_devices_is_told():
    other = rounds(strategy(mechanism=MECHANISM), longest=1.5 * LONGEST).report()
    assert any("they run another one" in text for text in other.exceptions)
    same = rounds(strategy(mechanism=MECHANISM)).report()
    assert not any("they run another one" in text for text in same.exceptions)


def test_length_survives_a_restart(tmp_path):
    def make_one():
        return strategy(rng=None, checkpoints=Checkpoints(tmp_path), seed=3)

    before = rounds(make_one(), 2)
    after = make_one()
    after.restore(vector_model())
    rounds(after, 1, first=3)
    assert before.report().without_projection.releases == 2
    assert after.report().without_projection.epsilon == pytest.approx(
        poisson_epsilon(1.0), rel=1e-9
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "clip_norm must be a number > 0, or mechanism be given; got None"),
        ({"mechanism": 3.0}, "mechanism must be a SeparatedMechanism; got 3.0"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ClipAndNoise(
            inner(), noise_multiplier=0.0, sampling_rate=1.0, rng=seeded_generator(0), **options
        )
