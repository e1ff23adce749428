"""What projecting private reports does to them: against enumeration, sampling and the paper."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp import (
    PrivUnit,
    ScalarDP,
    ScalarRelDP,
    SeparatedBudget,
    SeparatedMechanism,
    seeded_generator,
)
from flwr_sdp.strategies import (
    BestAccountant,
    poisson_accountant,
    poisson_event,
    projection_effect,
    unprojected_noise_multiplier,
)
from tests.statistics_helpers import (
    assert_detects,
    assert_frequency,
    assert_mean_close,
    load_oracle,
    random_unit,
)

DIRECTION = PrivUnit(dim=50, cap_threshold=0.2, epsilon_flip=2.0)


def mechanism(epsilon=4.0, num_bins=5, max_norm=2.0):
    magnitude = ScalarDP(epsilon=epsilon, num_bins=num_bins, max_norm=max_norm)
    return SeparatedMechanism(direction=DIRECTION, magnitude=magnitude)


def enumerated(private, clip_norm, norm):
    """Return share and clipped mean length from ScalarDP's finite law, written out."""
    magnitude, scale = private.magnitude, private.direction.scale
    k, gain = magnitude.num_bins, math.exp(magnitude.epsilon)
    law = np.zeros(k + 1)
    position = min(norm, magnitude.max_norm) / magnitude.max_norm * k
    lower = min(math.floor(position), k - 1)
    for index, weight in ((lower, 1 - (position - lower)), (lower + 1, position - lower)):
        law += weight / (gain + k)
        law[index] += weight * (gain - 1) / (gain + k)
    step = (gain + k) / (gain - 1) * magnitude.max_norm / k
    offset = k * (k + 1) / (2 * (gain + k))
    lengths = scale * step * (np.arange(k + 1) - offset)
    return (
        float(law @ (np.abs(lengths) > clip_norm)),
        float(law @ np.clip(lengths, -clip_norm, clip_norm) / scale),
    )


@given(
    epsilon=st.floats(0.1, 12.0),
    num_bins=st.integers(1, 60),
    share_of_norm=st.floats(0.0, 1.5),
    share_of_clip=st.floats(1e-3, 1.1),
)
def test_closed_form_is_the_enumeration(epsilon, num_bins, share_of_norm, share_of_clip):
    private = mechanism(epsilon, num_bins)
    norm, clip_norm = 2.0 * share_of_norm, private.max_output_norm * share_of_clip
    effect = projection_effect(private, clip_norm, norm)
    share, mean = enumerated(private, clip_norm, norm)
    largest = private.magnitude.max_output
    assert effect.mean_length == pytest.approx(mean, abs=1e-9 * largest)
    assert effect.bias == effect.mean_length - norm
    distances = np.abs(
        np.abs(private.magnitude.step * (np.arange(num_bins + 1) - private.magnitude.offset))
        - clip_norm / private.direction.scale
    )
    if distances.min() > 1e-9 * largest:  # on the edge, an output counts as projected or not
        assert effect.share_projected == pytest.approx(share, abs=1e-12)


@given(
    epsilon=st.floats(0.1, 12.0),
    ratio=st.floats(1.05, 3.0),
    share_of_norm=st.floats(0.0, 1.0),
    share_of_clip=st.floats(1e-3, 1.1),
)
def test_closed_form_holds_on_the_geometric_grid(epsilon, ratio, share_of_norm, share_of_clip):
    magnitude = ScalarRelDP.from_epsilon(epsilon, 2.0, accuracy=0.1, ratio=ratio)
    private = SeparatedMechanism(direction=DIRECTION, magnitude=magnitude)
    norm, clip_norm = 2.0 * share_of_norm, private.max_output_norm * share_of_clip
    k, gain = magnitude.num_bins, math.exp(epsilon)
    points = np.array([0.0, *(0.1 * ratio**j for j in range(1, k + 1))])
    lower = min(int(np.searchsorted(points, norm, side="right")) - 1, k - 1)
    fraction = (norm - points[lower]) / (points[lower + 1] - points[lower])
    law = np.full(k + 1, 1 / (gain + k))
    law[lower] += (1 - fraction) * (gain - 1) / (gain + k)
    law[lower + 1] += fraction * (gain - 1) / (gain + k)
    lengths = (gain + k) / (gain - 1) * (points - points.sum() / (gain + k))
    limit = clip_norm / DIRECTION.scale
    effect = projection_effect(private, clip_norm, norm)
    largest = magnitude.max_output
    assert law @ lengths == pytest.approx(norm, abs=1e-9 * largest)
    expected = float(law @ np.clip(lengths, -limit, limit))
    assert effect.mean_length == pytest.approx(expected, abs=1e-9 * largest)
    if np.abs(np.abs(lengths) - limit).min() > 1e-9 * largest:
        share = float(law @ (np.abs(lengths) > limit))
        assert effect.share_projected == pytest.approx(share, abs=1e-12)
    worst = projection_effect(private, clip_norm)
    assert abs(effect.bias) <= abs(worst.bias) + 1e-9 * largest


