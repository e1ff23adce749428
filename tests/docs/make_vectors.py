"""Write ``docs/vectors/client.json``: run it when the specification changes.

python tests/docs/make_vectors.py
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from flwr_sdp import PrivUnit, ScalarDP, SeparatedMechanism, direction, randomness
from flwr_sdp.randomness import KeystreamGenerator, seeded_generator

PATH = Path(__file__).parents[2] / "docs" / "vectors" / "client.json"


class Recorder(KeystreamGenerator):
    """A generator that keeps what it gave out, under the names of the specification."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key, secure=False)
        self.key = key
        self.draws: list[dict[str, Any]] = []
        self._inside = False

    def _keep(self, kind: str, values: Any) -> Any:
        self.draws.append({"kind": kind, "values": np.asarray(values).tolist()})
        return values

    def uniforms(self, count):
        return self._keep("uniform", super().uniforms(count))

    def log_uniforms(self, count):
        return self._keep("log_uniform", super().log_uniforms(count))

    def integers(self, high, count):
        return self._keep("integer", super().integers(high, count))

    def fill_normal(self, out):
        outermost, self._inside = not self._inside, True  # an odd count asks for two more inside
        super().fill_normal(out)
        if outermost:
            self._inside = False
            self._keep("normal", out)

    def fill_sphere(self, out, radius):
        super().fill_sphere(out, radius)
        circle, logs = self._last_pairs
        self._keep("normal", circle * np.sqrt(-2.0 * np.tile(logs, 2)))

    def _pairs(self, out, form):
        logs = super()._pairs(out, form)
        self._last_pairs = out.copy(), logs.copy()
        return logs

    def spawn(self, count):
        children = []
        for _ in range(count):
            child = Recorder(self.bits(4).tobytes())
            child.draws = self.draws
            children.append(child)
        return children


class Given(KeystreamGenerator):
    """A generator of given words."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(bytes(32), secure=False)
        self._words = iter(words)

    def _keystream(self, buffer, count):
        return np.array(list(itertools.islice(self._words, count)), dtype=np.uint64)


# What the words of a key hardly ever lead to: the words, what is made of them, and why.
GIVEN = (
    ([0, 0, 2**62, 5], "log_uniforms", "high words of 0"),
    ([2**64 - 1, 5, 2**64 - 2], "integers_below_3", "a word that is drawn again"),
    ([2**63 + 1000, 2**61 + 1, 2**62], "normals_64", "a radius word below 2^27"),
    ([2**32 * (2**29 + 1) + 1000, 2**62], "normals_32", "a radius word below 2^11"),
    ([2**63 - 12345, 2**64 - 2**61], "normals_64", "u near 1"),
    ([2**32 * (2**32 - 2**29) + 2**31 - 7], "normals_32", "u near 1"),
)
NUMBERS = {
    "log_uniforms": lambda stream: stream.log_uniforms(1),
    "integers_below_3": lambda stream: stream.integers(3, 1),
    "normals_64": lambda stream: stream.normal(2),
    "normals_32": lambda stream: stream.normal(2, np.float32),
}

# Coordinates in steps of the grid, ties among them.
STEPS = (-2.5, -1.75, -1.5, 0.25, 0.5, 0.75, 1.5, 2.5)


def key_of(name: str) -> bytes:
    """Return the key of a case's stream."""
    return seeded_generator(0, "vectors", name).bits(4).tobytes()


def record(name: str, call: Any, **fields: Any) -> dict[str, Any]:
    """Return one case: its stream's key, what it drew, and what came out."""
    rng = Recorder(key_of(name))
    output = np.asarray(call(rng)).tolist()
    return {"name": name, "key": rng.key.hex(), **fields, "draws": rng.draws, "output": output}


def grid_of(length: float, dim: int, dtype: Any) -> float:
    (grid,) = direction.grid_of(np.array([length]), dim, dtype)
    return float(grid)


