"""Bad parameters and bad arrays are refused, by name and value, before anything is drawn."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from flwr_sdp import (
    PrivUnit,
    PrivUnitInfinity,
    ScalarDP,
    ScalarRelDP,
    SeparatedBudget,
    SeparatedMechanism,
    _validate,
    seeded_generator,
)
from flwr_sdp.reconstruction import breach_probability, log_breach_bound
from flwr_sdp.sphere import MAX_THRESHOLD, Cap
from tests.statistics_helpers import random_unit

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = (NAN, INF, -INF, "5", True, False, None, 1j, [1.0], Decimal(1), np.True_)
BUDGET = SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=5.0)
SCALAR = ScalarDP.from_epsilon(5.0, 1.0)
MECHANISM = SeparatedMechanism.from_budget(10, BUDGET, 1.0)


def breach(**changes):
    return {"epsilon": 1.0, "dim_target": 10, "tolerance": 0.5, "prior": 0.0} | changes


# What is called, the field, and the numbers it refuses besides those that are none.
FIELDS = {
    "PrivUnit": (
        lambda **given: PrivUnit(
            **({"dim": 10, "cap_threshold": 0.1, "epsilon_flip": 1.0} | given)
        ),
        {
            "dim": (0, -1, 1, 2.0, 2.5),
            "cap_threshold": (-1, -1e-9, 1, 1.0, 1 - 1e-7, 2.0),
            "epsilon_flip": (-1, -1e-9),
        },
    ),
    "PrivUnit.from_epsilon": (
        lambda **given: PrivUnit.from_epsilon(**({"dim": 10, "epsilon": 1.0} | given)),
        {
            "dim": (0, -1, 1, 2.0, 2.5),
            "epsilon": (0, -1, 0.0, -0.0, 1e-141, Fraction(1, 10**400)),
            "flip_share": (-1, 1, 1.5),
        },
    ),
    "PrivUnitInfinity.from_epsilon": (
        lambda **given: PrivUnitInfinity.from_epsilon(**({"dim": 10, "epsilon": 1.0} | given)),
        {
            "dim": (0, -1, 2.0),
            "epsilon": (0, -1, 1e-16),
            "flip_share": (-1, 1, 1.5),
        },
    ),
    "ScalarDP": (
        lambda **given: ScalarDP(**({"epsilon": 1.0, "num_bins": 2, "max_norm": 1.0} | given)),
        {
            "epsilon": (0, -1, 0.0),
            "num_bins": (0, -1, 2.0, 2**40 + 1, 10**30),
            "max_norm": (0, -1, 0.0),
        },
    ),
    "ScalarDP.from_epsilon": (
        lambda **given: ScalarDP.from_epsilon(**({"epsilon": 1.0, "max_norm": 1.0} | given)),
        {"epsilon": (0, -1), "max_norm": (0, -1)},
    ),
    "SeparatedBudget": (
        lambda **given: SeparatedBudget(
            **({"epsilon_direction": 1.0, "epsilon_magnitude": 1.0} | given)
        ),
        {"epsilon_direction": (0, -1), "epsilon_magnitude": (0, -1)},
    ),
    "SeparatedMechanism.from_budget": (
        lambda **given: SeparatedMechanism.from_budget(
            **({"dim": 10, "budget": BUDGET, "max_norm": 1.0} | given)
        ),
        {"dim": (0, -1, 1, 2.5), "max_norm": (0, -1)},
    ),
    "Cap": (
        lambda **given: Cap(**({"dim": 10, "threshold": 0.1} | given)),
        {"dim": (0, -1, 1, 2.5), "threshold": (-1, 1, 1 - 1e-7)},
    ),
    "breach_probability": (
        lambda **given: breach_probability(**breach(**given)),
        {
            "epsilon": (-1, -1e-9),
            "dim_target": (0, -1, 1, 3, 4.0),
            "tolerance": (-1, 1.001),
            "prior": (-1, -1e-9),
        },
    ),
    "log_breach_bound": (
        lambda **given: log_breach_bound(**breach(**given), rule="tight"),
        {
            "epsilon": (-1,),
            "dim_target": (0, -1, 1, 4.0),
            "tolerance": (-1, 1.001),
            "prior": (-1,),
        },
    ),
}
BAD = [
    pytest.param(call, field, value, id=f"{name}-{field}-{value!r}")
    for name, (call, fields) in FIELDS.items()
    for field, numbers in fields.items()
    for value in (*NOT_NUMBERS, *numbers)
]


@pytest.mark.parametrize(("call", "field", "value"), BAD)
def test_bad_numbers_are_refused_by_name_and_value(call, field, value):
    text = "list" if isinstance(value, list) else repr(value)  # a list may be data
    with pytest.raises(ValueError, match=rf"^{field} must be .*; got {re.escape(text)}"):
        call(**{field: value})


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([1.0, np.nan], "r must be finite in every entry; it has"),
        ([np.inf, 1.0], "r must be finite in every entry; it has"),
        (["1"], "r must be an array of numbers; got str"),
        ([True], "r must be an array of numbers; got bool"),
        ([1.0 + 0j], "r must be an array of numbers; got complex128"),
        ([None], "r must be an array of numbers; got object"),
        (np.ma.masked_array([1.0, 2.0], mask=[False, True]), "r must be .*; got a MaskedArray"),
    ],
)
def test_arrays_that_are_no_magnitudes_are_refused(numbers, message):
    """One bad number of many would otherwise be released as some magnitude."""
    for mechanism in (ScalarDP.from_epsilon(5.0, 1.0), ScalarRelDP.from_epsilon(5.0, 1.0)):
        with pytest.raises(ValueError, match=f"^{message}"):
            mechanism.privatize(np.asanyarray(numbers))


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_data_that_are_no_numbers_are_refused_by_name(value):
    """And not by value: what is to be privatized is in no text."""
    for call in (SCALAR.privatize, SCALAR.variance):
        with pytest.raises(ValueError, match=r"^r must be a finite number; got a value of type"):
            call(value)
    for norm in (value, -1, -1e-9):
        with pytest.raises(ValueError, match=r"^norm must be a finite number >= 0; got a value of"):
            MECHANISM.expected_squared_error(norm)


def test_integers_too_large_for_a_float_are_refused():
    for call, fields in FIELDS.values():
        for field in fields:
            with pytest.raises(ValueError, match=rf"^{field} must be "):
                call(**{field: 10**400})


@pytest.mark.parametrize("value", ["exact", "", "TIGHT", None, 1, True])
def test_unknown_rules_are_refused(value):
    with pytest.raises(ValueError, match=f"^rule must be one of .*; got {re.escape(repr(value))}"):
        PrivUnit.from_epsilon(10, 1.0, rule=value)
    with pytest.raises(ValueError, match=f"^rule must be one of .*; got {re.escape(repr(value))}"):
        breach_probability(**breach(), rule=value)
    with pytest.raises(ValueError, match=r"^rule must be one of"):
        SeparatedMechanism.from_budget(10, BUDGET, 1.0, rule=value)


def test_parameters_that_carry_nothing_are_refused():
    for nothing in (
        0.0,
        1e-310,
        1e-155,
    ):  # nor what is so near to nothing that no square is a number
        with pytest.raises(ValueError, match="cap_threshold and epsilon_flip must not both be 0"):
            PrivUnit(dim=10, cap_threshold=0.0, epsilon_flip=nothing)


def test_ends_of_the_ranges_are_accepted():
    PrivUnit(dim=2, cap_threshold=0, epsilon_flip=1)
    PrivUnit(dim=np.int64(2), cap_threshold=MAX_THRESHOLD, epsilon_flip=0)
    PrivUnit(dim=10, cap_threshold=np.float32(0.5), epsilon_flip=np.float64(1))
    PrivUnit.from_epsilon(np.int32(10), np.float32(1.0), rule="paper", flip_share=0)
    ScalarDP(epsilon=5e-3, num_bins=1, max_norm=1)
    ScalarDP(epsilon=1, num_bins=2**40, max_norm=np.float32(1))
    breach_probability(epsilon=0, dim_target=4, tolerance=0, prior=0)
    breach_probability(epsilon=0, dim_target=2, tolerance=1, prior=0, rule="tight")


@pytest.mark.parametrize("call", [PrivUnit, ScalarDP, SeparatedBudget, SeparatedMechanism])
def test_constructors_take_keywords_only_and_no_unknown_ones(call):
    with pytest.raises(TypeError):
        call(10, 0.1, 1.0)
    with pytest.raises(TypeError, match="epsilom"):
        call(epsilom=1.0)


# ------------------------------------------------------------------ the checks themselves
def test_number_states_its_range():
    with pytest.raises(ValueError, match=r"^x must be a finite number > 0 and <= 1; got 2$"):
        _validate.number("x", 2, above=0.0, maximum=1.0)
    with pytest.raises(ValueError, match=r"^x must be a finite number < 1 and >= 0; got 1\.0$"):
        _validate.number("x", 1.0, minimum=0.0, below=1.0)
    with pytest.raises(ValueError, match=r"^n must be an integer >= 1 and <= 3; got 4$"):
        _validate.integer("n", 4, minimum=1, maximum=3)
    with pytest.raises(ValueError, match=r"^n must be an integer >= 1; got 0$"):
        _validate.integer("n", 0, minimum=1)


def test_checks_return_plain_numbers():
    for value in (1, 1.0, np.float32(1.0), np.int64(1)):
        assert type(_validate.number("x", value)) is float
    for value in (1, np.int64(1), np.uint8(1)):
        assert type(_validate.integer("n", value, minimum=1)) is int
    assert _validate.choice("c", "a", ("a", "b")) == "a"


# ------------------------------------------------------------------ arrays
UNIT = random_unit(10)


def with_value(value, dtype=np.float64):
    array = UNIT.astype(dtype)
    array[3] = value
    return array


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (np.ones(9) / 3.0, r"shape \(10,\) or \(n, 10\); got \(9,\)"),
        (random_unit(11), r"got \(11,\)"),
        (np.ones((10, 3)), r"got \(10, 3\)"),
        (UNIT.reshape(1, 1, 10), r"got \(1, 1, 10\)"),
        (np.array(1.0), r"got \(\)"),
        (np.empty(0), r"got \(0,\)"),
        (np.eye(10, dtype=np.int64)[0], "float32 or float64; got int64"),
        (np.eye(10, dtype=bool)[0], "got bool"),
        (UNIT.astype(np.float16), "got float16"),
        (UNIT.astype(np.complex128), "got complex128"),
        (UNIT.astype(object), "got object"),
        (list(UNIT), "got list"),
        (None, "got NoneType"),
        (UNIT * 1.06, "norm 1 .*; 1 of 1 have not: divide"),
        (UNIT * 0.94, "1 of 1 have not"),
        (np.zeros(10), "1 of 1 have not"),
        (np.stack([UNIT, UNIT * 2]), "1 of 2 have not"),
        (with_value(NAN), "1 of 1 have not"),
        (with_value(NAN, np.float32), "1 of 1 have not"),
        (np.stack([UNIT, with_value(NAN)]), "1 of 2 have not"),
        (UNIT * 1e300, "1 of 1 have not"),
        (with_value(INF), "1 of 1 have not"),
        (with_value(-INF), "1 of 1 have not"),
    ],
)
def test_bad_unit_vectors_are_refused(unit, message):
    with pytest.raises(ValueError, match=f"^unit must have .*{message}|^unit must be .*{message}"):
        PrivUnit.from_epsilon(10, 1.0).privatize(unit, seeded_generator(70))


def test_masked_arrays_are_refused():
    """What is masked would be released with the rest."""
    with pytest.raises(ValueError, match="got MaskedArray"):
        PrivUnit.from_epsilon(10, 1.0).privatize(np.ma.masked_array(UNIT, mask=UNIT > 0))


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_parameters_are_computed_with_in_double_precision(kind):
    """Whatever type the caller's numbers have; losses in float16 would be under-reported."""
    ten, tenth = kind(10.0), kind(0.1)
    for mechanism, same in (
        (
            PrivUnit(dim=np.int32(50), cap_threshold=tenth, epsilon_flip=ten),
            PrivUnit(dim=50, cap_threshold=float(tenth), epsilon_flip=10.0),
        ),
        (
            PrivUnitInfinity(dim=50, agreement_threshold=np.int8(4), epsilon_flip=ten),
            PrivUnitInfinity(dim=50, agreement_threshold=4, epsilon_flip=10.0),
        ),
        (
            ScalarDP(epsilon=ten, num_bins=np.uint8(29), max_norm=tenth),
            ScalarDP(epsilon=10.0, num_bins=29, max_norm=float(tenth)),
        ),
    ):
        assert repr(mechanism) == repr(same)
        assert type(mechanism.epsilon) is float
        assert mechanism.epsilon == same.epsilon