def test_the_longest_report_is_not_projected_where_zero_is_the_longest():
    """On a fine grid at a small epsilon: a multiplier below the norm of any report is no claim."""
    magnitude = ScalarRelDP(epsilon=0.1, num_bins=2, accuracy=1.0, ratio=1.01, max_norm=1.0)
    private = SeparatedMechanism(direction=DIRECTION, magnitude=magnitude)
    reports = private.privatize(np.zeros((300, 50)), seeded_generator(2))
    longest = np.linalg.norm(reports, axis=1).max()
    assert private.max_output_norm == pytest.approx(longest, rel=1e-9)
    assert projection_effect(private, private.max_output_norm).share_projected == 0.0
    assert projection_effect(private, 0.999 * private.max_output_norm).share_projected > 0.0


def test_samples_of_the_whole_mechanism_agree():
    """4000 reports of a vector of norm 1.3; false alarms have a probability of 1e-6."""
    private = mechanism()
    clip_norm, norm = 0.6 * private.max_output_norm, 1.3
    unit = random_unit(50)
    rng = seeded_generator(1, "projection")
    reports = np.array([private.privatize(norm * unit, rng) for _ in range(4000)])
    lengths = np.linalg.norm(reports, axis=1)
    projected = reports * np.minimum(1.0, clip_norm / lengths)[:, None]
    effect = projection_effect(private, clip_norm, norm)
    assert 0.01 < effect.share_projected < 0.99
    assert effect.shrinkage < 0.98
    assert_frequency((lengths > clip_norm).sum(), 4000, effect.share_projected)
    assert_mean_close(projected @ unit, effect.mean_length)
    across = random_unit(50, seed=1)
    across -= (across @ unit) * unit
    assert_mean_close(projected @ across, 0.0)
    assert_detects(assert_mean_close, projected @ unit, norm)


@given(
    epsilon=st.floats(0.1, 12.0), num_bins=st.integers(1, 40), share_of_clip=st.floats(1e-3, 1.0)
)
def test_the_largest_norm_is_the_worst(epsilon, num_bins, share_of_clip):
    private = mechanism(epsilon, num_bins)
    clip_norm = private.max_output_norm * share_of_clip
    worst = projection_effect(private, clip_norm)
    assert worst.norm == 2.0
    for norm in np.linspace(0.0, 2.0, 23):
        effect = projection_effect(private, clip_norm, float(norm))
        assert effect.share_projected <= worst.share_projected + 1e-12
        assert abs(effect.bias) <= abs(worst.bias) + 1e-9


@pytest.mark.parametrize("norm", [0.0, 0.7, 2.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 30.0, 100.0])
def test_the_largest_output_norm_never_binds(epsilon, norm):
    private = SeparatedMechanism(
        direction=DIRECTION, magnitude=ScalarDP.from_epsilon(epsilon, max_norm=2.0)
    )
    effect = projection_effect(private, private.max_output_norm, norm)
    assert effect.share_projected == 0.0
    assert effect.mean_length == min(norm, 2.0)
    below = projection_effect(private, private.max_output_norm * 0.999, 2.0)
    assert 0.0 < below.share_projected <= 1.0
    assert below.bias < 0.0