def rounded(steps: float) -> float:
    """Return what a coordinate of so many steps of a grid of 1 becomes."""
    out = np.array([steps])
    direction._round(out, 1.0)
    return float(out[0])


def grid(length: float, vector: np.ndarray) -> float:
    """Return of what the coordinates of an output of this length are multiples."""
    return grid_of(length, vector.size, vector.dtype)


def grid_of_report(mechanism: SeparatedMechanism, name: str, update: np.ndarray) -> float:
    """Return the same for a report, whose magnitude is drawn first."""
    rng = KeystreamGenerator(key_of(name), secure=False)
    norm = min(float(np.linalg.norm(update.astype(np.float64))), mechanism.magnitude.max_norm)
    return grid(mechanism.direction.scale * mechanism.magnitude.privatize(norm, rng), update)


def direction_fields(mechanism: PrivUnit, dtype: Any, block: int) -> dict[str, Any]:
    return {
        "cap_threshold": mechanism.cap_threshold,
        "epsilon_flip": mechanism.epsilon_flip,
        "wide_cap": bool(mechanism._cap.log_probability > math.log(0.15)),
        "scale": mechanism.scale,
        "epsilon": mechanism.epsilon,
        "bits": 8 * np.dtype(dtype).itemsize,
        "noise_bits": 8 * np.dtype(direction.noise_dtype(mechanism.dim, dtype)).itemsize,
        "block": block,
    }


def unit_vector(dim: int) -> np.ndarray:
    vector = np.cos(1.0 + np.arange(dim))
    return vector / np.linalg.norm(vector)


def narrow_cases() -> list[dict[str, Any]]:
    """Return reports of a cap whose first trial inside is rejected, one for each dot product."""
    mechanism = PrivUnit(dim=17, cap_threshold=0.5, epsilon_flip=0.5)
    whole = SeparatedMechanism(direction=mechanism, magnitude=ScalarDP.from_epsilon(4.0, 2.0))
    cases = []
    for what in ("inside", "outside", "anywhere"):
        update = (what != "anywhere") * 1.5 * unit_vector(17)
        for i in itertools.count():
            case = report(f"report narrow 17 float64 {what} {i}", whole, update, 524_288)
            kinds = [draw["kind"] for draw in case["draws"]]
            (coin,) = case["draws"][3]["values"]
            is_inside = not coin < -0.5 - math.log1p(math.exp(-0.5))
            if kinds[6:8] == ["log_uniform", "uniform"] and is_inside == (what != "outside"):
                cases.append(case)
                break
    return cases


def report(name: str, whole: SeparatedMechanism, update: np.ndarray, block: int) -> dict[str, Any]:
    return record(
        name,
        lambda rng: whole.privatize(update, rng),
        **direction_fields(whole.direction, update.dtype, block),
        epsilon_magnitude=whole.magnitude.epsilon,
        num_bins=whole.magnitude.num_bins,
        max_norm=2.0,
        update=update.tolist(),
        grid=grid_of_report(whole, name, update),
    )