def test_outputs_beyond_the_dtype_are_refused():
    unit = np.eye(3, dtype=np.float32)[0]
    with pytest.raises(ValueError, match="unit must be float64 at this budget"):
        PrivUnit.from_epsilon(3, 1e-40).privatize(unit)
    mechanism = SeparatedMechanism.from_budget(3, BUDGET, 3e38)
    with pytest.raises(ValueError, match="update must be float64 at this budget"):
        mechanism.privatize(unit)
    assert np.all(np.isfinite(mechanism.privatize(unit.astype(np.float64), seeded_generator(1))))


def test_nearly_unit_vectors_are_normalised():
    mechanism = PrivUnit.from_epsilon(10, 1.0)
    expected = mechanism.privatize(UNIT, seeded_generator(71))
    for factor in (0.9991, 1.0009):
        output = mechanism.privatize(factor * UNIT, seeded_generator(71))
        np.testing.assert_allclose(output, expected, rtol=1e-12)
        assert np.linalg.norm(output) == pytest.approx(mechanism.scale, rel=1e-12)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (np.ones(9), r"shape \(10,\) or \(n, 10\); got \(9,\)"),
        (np.ones((10, 1)), r"got \(10, 1\)"),
        (np.array(1.0), r"got \(\)"),
        ([1.0] * 10, "got list"),
        (None, "got NoneType"),
        (np.ones(10, np.int32), "float32 or float64; got int32"),
        (np.ones(10, np.float16), "got float16"),
        (np.ones(10, bool), "got bool"),
        (with_value(NAN), "finite"),
        (with_value(NAN, np.float32), "finite"),
        (with_value(INF), "finite"),
        (with_value(-INF, np.float32), "finite"),
        (np.full(10, NAN), "finite"),
        (np.array([1e300, NAN] * 5), "finite"),
        (np.array([INF, -INF] * 5), "finite"),
        (np.array([0.0, NAN] * 5), "finite"),
    ],
)
def test_bad_updates_are_refused(update, message):
    with pytest.raises(ValueError, match=f"^update must (be|have) .*{message}"):
        MECHANISM.privatize(update, seeded_generator(72))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("index", [0, 35_000, 69_999])
