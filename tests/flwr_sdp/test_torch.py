"""Torch tensors: the same mechanisms, through the same memory or on the device itself.

An accelerator draws whole rows with its own generator. That path needs no accelerator to be tested:
it runs on tensors in host memory too, and on ``meta`` tensors, which have no values, so that
whatever waits for a value fails. The tests marked so run on a real one where there is one.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from flwr_sdp import (
    PrivUnit,
    PrivUnitInfinity,
    SeparatedBudget,
    SeparatedMechanism,
    seeded_generator,
)
from flwr_sdp import arrays as arrays_module
from flwr_sdp.direction import draw_on_device
from flwr_sdp.randomness import as_generator
from tests.statistics_helpers import (
    DotLaw,
    assert_detects,
    assert_follows,
    assert_frequency,
    assert_mean_close,
    random_unit,
)

torch = pytest.importorskip("torch")

DTYPES = [torch.float32, torch.float64]
BUDGET = SeparatedBudget(epsilon_direction=10.0, epsilon_magnitude=5.0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def mechanisms(dim=10):
    return [
        (PrivUnit.from_epsilon(dim, 8.0), random_unit(dim)),
        (PrivUnitInfinity.from_epsilon(dim, 8.0), 0.9 * random_unit(dim)),
        (SeparatedMechanism.from_budget(dim, BUDGET, 2.0), 1.5 * random_unit(dim)),
    ]


each_mechanism = pytest.mark.parametrize(
    ("mechanism", "x"), mechanisms(), ids=lambda value: type(value).__name__
)


# ------------------------------------------------------------------ through host memory
@pytest.mark.parametrize("dtype", DTYPES)
@each_mechanism
def test_tensors_and_arrays_give_the_same_bits(mechanism, x, dtype):
    tensor = torch.tensor(x, dtype=dtype)
    before = tensor.clone()
    output = mechanism.privatize(tensor, seeded_generator(90))
    expected = mechanism.privatize(tensor.numpy(), seeded_generator(90))
    assert isinstance(output, torch.Tensor)
    assert output.dtype is dtype
    assert output.shape == tensor.shape
    np.testing.assert_array_equal(output.numpy(), expected)
    assert torch.equal(tensor, before)
    assert output.data_ptr() != tensor.data_ptr()


@each_mechanism
def test_layout_and_gradients_do_not_matter(mechanism, x):
    rows = torch.tensor(np.stack([x, x]))
    expected = mechanism.privatize(rows, seeded_generator(91))
    strided = torch.zeros(2, 20, dtype=torch.float64)[:, ::2].copy_(rows)
    for same in (strided, rows.t().contiguous().t(), rows.clone().requires_grad_()):
        output = mechanism.privatize(same, seeded_generator(91))
        assert torch.equal(output, expected)
        assert not output.requires_grad


@each_mechanism
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.complex64])
def test_other_types_are_refused(mechanism, x, dtype):
    with pytest.raises(ValueError, match=f"float32 or float64; got {str(dtype)[6:]}"):
        mechanism.privatize(torch.zeros(10).to(dtype))


@each_mechanism
def test_sparse_tensors_are_refused(mechanism, x):
    with pytest.raises(ValueError, match=r"must be a dense tensor; got torch.sparse_coo"):
        mechanism.privatize(torch.tensor(x).to_sparse())


@each_mechanism
def test_views_that_are_negated_are_read_as_they_are(mechanism, x):
    negated = torch.imag(torch.complex(torch.zeros(10).double(), -torch.tensor(x)).conj())
    assert negated.is_neg()
    expected = mechanism.privatize(torch.tensor(x), seeded_generator(94))
    assert torch.equal(mechanism.privatize(negated, seeded_generator(94)), expected)


@each_mechanism
def test_other_shapes_are_refused(mechanism, x):
    with pytest.raises(ValueError, match=r"shape \(10,\) or \(n, 10\); got \(11,\)"):
        mechanism.privatize(torch.ones(11))


def test_bad_values_are_refused():
    for (mechanism, _), message in zip(
        mechanisms(), ["must have norm 1", "coordinate: clip it", "must be finite"], strict=True
    ):
        with pytest.raises(ValueError, match=message):
            mechanism.privatize(torch.full((10,), float("nan")))


# ------------------------------------------------------------------ generators of torch
@each_mechanism
def test_a_torch_generator_keys_a_stream_and_moves_on(mechanism, x):
    for given in (torch.tensor(x), x):
        rng, again = (torch.Generator().manual_seed(5) for _ in range(2))
        first, second = mechanism.privatize(given, rng), mechanism.privatize(given, rng)
        assert np.array_equal(first, mechanism.privatize(given, again))
        assert not np.array_equal(first, second)
        assert not np.array_equal(first, mechanism.privatize(given))


def test_a_torch_generator_is_not_secure():
    assert not as_generator(torch.Generator().manual_seed(1)).is_secure
    first, second = (as_generator(torch.Generator().manual_seed(seed)).bits(2) for seed in (1, 2))
    assert not np.array_equal(first, second)


# ------------------------------------------------------------------ on the device
def on_device(mechanism, rows, seed=0):
    """Run what an accelerator runs, on the host."""
    rng = torch.Generator().manual_seed(seed)
    if isinstance(mechanism, PrivUnitInfinity):
        return mechanism._draw_on_device(rows, as_generator(rng), rng)
    norms, lengths = torch.linalg.vector_norm(rows, dim=1), np.full(len(rows), mechanism.scale)
    return mechanism.draw_on_device(rows, norms, lengths, rng)


def check_directions(mechanism, outputs, unit):
    norms = np.linalg.norm(outputs, axis=1)
    np.testing.assert_allclose(norms, mechanism.scale, rtol=3e-6)
    dots = outputs @ unit
    assert_follows(dots / mechanism.scale, DotLaw.of(mechanism).cdf)
    assert_mean_close(outputs, unit)
    probe = random_unit(len(unit), seed=1)
    for _ in range(2):
        probe -= (probe @ unit) * unit
        probe /= np.linalg.norm(probe)
    rest = outputs - np.outer(dots, unit)
    cosines = rest @ probe / np.linalg.norm(rest, axis=1)
    if len(unit) > 2:
        assert_follows(cosines, DotLaw(len(unit) - 1).uniform_cdf)
    else:
        assert_frequency(np.count_nonzero(cosines > 0), len(cosines), 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 3, 10, 64, 65, 500])
def test_directions_on_the_device(dim, dtype):
    """4,000 outputs: laws of the dot product and of the rest, mean; false alarms: 1e-6 to 3e-4.

    The mutants are 5 % longer, and turned against the input.
    """
    mechanism = PrivUnit.from_epsilon(dim, max(6.0, dim / 20))
    unit = random_unit(dim)
    rows = torch.tensor(unit, dtype=dtype).expand(4000, dim)
    outputs = on_device(mechanism, rows.contiguous(), seed=dim).double().numpy()
    check_directions(mechanism, outputs, unit)
    assert_detects(check_directions, mechanism, 1.05 * outputs, unit)
    assert_detects(check_directions, mechanism, -outputs, unit)


def test_one_long_row_on_the_device():
    mechanism = PrivUnit.from_epsilon(300_000, 200.0)
    unit = random_unit(mechanism.dim, dtype=np.float32)
    output = on_device(mechanism, torch.tensor(unit)[None])[0].double().numpy()
    assert np.linalg.norm(output) == pytest.approx(mechanism.scale, rel=1e-5)
    assert output @ unit / mechanism.scale >= mechanism.cap_threshold - 1e-6


def test_zero_rows_on_the_device():
    """1,500 pairs of rows: KS tests of a zero row's first and last coordinate; false alarms: 1e-6.

    The last axis stands in the place of a zero row, at any angle. The mutants lose it, and have the
    law of the other rows.
    """
    dim, unit = 6, random_unit(6)
    rows = torch.tensor(np.tile(np.stack([np.zeros(dim), unit]), (1500, 1)))
    norms, lengths = np.tile([0.0, 1.0], 1500), np.full(3000, -2.0)
    mechanism, rng = PrivUnit.from_epsilon(dim, 3.0), torch.Generator().manual_seed(4)
    outputs = mechanism.draw_on_device(rows, norms, lengths, rng).numpy() / -2.0
    np.testing.assert_allclose(np.linalg.norm(outputs, axis=1), 1.0, rtol=1e-12)
    law = DotLaw(dim, mechanism.cap_threshold, mechanism.epsilon_flip)
    assert_mean_close(outputs[1::2] @ unit, law.mean)

    def check(lost):
        for coordinate in (lost[:, 0], lost[:, -1]):
            assert_follows(coordinate, DotLaw(dim).uniform_cdf)

    check(outputs[::2])
    assert_detects(check, outputs[::2] * (np.arange(dim) < dim - 1))
    assert_detects(check, outputs[1::2])


def test_noise_of_zeros_is_drawn_again_on_the_device(monkeypatch):
    normal, calls = torch.Tensor.normal_, []

    def zeros_at_first(self, **options):
        calls.append(1)
        return self.zero_() if len(calls) == 1 else normal(self, **options)

    monkeypatch.setattr(torch.Tensor, "normal_", zeros_at_first)
    rows, one = torch.tensor([[0.0, 2.0]]), np.ones(1)
    out = draw_on_device(rows, 2.0 * one, 0.6 * one, one, torch.Generator().manual_seed(1))
    np.testing.assert_allclose(out.norm(), 1.0, rtol=1e-6)
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_corners_on_the_device(dtype):
    """4,000 outputs: coordinates, their mean, and how many agree; false alarms: 1e-5."""
    mechanism = PrivUnitInfinity.from_epsilon(11, 8.0)
    x = np.linspace(-1.0, 1.0, 11)
    rows = torch.tensor(x, dtype=dtype).expand(4000, 11).contiguous()

    def check(outputs):
        np.testing.assert_allclose(np.abs(outputs), mechanism.scale, rtol=1e-6)
        assert_mean_close(outputs, x, variance=mechanism.scale**2 - x**2)

    outputs = on_device(mechanism, rows).double().numpy()
    check(outputs)
    assert_detects(check, -outputs)
    assert_detects(check, np.roll(outputs, 1, axis=1))
    corners = rows.sign() + (rows == 0)
    agreeing = on_device(mechanism, corners, seed=2) * corners > 0
    inside = agreeing.sum(dim=1).numpy() >= mechanism.min_matches
    assert_frequency(np.count_nonzero(inside), 4000, mechanism.cap_probability)


def test_nothing_waits_for_the_device():
    """A meta tensor has no values: to ask for one fails."""
    rows = torch.empty(3, 500, device="meta")
    rng, one = torch.Generator(device="cpu"), np.ones(3)
    # A generator of the meta device does not exist; the default one takes its place.
    out = draw_on_device(rows, torch.empty(3, device="meta"), 0.5 * one, one, None)
    assert out.shape == rows.shape
    cube = PrivUnitInfinity.from_epsilon(500, 20.0)
    assert cube._draw_on_device(rows, as_generator(rng), None).shape == rows.shape
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(out.sum())


def test_which_tensors_are_drawn_on_the_device():
    draws_on_device, rng = arrays_module.draws_on_device, torch.Generator()
    assert not draws_on_device(torch.ones(3), rng)
    assert not draws_on_device(np.ones(3), rng)
    assert not draws_on_device(torch.ones(3, device="meta"), rng)
    assert not draws_on_device(torch.ones(3, device="meta"), None)


def test_an_accelerator_and_its_generator_go_together(monkeypatch):
    """With stand-ins for what no machine without an accelerator has."""

    class Stand:
        def __init__(self, kind):
            self.device = SimpleNamespace(type=kind)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Stand, Generator=Stand))
    draws_on_device = arrays_module.draws_on_device
    assert draws_on_device(Stand("cuda"), Stand("cuda"))
    assert not draws_on_device(Stand("cuda"), Stand("cpu"))
    assert not draws_on_device(Stand("cpu"), Stand("cpu"))
    assert not draws_on_device(Stand("cuda"), None)


@pytest.mark.parametrize("dim", [3, 64, 65])
def test_bad_rows_on_the_device_come_to_an_end(dim):
    rows, one = torch.full((2, dim), float("nan")), np.ones(2)
    norms = torch.linalg.vector_norm(rows, dim=1)
    out = draw_on_device(rows, norms, 0.5 * one, one, torch.Generator())
    assert torch.isnan(out).all()


def test_core_works_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    mechanism, unit = mechanisms()[0]
    assert mechanism.privatize(unit).shape == (10,)
    with pytest.raises(ValueError, match="got Tensor float32"):
        mechanism.privatize(torch.ones(10))


# ------------------------------------------------------------------ a real accelerator
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_gpu(dtype):
    for mechanism, x in mechanisms(65):
        tensor = torch.tensor(x, dtype=dtype, device="cuda")
        for rng in (None, seeded_generator(92), torch.Generator("cuda").manual_seed(1)):
            output = mechanism.privatize(tensor, rng)
            assert output.device == tensor.device
            assert output.dtype is dtype
            assert torch.isfinite(output).all()
        seeded = mechanism.privatize(tensor, seeded_generator(93)).cpu().numpy()
        expected = mechanism.privatize(tensor.cpu().numpy(), seeded_generator(93))
        np.testing.assert_array_equal(seeded, expected)


@needs_gpu
def test_directions_on_a_gpu():
    """As on the host; and no call in between waits for the device."""
    mechanism = PrivUnit.from_epsilon(500, 25.0)
    unit = random_unit(500)
    rows = torch.tensor(unit, dtype=torch.float32, device="cuda").expand(4000, 500).contiguous()
    outputs = mechanism.privatize(rows, torch.Generator("cuda").manual_seed(2))
    check_directions(mechanism, outputs.double().cpu().numpy(), unit)
    norms, lengths = torch.linalg.vector_norm(rows, dim=1), np.full(4000, mechanism.scale)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mechanism.draw_on_device(rows, norms, lengths, torch.Generator("cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