def test_the_finest_grid_costs_nothing():
    """2^40 points: the released norm is nearly the norm, and is clipped like it."""
    private = SeparatedMechanism(
        direction=DIRECTION, magnitude=ScalarDP(epsilon=90.0, num_bins=2**40, max_norm=2.0)
    )
    scale = DIRECTION.scale
    assert projection_effect(private, 0.5 * scale, 1.0).mean_length == pytest.approx(0.5, rel=1e-9)
    assert projection_effect(private, 0.5 * scale, 1.0).share_projected == pytest.approx(1.0)
    assert projection_effect(private, 0.5 * scale, 0.4).shrinkage == pytest.approx(1.0, rel=1e-9)


def test_zero_has_no_shrinkage():
    effect = projection_effect(mechanism(), 1.0, 0.0)
    assert math.isnan(effect.shrinkage)
    assert effect.bias == effect.mean_length


# Norm that a report may at most release unprojected, in the paper's settings: rho m of ERRATA 21.
THRESHOLDS = {
    "Table 1, MNIST": (100.0, 5.0, {500: 1.72, 250: 1.13, 100: 0.559, 50: 0.332}),
    "Table 1, CIFAR": (30.0, 2.0, {5000: 2.88, 1000: 1.29, 500: 0.903, 100: 0.293}),
    "Reddit": (100.0, 5.0, {10_000: 3.85, 2500: 1.92, 500: 0.852, 100: 0.277}),
}


def paper_rows():
    for case in load_oracle("privunit")["cases"]:
        if case["source"] in THRESHOLDS:
            rho, max_norm, table = THRESHOLDS[case["source"]]
            total = round(float(case["eps_tot"]))
            yield case["source"], int(case["d"]), total, rho, max_norm, table.get(total)


@pytest.mark.parametrize(
    ("source", "dim", "total", "rho", "max_norm", "threshold"), list(paper_rows())
)
def test_the_papers_clip_norms_bind(source, dim, total, rho, max_norm, threshold):
    """All but CIFAR10 at 5000 clip reports of norms that the devices do not."""
    private = SeparatedMechanism.from_budget(
        dim,
        SeparatedBudget(epsilon_direction=float(total), epsilon_magnitude=10.0),
        max_norm,
        rule="paper",
    )
    assert rho / private.direction.scale == pytest.approx(threshold, rel=4e-3)
    binding = projection_effect(private, rho)
    assert binding.share_projected > 0.99 or (source, total) == ("Table 1, CIFAR", 5000)
    # A norm below the threshold, by more than ScalarDP's noise, is seldom projected.
    small = projection_effect(private, rho, 0.5 * threshold)
    assert small.share_projected < 0.02
    if threshold < max_norm:
        assert binding.mean_length == pytest.approx(threshold, rel=0.02)


def test_every_setting_of_the_paper_is_there():
    assert sum(1 for _ in paper_rows()) == 12


def test_noise_without_projection_is_accounted_at_the_largest_norm():
    private = mechanism()
    z = unprojected_noise_multiplier(private, clip_norm=3.0, noise_multiplier=2.0)
    assert z == pytest.approx(2.0 * 3.0 / private.max_output_norm, rel=1e-15)
    at_largest = unprojected_noise_multiplier(
        private, clip_norm=private.max_output_norm, noise_multiplier=2.0
    )
    assert at_largest == 2.0
    accountant = poisson_accountant(population=100, delta=1e-6)
    assert isinstance(accountant, BestAccountant)
    accountant.compose(poisson_event(noise_multiplier=z, sampling_rate=0.1, population=100))
    assert 0 < accountant.get_epsilon(1e-6) < math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: projection_effect(m, 0.0), "clip_norm must be"),
        (lambda m: projection_effect(m, math.nan), "clip_norm must be"),
        (lambda m: projection_effect(m, 1.0, -1.0), "norm must be"),
        (lambda m: projection_effect(None, 1.0), "mechanism must be"),
        (
            lambda m: unprojected_noise_multiplier(None, clip_norm=1.0, noise_multiplier=1.0),
            "mechanism must be",
        ),
        (
            lambda m: unprojected_noise_multiplier(m, clip_norm=0.0, noise_multiplier=1.0),
            "clip_norm must be",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(mechanism())