def test_one_bad_value_among_many_is_found(index, value, dtype):
    update = np.ones(70_000, dtype)
    update[index] = value
    mechanism = SeparatedMechanism.from_budget(70_000, BUDGET, 1.0)
    with pytest.raises(ValueError, match=r"^update must be finite"):
        mechanism.privatize(update, seeded_generator(73))


def test_a_refused_array_draws_nothing():
    rng = seeded_generator(74)
    with pytest.raises(ValueError, match="finite"):
        MECHANISM.privatize(with_value(NAN), rng)
    with pytest.raises(ValueError, match="norm 1"):
        PrivUnit.from_epsilon(10, 1.0).privatize(np.stack([UNIT, UNIT * 2]), rng)
    np.testing.assert_array_equal(rng.bits(4), seeded_generator(74).bits(4))


# ------------------------------------------------------------------ numbers that are equal on paper
@pytest.mark.parametrize("terms", [["0.1", "0.2"], ["0.1"] * 3, ["4.2"] * 10, ["0.7", "0.1"]])
@pytest.mark.parametrize("scale", ["1", "1e-9", "1e9", "0.37"])
def test_sums_of_decimals_keep_to_their_sum(terms, scale):
    """However they are added up, and no sum by more than four units in the last place."""
    numbers = [float(Decimal(term) * Decimal(scale)) for term in terms]
    limit = float(sum(map(Decimal, terms)) * Decimal(scale))
    assert _validate.within(math.fsum(numbers), limit)
    assert not _validate.within(limit + 5 * math.ulp(limit), limit)


