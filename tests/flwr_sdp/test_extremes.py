"""Every mechanism at the ends of the promised range, against ``tests/oracle/make_extremes.py``.

Dimensions from 2 to 1e8, budgets from 1e-3 to the smaller of the dimension and 2e4. All numbers
agree to 1e-11 in relative terms, and integers exactly.
"""

import copy

import pytest

from flwr_sdp import PrivUnit, PrivUnitInfinity, ScalarDP, ScalarRelDP
from tests.statistics_helpers import assert_detects, load_oracle

EXTREMES = load_oracle("extremes")
close = {"rel": 1e-11, "abs": 0}


def each(part):
    def case_id(case):
        return (f"d{case['dim']}-" if "dim" in case else "") + f"eps{float(case['budget']):g}"

    return pytest.mark.parametrize("case", EXTREMES[part], ids=case_id)


def direction(kind, case, **options):
    return kind.from_epsilon(case["dim"], float(case["budget"]), **options)


def magnitude(kind, case):
    return kind.from_epsilon(float(case["budget"]), float(case["max_norm"]))


def of_case(case):
    """Return the ScalarRelDP of exactly the oracle's grid."""
    return ScalarRelDP(
        epsilon=float(case["budget"]),
        num_bins=case["values"]["num_bins"],
        accuracy=float(case["values"]["accuracy"]),
        ratio=float(case["values"]["ratio"]),
        max_norm=float(case["max_norm"]),
    )


def check(mechanism, case):
    """Check everything the case has of a mechanism."""
    assert mechanism.epsilon <= float(case["budget"])
    for name, value in case["values"].items():
        check_number(name, getattr(mechanism, name), value)
    for r, value in case.get("variances", {}).items():
        check_number(f"variance({r})", mechanism.variance(float(r)), value)


def check_number(name, number, value):
    expected = value if isinstance(value, int) else pytest.approx(float(value), **close)
    assert number == expected, name


# ------------------------------------------------------------------ against the oracle
def test_oracle_is_complete():
    assert [len(EXTREMES[part]) for part in EXTREMES if part != "about"] == [16, 13, 24, 5, 5]


@each("privunit_tight")
def test_privunit_tight(case):
    check(direction(PrivUnit, case), case)


@each("privunit_paper")
def test_privunit_paper(case):
    check(direction(PrivUnit, case, rule="paper"), case)


@each("privunit_infinity_tight")
def test_privunit_infinity_tight(case):
    check(direction(PrivUnitInfinity, case), case)


@each("scalar_dp")
def test_scalar_dp(case):
    check(magnitude(ScalarDP, case), case)


@each("scalar_rel")
def test_scalar_rel(case):
    """The grid that is chosen, and then the outputs and variances of the oracle's own.

    Apart, because the last bit of the ratio moves the variances: by 1e-9 at epsilon 40.
    """
    chosen = magnitude(ScalarRelDP, case)
    for name in ("num_bins", "accuracy", "ratio"):
        check_number(name, getattr(chosen, name), case["values"][name])
    check(of_case(case), case)


def test_the_comparison_has_power():
    """It notices 1e-10 in any number, and 1 in an integer."""
    for part, mechanism_of in [
        ("privunit_tight", lambda case: direction(PrivUnit, case)),
        ("privunit_infinity_tight", lambda case: direction(PrivUnitInfinity, case)),
        ("scalar_rel", of_case),
    ]:
        case = EXTREMES[part][-1]
        for group, name in [(g, n) for g in ("values", "variances") for n in case.get(g, ())]:
            mutant = copy.deepcopy(case)
            value = mutant[group][name]
            mutant[group][name] = (
                value + 1 if isinstance(value, int) else float(value) * (1 + 1e-10)
            )
            assert_detects(check, mechanism_of(case), mutant)
