"""What can be known from the server's message and the settings is known before the app trains."""

import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from flwr_sdp import SeparatedBudget, SeparatedMechanism, npy, secure_generator
from flwr_sdp.clients import DeviceLedger, SeparatedDPMod, UpdateLayout, privatize_update
from flwr_sdp.clients.testing import context, message
from flwr_sdp.released import Selection
from tests.messages import client_app, reply_with

BUDGET = SeparatedBudget(epsilon_direction=30.0, epsilon_magnitude=10.0)
DTYPES = ("float16", "bfloat16", "float32", "float64", ">f4", "longdouble")


def array(numbers, dtype="float32"):
    """Return numbers as they are sent."""
    if dtype != "bfloat16":
        return Array(np.asarray(numbers, dtype=dtype))
    numbers = np.asarray(numbers, np.float32)
    # The numbers of this test have no more digits; NaN and infinities keep theirs.
    stored = (np.ascontiguousarray(numbers).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return Array("bfloat16", numbers.shape, "numpy.ndarray", npy.write(stored, numbers.shape))


def ask(model, max_norm=2.0, budget=BUDGET, **options):
    """Return the reply of a device, and how often its app was asked."""
    calls = []

    def train(asked, _context):
        calls.append(1)
        return reply_with(asked, asked.content["arrays"])

    app = client_app(SeparatedDPMod(budget, max_norm, **options), train)
    return app(message({"arrays": ArrayRecord(model)}), context()), len(calls)


def assert_refused(answer, *texts):
    reply, calls = answer
    assert reply.has_error()
    assert calls == 0
    for text in texts:
        assert text in reply.error.reason


# ------------------------------------------------------------------ a model that is not finite
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_model_that_is_not_finite_is_the_servers_fault(dtype, value, order, tmp_path):
    """One number in 63; refused by the array's name, and neither trained nor charged."""
    numbers = np.full((9, 7), 1.5, order=order)
    numbers[8, 5] = value
    model = {"good": array([0.25, 0.5]), "head.bias-4711": array(numbers, dtype)}
    ledger = DeviceLedger(tmp_path / "ledger.db")
    for options in ({"ledger": ledger}, {}):
        answer = ask(model, **options)
        assert_refused(answer, "the server's model is not finite", "'head.bias-4711'")
        assert "'good'" not in answer[0].error.reason
        assert "1.5" not in answer[0].error.reason
    assert not ledger.path.exists() or ledger.entries() == []
    numbers[8, 5] = 0.0
    reply, calls = ask(model | {"head.bias-4711": array(numbers, dtype)})
    assert reply.has_content(), reply.error
    assert calls == 1


def test_a_number_that_is_infinite_only_in_the_update_is_not_finite():
    """A long double may be beyond the float64 that is computed with."""
    big = np.array(["1e400", "1"], dtype=np.longdouble)
    if not np.isfinite(big[0]):
        pytest.skip("long doubles are doubles here")
    assert_refused(ask({"w": Array(big)}), "the server's model is not finite")


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_array_may_have_nan_in_it(dtype):
    """Also one that is not trained: no update comes out of a model that computes with it."""
    trunk = array([1.0, np.nan, 2.0], dtype)
    model = {"trunk.w": trunk, "w": array([1.0, 2.0, 3.0]), "whole": Array(np.arange(3))}
    assert_refused(ask(model, trainable=["w"]), "array 'trunk.w'", "Mend the model at the server")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_that_is_excluded_may_be_infinite(dtype):
    mask = array(np.triu(np.full((3, 3), -np.inf), 1), dtype)
    model = {"mask": mask, "w": array([1.0, 2.0, 3.0])}
    assert_refused(ask(model), "array 'mask'", "exclude the array if it is a mask")
    for options in ({"excluded": ["mask"]}, {"trainable": ["w"]}):
        reply, calls = ask(model, **options)
        assert reply.has_content(), reply.error
        assert reply.content["arrays"]["mask"].data == mask.data
        assert calls == 1


@pytest.mark.parametrize("wrong", ["first", "second"])
def test_tied_arrays_are_checked_under_both_names(wrong):
    model = {"first": array([1.0, 2.0]), "second": array([1.0, 2.0])}
    model[wrong] = array([1.0, np.nan])
    assert_refused(ask(model, tied={"second": "first"}), f"array {wrong!r}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("where", [0, 2**18 - 1, 2**18, 3 * 2**18])
def test_the_check_goes_piece_by_piece(dtype, where):
    """Up to the last number, in less than 4 MiB whatever the model's size."""
    numbers = np.zeros(3 * 2**18 + 1)
    good, numbers[where] = array(numbers, dtype), np.nan
    bad = array(numbers, dtype)
    tracemalloc.start()
    found = [npy.is_finite(each, np.float32) for each in (good, bad)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [True, False]
    assert peak < 4 * 2**20


# ------------------------------------------------------------------ norms that do not fit the dtype
def test_reports_that_the_weights_swallow_are_refused(tmp_path):
    """Added to 1, half of the step between its neighbours is nothing; what is not, is answered."""
    ledger = DeviceLedger(tmp_path / "ledger.db")
    longest = SeparatedMechanism.from_budget(64, BUDGET, 1.0).max_output_norm
    for dtype, step in (
        ("float16", 2e-4),
        ("bfloat16", 1e-3),
        ("float32", 2e-8),
        ("float64", 4e-17),
    ):
        ones = {"w": array(np.ones(64), dtype), "empty": array(np.zeros(0), dtype)}
        assert_refused(ask(ones, step / longest, ledger=ledger), "carry nothing", "max_norm")
        assert not ask(ones, 10.0 * step / longest)[0].has_error()
        small = {"w": array(np.append(np.ones(63), 0.0), dtype)}
        assert not ask(small, step / longest)[0].has_error()
    assert not ledger.path.exists()


@pytest.mark.parametrize(
    ("dtype", "max_norm", "text"),
    [
        ("float32", 2e38, "float32 has no room for"),
        ("bfloat16", 2e38, "float32 has no room for"),
        ("float64", 1e308, "max_norm must keep"),
        ("float16", 1e6, "float16 has no room for"),
        ("float32", 1e-46, "nothing"),
        ("bfloat16", 1e-42, "nothing"),
        ("float16", 1e-9, "carry nothing"),
        ("float64", 5e-324, "max_norm"),
    ],
)
def test_norms_that_the_dtype_cannot_express_are_refused(dtype, max_norm, text, tmp_path):
    """The app used to train each time, and the reply to be withheld or to carry nothing."""
    ledger = DeviceLedger(tmp_path / "ledger.db")
    assert_refused(ask({"w": array(np.zeros(64), dtype)}, max_norm, ledger=ledger), text)
    if dtype != "bfloat16" and (dtype, max_norm) != ("float16", 1e6):  # where it is clipped
        with pytest.raises(ValueError, match=text):
            privatize_update([np.zeros(64, dtype)], budget=BUDGET, max_norm=max_norm)
    assert not ledger.path.exists() or ledger.entries() == []


@pytest.mark.parametrize(
    ("dtype", "max_norm"),
    [
        *[(dtype, norm) for dtype in ("float32", "float64", "bfloat16") for norm in (1e-30, 1e36)],
        *[("float16", norm) for norm in (1e-5, 1e4)],
    ],
)
def test_norms_that_it_can_express_are_not(dtype, max_norm):
    """And the report is not the model that was received."""
    model = {"w": array(np.zeros(64), dtype)}
    reply, _ = ask(model, max_norm)
    assert reply.has_content(), reply.error
    assert reply.content["arrays"]["w"].data != model["w"].data


def test_an_array_without_numbers_has_no_say():
    model = {"w": array(np.zeros(64)), "none": array(np.zeros((0, 3)), "float16")}
    assert ask(model, 1e10)[0].has_content()


def test_the_layout_says_so_itself():
    layout = UpdateLayout.of(ArrayRecord({"w": array([1.0, np.inf])}), Selection())
    with pytest.raises(ValueError, match="array 'w' has an infinite number or a NaN"):
        layout.check(1.0)


# ------------------------------------------------------------------ the generator
def test_a_generator_in_place_of_what_returns_one_is_refused_at_once():
    with pytest.raises(ValueError, match="rng must be callable, and return a generator; got Key"):
        SeparatedDPMod(BUDGET, 1.0, rng=secure_generator())


def test_a_generator_that_fails_trains_nothing():
    def fails():
        raise RuntimeError("out of memory")

    assert_refused(ask({"w": array(np.zeros(4))}, rng=fails), "withheld its reply")
