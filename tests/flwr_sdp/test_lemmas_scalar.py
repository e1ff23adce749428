"""The lemmas of the paper on magnitudes, against the exact mechanisms.

As in ``test_lemmas.py``: each test names its statement and the line of the LaTeX source of
arXiv:1812.00984v2, and says whether that is true as printed, repaired, or false. The bound of the
relative error is tested beside ScalarRelDP.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_sdp import ScalarDP, ScalarRelDP
from tests.statistics_helpers import PROPERTY, assert_detects

TINY = 1e-9  # what rounding may take from a bound that is attained


# ------------------------------------------------------------------ ScalarDP
def displayed_variance(mechanism, r):
    """The variance displayed in the proof of Lemma ScalarUtil (l. 3190)."""
    k, most, grow = mechanism.num_bins, mechanism.max_norm, math.expm1(mechanism.epsilon)
    position = k * r / most
    decimal = math.ceil(position) - position
    rounding = decimal * (1.0 - decimal)
    inner = (k + 1) * grow / k**2 * (position**2 + rounding) - (k + 1) * grow * r / most
    inner += (k + 1) * (2 * k + 1) * (grow + 1 + k) / (6 * k) - (k + 1) ** 2 / 4
    return most**2 / grow**2 * inner + most**2 / k**2 * rounding


def scalar_bound(mechanism, r, *, rounding=0.25, noise=1.0):
    """The bound of Lemma ScalarUtil (l. 1706)."""
    k, most, grow = mechanism.num_bins, mechanism.max_norm, math.expm1(mechanism.epsilon)
    spread = noise * (2 * k + 1) * (grow + 1 + k) * most**2 / (6 * k * grow)
    step = rounding * most**2 / k**2
    return (k + 1) / grow * (r * r + step + spread) + step


def check_scalar(mechanism, r, **mutant):
    assert mechanism.variance(r) <= scalar_bound(mechanism, r, **mutant) * (1 + TINY)


scalars = st.builds(
    ScalarDP,
    epsilon=st.floats(-4.0, 3.5).map(math.exp),
    num_bins=st.floats(0.0, 4.0).map(lambda power: round(10**power)),
    max_norm=st.floats(-3.0, 3.0).map(lambda power: 10**power),
)


@PROPERTY
@given(mechanism=scalars, share=st.floats(0.0, 1.0))
def test_scalar_variance(mechanism, share):
    """Lemma ScalarUtil (l. 1706): its bound, and the exact variance in its proof (l. 3190). True.

    Loose by up to 13.6, as the negative terms are dropped.
    """
    r = share * mechanism.max_norm
    check_scalar(mechanism, r)
    # Where rounding makes the position an integer or not, the displayed form moves by 1e-12.
    scale = displayed_variance(mechanism, mechanism.max_norm / 2)
    assert mechanism.variance(r) == pytest.approx(
        displayed_variance(mechanism, r), rel=1e-9, abs=1e-9 * scale
    )


def test_scalar_variance_is_tight_at_two_ends():
    """Lemma ScalarUtil: each of its parts, 5 % smaller, fails somewhere.

    At r = 0 on a fine grid the noise is all there is; halfway between two points of a coarse grid
    at a large budget, the rounding is.
    """
    fine = ScalarDP(epsilon=20.0, num_bins=10**4, max_norm=2.0)
    coarse = ScalarDP(epsilon=20.0, num_bins=10, max_norm=2.0)
    check_scalar(fine, 0.0)
    check_scalar(coarse, 0.1)
    assert scalar_bound(fine, 0.0) == pytest.approx(fine.variance(0.0), rel=1e-3)
    assert scalar_bound(coarse, 0.1) == pytest.approx(coarse.variance(0.1), rel=1e-3)
    for mechanism, r, mutant in (
        (fine, 0.0, {"noise": 0.95}),
        (coarse, 0.1, {"rounding": 0.95 * 0.25}),
    ):

        def check(mechanism=mechanism, r=r, mutant=mutant):
            check_scalar(mechanism, r, **mutant)

        assert_detects(check)


def test_last_step_of_the_scalar_proof_is_false():
    """Proof of Lemma ScalarUtil (l. 3206): its last negative term lacks r_max^2.

    At r_max = 1/10 it is negative, as no variance is; with r_max^2 it holds.
    """
    for most in (0.1, 1.0, 5.0):
        mechanism = ScalarDP(epsilon=1.0, num_bins=3, max_norm=most)
        grow = math.expm1(1.0)
        for r in np.linspace(0.0, most, 31):
            kept = scalar_bound(mechanism, r) - 4.0 / grow * r * most
            last = 4.0 / grow * 4.0 / (4.0 * grow)
            assert mechanism.variance(r) <= (kept - last * most**2) * (1 + TINY)
            if most < 1.0:
                assert kept - last < 0.0


VARIANCE_CONSTANT = 2.41  # attained at epsilon = 1


def worst_variance(epsilon):
    """Return the largest variance over r, for max_norm = 1.

    Between two grid points it is a parabola in r, and the noise is largest at both ends: so it is
    at the vertex of the first parabola.
    """
    mechanism = ScalarDP.from_epsilon(epsilon, 1.0)
    start, middle, end = (mechanism.variance(part / mechanism.num_bins) for part in (0.0, 0.5, 1.0))
    bend, slope = 2.0 * (start - 2.0 * middle + end), 4.0 * middle - 3.0 * start - end
    place = -slope / (2.0 * bend) if bend < 0.0 else 0.0
    top = mechanism.variance(min(max(place, 0.0), 1.0) / mechanism.num_bins)
    return max(start, middle, end, top)


def check_absolute_error(epsilon, constant=VARIANCE_CONSTANT):
    assert worst_variance(epsilon) <= constant * math.exp(-2.0 * epsilon / 3.0)


@PROPERTY
@given(st.floats(1.0, 60.0))
def test_absolute_error(epsilon):
    """Lemma one-dim-absolute-error (l. 1725), for epsilon >= 1. True with C = 2.41.

    What Lemma ScalarUtil implies is C = 7.63.
    """
    check_absolute_error(epsilon)
    mechanism = ScalarDP.from_epsilon(epsilon, 1.0)
    assert scalar_bound(mechanism, 1.0) <= 7.63 * math.exp(-2.0 * epsilon / 3.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1.3, 3.0, 8.0])
def test_worst_variance(epsilon):
    """The vertex of the first parabola is the largest of 20,001 points of the whole range."""
    mechanism = ScalarDP.from_epsilon(epsilon, 1.0)
    largest = max(mechanism.variance(r) for r in np.linspace(0.0, 1.0, 20001))
    assert worst_variance(epsilon) == pytest.approx(largest, rel=1e-6)


def test_absolute_error_is_sharp():
    """Lemma one-dim-absolute-error: attained at epsilon = 1; tends to 1/3 + 1/4 from there.

    1/3 is the noise at the end of the range, 1/4 the rounding halfway between two points.
    """
    assert_detects(check_absolute_error, 1.0, 2.4)
    ratios = [worst_variance(3.0 * n) * math.exp(2.0 * n) for n in (2, 4, 8, 16)]
    assert abs(ratios[-1] - 7 / 12) < 1e-6
    distances = np.abs(np.array(ratios) - 7 / 12)
    assert np.all(np.diff(distances) < 0)


def test_absolute_error_is_false_at_small_epsilon():
    """Lemma one-dim-absolute-error (l. 1725) is printed for every epsilon.

    Below 1 the variance grows like 1.5 / epsilon^2: 7.7 at 0.5, 158 at 0.1, 1.5e4 at 0.01.
    """
    for epsilon, ratio in ((0.5, 7.66), (0.1, 157.7), (0.01, 15075.0)):
        assert_detects(check_absolute_error, epsilon)
        exact = worst_variance(epsilon) * math.exp(2.0 * epsilon / 3.0)
        assert exact == pytest.approx(ratio, rel=1e-3)
    for epsilon in (1e-2, 1e-3, 1e-4):
        assert worst_variance(epsilon) * epsilon**2 == pytest.approx(1.5, rel=epsilon)


# ------------------------------------------------------------------ ScalarRelDP
def relative_error(mechanism, r):
    """Return E(Z - r)^2 / max(r, alpha)^2 in units of the right side of Eq. exp-spacing-bound."""
    share = mechanism.accuracy / mechanism.max_norm
    unit = share ** (-4 / 3) * math.exp(-2.0 * mechanism.epsilon / 3.0)
    return mechanism.mean_squared_error(r) / max(r, mechanism.accuracy) ** 2 / unit


@PROPERTY
@given(
    epsilon=st.floats(5.0, 60.0),
    power=st.floats(0.05, 0.49),
    place=st.floats(0.0, 1.0),
    within=st.floats(0.0, 1.0),
)
def test_relative_error_above_the_first_interval(epsilon, power, place, within):
    """Eq. exp-spacing-bound (l. 3313): with constant 1, for r >= nu alpha. True there only.

    alpha_0 = e^(-power epsilon); 3/4 in the limit of a fine grid: 1/4 is the rounding halfway
    between two points, 1/2 the noise at r = nu alpha.
    """
    mechanism = ScalarRelDP.from_epsilon(epsilon, 1.0, accuracy=math.exp(-power * epsilon))
    index = 1 + int(place**3 * (mechanism.num_bins - 1))
    low = mechanism.accuracy * mechanism.ratio**index
    r = low * (1.0 + within * (mechanism.ratio - 1.0))
    if r <= 1.0:
        assert relative_error(mechanism, r) <= 1.0


@pytest.mark.parametrize("power", [1 / 8, 1 / 4, 1 / 3])
def test_relative_error_is_false_in_the_first_interval(power):
    """Eq. exp-spacing-bound (l. 3313) and what follows from it (l. 3326), below nu alpha.

    Rounding alone costs r (nu alpha - r). At r = alpha, where the text promises O(r^2 e^(-eps/3))
    for alpha_0 = e^(-eps/4), it is Delta r^2 = e^(-eps/6) r^2; at nu alpha / 2, nu^2 alpha^2 / 4.
    """
    at_alpha, halfway, above = [], [], []
    for epsilon in (20.0, 30.0, 40.0):
        mechanism = ScalarRelDP.from_epsilon(epsilon, 1.0, accuracy=math.exp(-power * epsilon))
        alpha, spacing = mechanism.accuracy, mechanism.ratio - 1.0
        at_alpha.append(relative_error(mechanism, alpha) * spacing)
        halfway.append(relative_error(mechanism, alpha / 2) * spacing**2)
        above.append(relative_error(mechanism, mechanism.ratio * alpha))
        assert relative_error(mechanism, alpha) > 4.0
    # In the bound's units they grow like 1/Delta and 1/Delta^2; the printed claim is a constant.
    np.testing.assert_allclose(at_alpha[-1], 1.0, rtol=0.05)
    np.testing.assert_allclose(halfway[-1], 0.25, rtol=0.05)
    assert max(above) < 1.0


def test_relative_error_does_not_recover_the_absolute_one():
    """The text below Eq. exp-spacing-bound (l. 3322): alpha_0 = 1 does not give e^(-2 eps/3).

    It leaves one interval, and rounding costs r_max^2 / 4 in its middle whatever epsilon is.
    """
    for epsilon in (10.0, 20.0, 40.0):
        mechanism = ScalarRelDP.from_epsilon(epsilon, 1.0, accuracy=1.0)
        assert mechanism.num_bins == 1
        assert mechanism.variance(0.5) >= 0.25
        assert worst_variance(epsilon) <= VARIANCE_CONSTANT * math.exp(-2 * epsilon / 3)