def test_random_decimals_keep_to_their_sum_and_to_their_product():
    """Some of them would not without the allowance, by either rule."""
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(2000):
        cents = rng.integers(1, 1000, size=rng.integers(2, 40))
        total = math.fsum(float(Decimal(int(c)) / 100) for c in cents)
        limit = float(Decimal(int(cents.sum())) / 100)
        product = float(Decimal(int(cents[0])) / 100) * float(Decimal(int(cents[1])) / 1000)
        exact = float(Decimal(int(cents[0] * cents[1])) / 100_000)
        assert _validate.within(total, limit)
        assert _validate.within(product, exact)
        above += (total > limit) + (product > exact)
    assert above > 200


@pytest.mark.parametrize(
    ("value", "limit", "is_within"),
    [(NAN, 1.0, False), (1.0, NAN, False), (1.0, INF, True), (INF, 1.0, False), (0.0, 0.0, True)],
)
def test_what_is_not_finite_keeps_to_nothing(value, limit, is_within):
    assert _validate.within(value, limit) == is_within


def test_numbers_that_differ_never_look_equal():
    assert _validate.apart(0.3, 10.0) == ["0.3", "10"]
    assert _validate.apart(0.3, 0.3000001, 0.3) == ["0.3", "0.3000001", "0.3"]
    assert _validate.apart(0.3, 0.1 + 0.2) == ["0.29999999999999999", "0.30000000000000004"]
    assert _validate.apart(1.0, 1.0) == ["1", "1"]
    assert _validate.apart(1.2344, 1.2341, digits=3) == ["1.2344", "1.2341"]
    with pytest.raises(ValueError, match=r"x must be .* <= 0\.1234567; got 0\.123457"):
        _validate.number("x", 0.123457, maximum=0.1234567)