def make() -> dict[str, Any]:
    """Return all cases."""
    stream = seeded_generator(7, "report", 3)
    numbers = {
        "seed": 7,
        "key": ["report", 3],
        "words": [str(word) for word in stream.bits(4)],
        "uniforms": stream.uniforms(3).tolist(),
        "log_uniforms": stream.log_uniforms(3).tolist(),
        "integers_below_1000": stream.integers(1000, 3).tolist(),
        "bernoullis_of_log_odds_1": stream.bernoullis(1.0, 8).tolist(),
        "normals_64": stream.normal(5).tolist(),
        "normals_32": stream.normal(5, np.float32).tolist(),
        "word_of_first_spawned": str(stream.spawn(2)[0].bits(1)[0]),
        "next_word": str(stream.bits(1)[0]),
        "other_key": ["\u00e9", -12],
        "word_of_other_key": str(seeded_generator(7, "\u00e9", -12).bits(1)[0]),
        "of_given_words": [
            {
                "name": name,
                "words": list(map(str, words)),
                kind: NUMBERS[kind](Given(words)).tolist(),
            }
            for words, kind, name in GIVEN
        ],
    }
    grids = [
        [length, dim, 8 * np.dtype(dtype).itemsize, grid_of(length, dim, dtype)]
        for length in (-3.0, 0.5, 1.0, 1e-44, 1e-322)
        for dim in (2, 65536, 65537, 131072, 131073, 262145, 2**20)
        for dtype in (np.float32, np.float64)
    ]
    roundings = [[steps, rounded(steps)] for steps in STEPS]
    magnitudes = [
        record(
            f"magnitude {scalar.epsilon:g} {r:g} {i}",
            lambda rng, scalar=scalar, r=r: scalar.privatize(r, rng),
            epsilon=scalar.epsilon,
            num_bins=scalar.num_bins,
            max_norm=scalar.max_norm,
            r=r,
        )
        for scalar in (ScalarDP.from_epsilon(1.0, 5.0), ScalarDP.from_epsilon(10.0, 5.0))
        for r in (0.0, 1.234, 7.0)
        for i in range(2)
    ]
    directions, reports = [], []
    # The last three are cut at 6 coordinates, as vectors of more than 524,288 are, and the last has
    # noise of 32 bits, as those of more than 65,536 have.
    for dim, epsilon, dtype, block in (
        (2, 3.0, np.float64, 524_288),
        (3, 3.0, np.float64, 524_288),
        (5, 3.0, np.float64, 524_288),
        (5, 20.0, np.float64, 524_288),
        (70, 30.0, np.float64, 524_288),
        (70, 30.0, np.float32, 524_288),
        (17, 6.0, np.float64, 6),
        (30, 15.0, np.float64, 6),
        (23, 8.0, np.float32, 6),
    ):
        mechanism = PrivUnit.from_epsilon(dim, epsilon)
        unit = unit_vector(dim).astype(dtype)
        saved = direction.BLOCK, randomness.BLOCK, direction.WIDE
        direction.BLOCK = randomness.BLOCK = block
        direction.WIDE = min(direction.WIDE, block)
        try:
            for i in range(2):
                directions.append(
                    record(
                        f"direction {dim} {epsilon:g} {np.dtype(dtype)} {i}",
                        lambda rng, m=mechanism, u=unit: m.privatize(u, rng),
                        **direction_fields(mechanism, dtype, block),
                        unit=unit.tolist(),
                        grid=grid(mechanism.scale, unit),
                    )
                )
            product = SeparatedMechanism(
                direction=mechanism, magnitude=ScalarDP.from_epsilon(4.0, 2.0)
            )
            quiet = SeparatedMechanism(
                direction=mechanism, magnitude=ScalarDP.from_epsilon(0.25, 2.0)
            )
            updates = {f"{length:g}": length * unit_vector(dim) for length in (0.0, 1.5, 9.0)}
            if block < dim:
                updates["1.5, first segments zero"] = 1.5 * unit_vector(dim) * (np.arange(dim) > 8)
            cases = [(product, what, values) for what, values in updates.items()]
            # Half of the magnitudes are negative.
            cases += [(quiet, f"0.7, noisy {i}", 0.7 * unit_vector(dim)) for i in range(2)]
            if dim > 5:
                cases.append((product, "ends in -0", np.append(unit_vector(dim - 1), -0.0)))
            for whole, what, values in cases:
                name = f"report {dim} {epsilon:g} {np.dtype(dtype)} {what}"
                reports.append(report(name, whole, values.astype(dtype), block))
        finally:
            direction.BLOCK, randomness.BLOCK, direction.WIDE = saved
    return {
        "specification": "client-spec.md, version 4",
        "numbers": numbers,
        "magnitudes": magnitudes,
        "grids": grids,
        "roundings": roundings,
        "directions": directions,
        "reports": reports + narrow_cases(),
    }


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    lines = json.dumps(make(), indent=1)
    PATH.write_text(lines + "\n", encoding="utf-8")
