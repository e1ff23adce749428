"""The vectors of the specification: the package gives them, and so does a port written from it."""

import inspect
import itertools
import json
import math
import textwrap

import numpy as np
import pytest

from tests.docs import make_vectors, port

VECTORS = json.loads(make_vectors.PATH.read_text(encoding="utf-8"))


def close(bits):
    """Return the tolerances of numbers: libraries differ in the last digits of a logarithm."""
    return {"rel": 2e-5, "abs": 2e-6} if bits == 32 else {"rel": 1e-12, "abs": 1e-12}


def assert_same_output(output, case, path="output"):
    """Check that an output is on its grid, where the case has it or, for its digits, next to it."""
    steps = np.array(output) / case["grid"]
    assert np.all(steps == np.rint(steps)), path
    apart = np.abs(steps - np.array(case["output"]) / case["grid"])
    assert apart.max() <= 1, path
    # Noise of 64 bits is hardly ever so close to the middle between two places.
    assert case["noise_bits"] == 32 or np.count_nonzero(apart) <= 1, path


def same(first, second, path="vectors"):
    """Compare two trees of JSON; numbers up to rounding."""
    if isinstance(first, dict):
        assert first.keys() == second.keys(), path
        tolerances = first.get("noise_bits", 64)
        for key in first:
            if key == "output" and "grid" in second:
                assert_same_output(first[key], second, path)
            elif key == "draws" and tolerances == 32:
                flat = [list(numbers_of(tree[key])) for tree in (first, second)]
                assert flat[0] == pytest.approx(flat[1], **close(32)), path
            else:
                same(first[key], second[key], f"{path}.{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), path
        for i, pair in enumerate(zip(first, second, strict=True)):
            same(*pair, f"{path}[{i}]")
    elif isinstance(first, float):
        loose = 32 if "normals_32" in path else 64
        assert first == pytest.approx(second, **close(loose)), path
    else:
        assert first == second, path


def numbers_of(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from numbers_of(item)
    elif not isinstance(tree, str):
        yield float(tree)


def test_package_gives_the_vectors():
    same(make_vectors.make(), VECTORS)


def test_comparison_notices_a_change():
    wrong = json.loads(json.dumps(VECTORS))
    wrong["reports"][1]["output"][0] *= 1 + 1e-9
    with pytest.raises(AssertionError, match=r"reports\[1\]"):
        same(wrong, VECTORS)


# ------------------------------------------------------------------ the port
def test_port_draws_the_same_numbers():
    numbers = VECTORS["numbers"]
    stream = port.Stream(port.seeded_key(numbers["seed"], *numbers["key"]))
    assert [str(word) for word in stream.words(4)] == numbers["words"]
    assert stream.uniforms(3) == numbers["uniforms"]
    assert stream.log_uniforms(3) == pytest.approx(numbers["log_uniforms"], rel=1e-15)
    assert [stream.integer(1000) for _ in range(3)] == numbers["integers_below_1000"]
    limit = -math.log1p(math.exp(1.0))
    coins = [log_u >= limit for log_u in stream.log_uniforms(8)]
    assert coins == numbers["bernoullis_of_log_odds_1"]
    assert stream.normals(5) == pytest.approx(numbers["normals_64"], **close(64))
    assert stream.normals(5, bits=32) == pytest.approx(numbers["normals_32"], **close(32))
    first, _ = stream.spawn(2)
    assert str(first.words(1)[0]) == numbers["word_of_first_spawned"]
    assert str(stream.words(1)[0]) == numbers["next_word"]


class Given(port.Stream):
    """A stream of given words."""

    def __init__(self, words):
        self._given = iter(map(int, words))

    def words(self, count):
        return list(itertools.islice(self._given, count))


GIVEN = {
    "log_uniforms": lambda stream: stream.log_uniforms(1),
    "integers_below_3": lambda stream: [stream.integer(3)],
    "normals_64": lambda stream: stream.normals(2),
    "normals_32": lambda stream: stream.normals(2, bits=32),
}


def test_port_makes_the_same_of_rare_words():
    numbers = VECTORS["numbers"]
    other = port.Stream(port.seeded_key(numbers["seed"], *numbers["other_key"]))
    assert str(other.words(1)[0]) == numbers["word_of_other_key"]
    for case in numbers["of_given_words"]:
        (kind,) = case.keys() & GIVEN.keys()
        stream = Given(case["words"])
        close_enough = close(32) if kind == "normals_32" else {"rel": 1e-12}
        assert GIVEN[kind](stream) == pytest.approx(case[kind], **close_enough), case["name"]
    assert {kind for case in numbers["of_given_words"] for kind in case} > GIVEN.keys()


def test_port_has_the_grids():
    for length, dim, bits, grid in VECTORS["grids"]:
        assert port.grid_of(length, dim, bits) == grid, (length, dim, bits)
    for steps, rounded in VECTORS["roundings"]:
        assert port.on_grid([steps], 1.0) == [rounded]


def by_name(case):
    return case["name"]


@pytest.mark.parametrize("case", VECTORS["magnitudes"], ids=by_name)
def test_port_gives_the_magnitudes(case):
    stream = port.Stream(bytes.fromhex(case["key"]))
    output = port.scalar_dp(stream, case["epsilon"], case["num_bins"], case["max_norm"], case["r"])
    assert output == pytest.approx(case["output"], rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("case", VECTORS["directions"], ids=by_name)
def test_port_gives_the_directions(case):
    stream = port.Stream(bytes.fromhex(case["key"]))
    output = port.priv_unit(stream, case, case["unit"], case["scale"])
    assert_same_output(output, case)


@pytest.mark.parametrize("case", VECTORS["reports"], ids=by_name)
def test_port_gives_the_reports(case):
    stream = port.Stream(bytes.fromhex(case["key"]))
    output = port.separated(stream, case, case["update"])
    assert_same_output(output, case)


class Replay(port.Stream):
    """A stream without keys: it gives out the recorded draws of a case, in their order."""

    def __init__(self, draws):
        self.draws = iter(draws)

    def take(self, kind, count):
        draw = next(self.draws)
        assert (draw["kind"], len(draw["values"])) == (kind, count)
        return draw["values"]

    def uniforms(self, count):
        return self.take("uniform", count)

    def log_uniforms(self, count):
        return self.take("log_uniform", count)

    def integer(self, high):
        return self.take("integer", 1)[0]

    def normals(self, count, bits=64, block=None):
        return self.take("normal", count)

    def spawn(self, count):
        return [self] * count


@pytest.mark.parametrize("case", VECTORS["reports"] + VECTORS["directions"], ids=by_name)
def test_recorded_draws_can_be_replayed(case):
    """The other way to check a port: with its own secure generator, fed with the draws."""
    stream = Replay(case["draws"])
    if "update" in case:
        output = port.separated(stream, case, case["update"])
    else:
        output = port.priv_unit(stream, case, case["unit"], case["scale"])
    assert_same_output(output, case)
    assert next(stream.draws, None) is None


@pytest.mark.parametrize("case", VECTORS["reports"], ids=by_name)
def test_port_that_does_not_round_is_noticed(case, monkeypatch):
    monkeypatch.setattr(port, "on_grid", lambda numbers, grid: numbers)
    output = port.separated(port.Stream(bytes.fromhex(case["key"])), case, case["update"])
    with pytest.raises(AssertionError):
        assert_same_output(output, case)


@pytest.mark.parametrize("case", VECTORS["directions"], ids=by_name)
def test_width_of_the_cap_follows_from_public_numbers(case):
    wide = case["epsilon"] - case["epsilon_flip"] < math.log(0.85 / 0.15)
    assert wide is case["wide_cap"]


@pytest.mark.parametrize("case", VECTORS["directions"][2:], ids=by_name)
def test_port_with_a_mistake_is_noticed(case, monkeypatch):
    """A port that takes the sines before the cosines."""
    block = port.Stream._normal_block

    def swapped(self, pairs, bits):
        numbers = block(self, pairs, bits)
        return numbers[pairs:] + numbers[:pairs]

    monkeypatch.setattr(port.Stream, "_normal_block", swapped)
    stream = port.Stream(bytes.fromhex(case["key"]))
    output = port.priv_unit(stream, case, case["unit"], case["scale"])
    assert output != pytest.approx(case["output"], rel=1e-3, abs=1e-3)


LAZY = """class Lazy:
        def __getitem__(self, i):
            return (inside, outside, anywhere)[i]()
    return Lazy()"""
# What of the port is another, where, and instead of what.
MUTANTS = {
    "a grid without the dimension": (port.grid_of, "more = max(", "more = 0 * max("),
    "a grid of floor": (port.grid_of, "math.ceil", "math.floor"),
    "a grid of the bits of d": (port.grid_of, "(dim - 1).bit_length", "dim.bit_length"),
    "a grid without an end": (port.grid_of, "max(2.0**exponent,", "max(2.0**exponent, 0.0 *"),
    "truncates": (port.on_grid, "round(number / grid)", "math.trunc(number / grid)"),
    "rounds up": (port.on_grid, "round(number / grid)", "math.ceil(number / grid)"),
    "rounds halves up": (port.on_grid, "round(number / grid)", "math.floor(number / grid + 0.5)"),
    "accepts every trial": (port.dot_products, "[0] * t <= threshold", "[0] * t <= 1"),
    "draws what is needed": (port.dot_products, "return inside(), outside(), anywhere()", LAZY),
    "no dot product for 0": (port.priv_unit, "else dots[2]", "else 0.0"),
    "noise of 32 bits": (port.priv_unit, 'case["noise_bits"]', 'case["bits"]'),
    "-0 is not negative": (port.segment, "k * u[-1]", "k * (u[-1] + 0.0)"),
    "length in letters": (port.seeded_key, "len(encoded)", "len(str(part))"),
    "zeros are forgotten": (port.Stream.log_uniforms, "zeros[i] + 64", "0"),
    "integers are not drawn again": (port.Stream.integer, "> 2**64 - 1 - 2**64 % high", "< 0"),
    "coarse tails": (port.Stream._normal_block, "size[i] < 2 ** (bits // 2 - 5)", "size[i] < 0"),
    "coarse near 1": (port.Stream._normal_block, "rest < 2 ** (bits - 10)", "rest < 0"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_port_are_noticed(name, monkeypatch):
    """By the tables, by the numbers, or by one of the cases at least."""
    function, old, new = MUTANTS[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1
    scope = {}
    exec(source.replace(old, new), port.__dict__, scope)  # noqa: S102
    place = port.Stream if hasattr(port.Stream, function.__name__) else port
    monkeypatch.setattr(place, function.__name__, scope[function.__name__])

    def check():
        test_port_has_the_grids()
        test_port_makes_the_same_of_rare_words()
        for case in VECTORS["reports"]:
            test_port_gives_the_reports(case)

    with pytest.raises(AssertionError):
        check()


def test_vectors_reach_every_branch():
    """Both sides of the cap, wide and narrow caps, segments, both types, ends of the range."""
    directions = VECTORS["directions"]
    dots = [
        np.dot(case["unit"], case["output"]) / case["scale"] - case["cap_threshold"]
        for case in directions
    ]
    assert min(dots) < 0 < max(dots)
    assert {case["wide_cap"] for case in directions} == {True, False}
    assert {case["bits"] for case in directions} == {32, 64}
    long = [case for case in directions if len(case["unit"]) > 2 * case["block"]]
    assert {case["bits"] for case in long} == {32, 64}
    assert {len(case["unit"]) for case in directions} >= {2, 3, 5}
    for bits in (32, 64):
        signs = {np.sign(magnitude_of(case)) for case in VECTORS["reports"] if case["bits"] == bits}
        assert signs >= {-1.0, 1.0}


def magnitude_of(case):
    stream = port.Stream(bytes.fromhex(case["key"]))
    norm = math.hypot(*case["update"])
    fields = (case[name] for name in ("epsilon_magnitude", "num_bins", "max_norm"))
    return port.scalar_dp(stream, *fields, norm)
