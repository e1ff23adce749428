"""The sparse study: its settings, and who wins in a small version of it."""

import dataclasses
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

from simulations.streams.sparse import METHODS, OPEN, PRIVATE, Level, Sparse
from tests.statistics_helpers import assert_detects

CONF = Path(__file__).resolve().parents[3] / "simulations" / "conf" / "sparse"
PAPER = tomllib.loads((CONF / "paper.toml").read_text())
KEYS = [key for key in PAPER if key not in ("engine", "task")]


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.stem)
def test_run_files_are_valid_and_start_with_a_comment(path):
    settings = Sparse.from_config(tomllib.loads(path.read_text()))
    assert path.read_text().startswith("# ")
    assert settings.dim > settings.num_users
    assert settings.methods == METHODS


def test_there_is_a_field_for_every_key():
    assert {field.name.replace("_", "-") for field in dataclasses.fields(Sparse)} == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_missing_key_is_named(key):
    with pytest.raises(ValueError, match=rf"^{key} is missing from the run file: see conf/sparse/"):
        Sparse.from_config({name: value for name, value in PAPER.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("stepsize", 1, "unknown key 'stepsize' in the run file: there are .*stepsize-factors"),
        ("sparsity", 2001, "sparsity must be an integer >= 1 and <= 2000; got 2001"),
        ("l1-radius", -1.0, "l1-radius must be .*got -1.0"),
        ("epsilons", [100.0, 10.0], "every one of epsilons must be .*> 10; got 10.0"),
        ("methods", ["l2"], "every one of methods must be one of 'cube-separated'.*got 'l2'"),
        ("methods", ["none-mirror"] * 2, "methods must not name one twice"),
        ("methods", "none-mirror", "methods must be a list of one or more entries"),
        ("stepsize-factors", [0.0], "every one of stepsize-factors must be .*got 0.0"),
        ("tuning-trials", 0, "tuning-trials must be an integer >= 1; got 0"),
        ("held-out", True, "held-out must be an integer .*got True"),
        ("task", "logistic", "task must be one of 'sparse'; got 'logistic'"),
    ],
)
def test_bad_value_is_named(key, value, message):
    with pytest.raises(ValueError, match=message):
        Sparse.from_config(PAPER | {key: value})


@pytest.mark.parametrize("epsilon", PAPER["epsilons"])
def test_every_private_method_spends_the_same_budget(epsilon):
    settings = Sparse.from_config(PAPER)
    for method in PRIVATE:
        assert settings.release(method, epsilon).epsilon == pytest.approx(epsilon, rel=1e-9)
        assert settings.release(method, epsilon).epsilon <= epsilon * (1 + 1e-15)
    for method in OPEN:
        assert settings.release(method, math.inf).epsilon == math.inf


def test_truths_are_sparse_and_of_the_radius():
    settings = Sparse.from_config(PAPER)
    truths = settings.truths("test", range(30))
    np.testing.assert_array_equal(np.count_nonzero(truths, axis=1), settings.sparsity)
    np.testing.assert_allclose(np.abs(truths).sum(axis=1), settings.l1_radius)
    assert len({tuple(np.flatnonzero(truth)) for truth in truths}) > 25
    signs = np.sign(truths[truths != 0])
    assert 0.3 < np.mean(signs > 0) < 0.7
    assert not np.array_equal(truths, settings.truths("other", range(30)))


SMALL = Sparse.from_config(
    PAPER
    | {
        "dim": 300,
        "num-users": 200,
        "sparsity": 2,
        "l1-radius": 4.0,
        "trials": 28,
        "tuning-trials": 3,
        "stepsize-factors": [0.0625, 0.25, 1.0],
        "held-out": 2_000,
        "records": 2,
    }
)


def test_who_wins_with_more_coordinates_than_users():
    """d = 300, 200 users, epsilon = 0.7 d, 28 paired trials; 3 standard errors, 2e-3 false alarms.

    The cube beats the sphere under the same optimiser, and by far gradient descent, and Algorithm 2
    on the gradient itself. With its budget cut to a sixth the cube no longer does.
    """
    epsilon = 0.7 * SMALL.dim
    gaps = {method: Level(SMALL, method, epsilon)().gap for method in PRIVATE}

    def assert_wins(winner, loser):
        difference = loser - winner
        assert difference.mean() > 3.0 * difference.std(ddof=1) / math.sqrt(len(difference))

    for other in ("sphere-mirror", "sphere-euclidean", "cube-rounded"):
        assert_wins(gaps["cube-separated"], gaps[other])
    poor = Level(SMALL, "cube-separated", epsilon / 6)().gap
    for other in ("sphere-mirror", "sphere-euclidean"):
        assert_detects(assert_wins, poor, gaps[other])


def test_tuning_is_told_and_uses_other_users():
    settings = dataclasses.replace(SMALL, num_users=20, trials=3)
    outcome = Level(settings, "none-mirror", math.inf)()
    assert len(outcome.facts["tuning_gaps"]) == 3
    best = int(np.argmin(outcome.facts["tuning_gaps"]))
    assert outcome.facts["stepsize_factor"] == settings.stepsize_factors[best]
    assert outcome.facts["stepsize_is_at_an_end"] == (best != 1)
    tuning, reported = (
        settings.truths(purpose, range(3)) for purpose in ("sparse tuning", "sparse")
    )
    assert not np.array_equal(tuning, reported)
