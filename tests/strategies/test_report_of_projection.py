"""What a run reports about its clip norm: the exact bias, and the guarantee that needs no clipping.

The accountant is the oracle: the same releases, composed here at the multiplier written out.
"""

import json
import math

import numpy as np
import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism, seeded_generator
from flwr_sdp.clients import Selection, UpdateLayout
from flwr_sdp.model_rounding import Rounding
from flwr_sdp.strategies import (
    Checkpoints,
    ClipAndNoise,
    fixed_size_accountant,
    fixed_size_event,
    poisson_accountant,
    poisson_event,
    projection_effect,
)
from tests.messages import MARKS, FakeGrid, private_reply, record
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
    report = rounds(strategy(clip_norm=LONGEST * share, mechanism=MECHANISM)).report()
    assert report.central.epsilon == pytest.approx(poisson_epsilon(2.0), rel=1e-9)
    other = report.without_projection
    assert other.noise_multiplier == pytest.approx(2.0 * share, rel=4e-5)
    assert LONGEST < other.clip_norm < LONGEST * (1.0 + 4e-5)  # with the rounding of the devices
    assert other.epsilon == pytest.approx(poisson_epsilon(2.0 * LONGEST * share / other.clip_norm))
    assert other.epsilon == pytest.approx(poisson_epsilon(2.0 * share), rel=1e-3)
    # The wrong way round, or the run's own multiplier, would be another number.
    assert abs(other.epsilon / poisson_epsilon(2.0 / share) - 1.0) > 0.1
    assert abs(other.epsilon / report.central.epsilon - 1.0) > 0.1


def test_fixed_size_cohorts_are_charged_at_twice_the_longest_report():
    private = rounds(strategy(sampling_rate=None, cohort_size=5))
    accountant = fixed_size_accountant(population=POPULATION, delta=1e-5)
    event = fixed_size_event(noise_multiplier=1.0, cohort_size=5, population=POPULATION)
    accountant.compose(event, 3)
    expected = accountant.get_privacy_spent().epsilon
    assert private.report().without_projection.epsilon == pytest.approx(expected, rel=1e-3)


def test_a_clip_norm_that_clips_nothing_needs_no_second_figure():
    report = rounds(strategy(clip_norm=LONGEST)).report()
    other = report.without_projection
    assert report.central.epsilon <= other.epsilon <= report.central.epsilon * (1 + 1e-3)
    assert "UNCLIPPED" not in report.to_text()
    assert report.to_dict()["central_without_projection"]["epsilon"] == other.epsilon


def test_the_longest_declaration_counts():
    private = rounds(rounds(strategy(), 1), 1, 3.0 * LONGEST, first=2)
    assert private.report().without_projection.noise_multiplier == pytest.approx(
        1.0 / 3.0, rel=1e-4
    )


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
    assert report.without_projection.epsilon == pytest.approx(report.central.epsilon, rel=1e-3)


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
        poisson_epsilon(1.0), rel=1e-3
    )


def test_without_a_mechanism_nothing_is_better_than_the_run():
    """Devices that were never asked have declared nothing."""
    report = rounds(strategy(clip_norm=2.0 * LONGEST)).report()
    assert report.without_projection == report.central


def test_the_mechanism_counts_where_devices_declare_less():
    report = rounds(strategy(mechanism=MECHANISM), longest=LONGEST / 10).report()
    other = report.without_projection
    assert other.noise_multiplier == pytest.approx(1.0, rel=1e-4)
    assert other.clip_norm > LONGEST  # those who were not asked round as the others do


def test_charges_of_somebody_else_are_not_guessed():
    accountant = poisson_accountant(population=POPULATION, delta=1e-5)
    accountant.compose(
        poisson_event(noise_multiplier=0.5, sampling_rate=0.5, population=POPULATION), 7
    )
    report = rounds(strategy(accountant=accountant)).report()
    assert report.central.releases == 10
    assert any(text.startswith("7 of the 10 releases were charged") for text in report.exceptions)
    assert report.without_projection is None


def test_noise_that_changed_is_not_guessed():
    private = rounds(strategy(), 1)
    private.noise_multiplier = 1.0
    assert rounds(private, 1, first=2).report().without_projection is None


@pytest.mark.parametrize(("dtype", "least"), [(np.float16, 2.0**-12), (np.float32, 2.0**-25)])
def test_rounding_to_the_model_lengthens_reports(dtype, least):
    """A model of 1,024 numbers of 100: float16 keeps them to 1/32."""
    arrays = record({"w": np.full(1024, 100.0, dtype)})
    selection = Selection()
    rounding = Rounding.on(arrays, selection)
    assert rounding.absolute >= 100.0 * 32.0 * least
    update = np.full(1024, 0.01)
    layout = UpdateLayout.of(arrays, selection)
    longest = 0.0
    rng = seeded_generator(0)
    for _ in range(20):
        moved = layout.apply(update + 0.01 * rng.normal(1024))
        longest = max(longest, float(np.linalg.norm(layout.difference(moved))))
    assert longest <= rounding.of(float(np.linalg.norm(update)) * 2.0)
    if dtype == np.float16:  # and without it the length would be wrong
        one = layout.apply(np.full(1024, 0.04).astype(np.float32))
        got = float(np.linalg.norm(layout.difference(one)))
        assert got > 1.5 * 0.04 * 32.0
        assert got <= rounding.of(0.04 * 32.0)


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
