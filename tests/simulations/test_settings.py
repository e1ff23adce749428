"""The run config, checked."""

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest

from simulations.settings import Settings
from tests.messages import default_run_config

CONF = Path(__file__).resolve().parents[2] / "simulations" / "conf"
DEFAULTS = default_run_config()

FLAGS = ["baseline", "download", "fail-fast", "resume"]
CHOICES = {
    "partition": "fresh",
    "local-optimizer": "adam",
    "server-optimizer": "fedadam",
    "sdp-rule": "paper",
}
TEXTS = ["task", "output-dir", "data", "data-dir", "weights", "trained-part", *CHOICES]
COUNTS = [
    "num-clients",
    "num-server-rounds",
    "seed",
    "num-nodes",
    "examples-per-client",
    "evaluate-every",
    "local-steps",
    "local-batch-size",
    "average-from",
    "projected-population",
    "checkpoint-keep",
    "sdp-cohort-size",
    "image-size",
    "model-width",
    "vocabulary-size",
    "sequence-length",
    "adapter-rank",
]
NUMBERS = [key for key in DEFAULTS if key not in [*FLAGS, *TEXTS, *COUNTS]]
ZERO_MEANS_NONE = {
    "sdp-clip-norm": "clip_norm",
    "sdp-max-epsilon": "max_epsilon",
    "projected-population": "projected_population",
    "sdp-cohort-size": "cohort_size",
    "average-from": "average_from",
}
ZERO_MEANS_NONE_FOR_THE_TASK = {
    "examples-per-client": lambda task: task.examples_per_client,
    "local-batch-size": lambda task: task.training.batch_size,
    "proximal-stepsize": lambda task: task.training.proximal_stepsize,
    "model-width": lambda task: task.model.width,
    "vocabulary-size": lambda task: task.model.vocabulary_size,
}
MAY_BE_ZERO = [
    *ZERO_MEANS_NONE,
    *ZERO_MEANS_NONE_FOR_THE_TASK,
    "sdp-noise-multiplier",
    "server-momentum",
]


def settings(**changes):
    return Settings.from_run_config(DEFAULTS | changes)


def test_defaults_are_valid():
    parsed = settings()
    assert parsed.task == "digits"
    assert parsed.budget.total == 60.0
    assert parsed.output_dir is None
    assert parsed.clip_norm is parsed.max_epsilon is None


@pytest.mark.parametrize("key", list(DEFAULTS))
def test_missing_key_is_named(key):
    with pytest.raises(ValueError, match=rf"^{key} is missing from the run config"):
        Settings.from_run_config({name: DEFAULTS[name] for name in DEFAULTS if name != key})


def other(key):
    value = DEFAULTS[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value / 2 if isinstance(value, float) and value else value + 1
    return CHOICES.get(key, "other")


@pytest.mark.parametrize("key", list(DEFAULTS))
def test_every_key_is_read(key):
    assert settings(**{key: other(key)}) != settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in NUMBERS for value in [-1, math.nan, math.inf, "5", True]),
        *((key, value) for key in COUNTS for value in [-1, 1.5, math.nan, "5", True]),
        *((key, value) for key in FLAGS for value in [0, 1, "true", None]),
        *((key, value) for key in TEXTS for value in [0, True, None]),
        *(
            (key, 0)
            for key in ["num-clients", "num-server-rounds", "local-steps", "evaluate-every"]
        ),
        *((key, 0.0) for key in NUMBERS if key not in MAY_BE_ZERO),
        ("sdp-sampling-rate", 1.01),
        ("sdp-delta", 1.0),
        ("projected-delta", 1.0),
        ("num-nodes", DEFAULTS["num-clients"] + 1),
        ("server-momentum", 1.0),
        *((key, "other") for key in CHOICES),
    ],
)
def test_bad_value_is_named(key, value):
    with pytest.raises(ValueError, match=rf"^{key} must be .*got {value!r}$"):
        settings(**{key: value})


@pytest.mark.parametrize("key", list(ZERO_MEANS_NONE))
def test_zero_means_none(key):
    zero = 0 if key in COUNTS else 0.0
    assert getattr(settings(**{key: zero}), ZERO_MEANS_NONE[key]) is None
    assert getattr(settings(**{key: 7}), ZERO_MEANS_NONE[key]) == 7


@pytest.mark.parametrize("key", list(ZERO_MEANS_NONE_FOR_THE_TASK))
def test_zero_means_none_for_the_task(key):
    zero, read = DEFAULTS[key] * 0, ZERO_MEANS_NONE_FOR_THE_TASK[key]
    assert read(settings(**{key: zero}).task_settings) is None
    assert read(settings(**{key: zero + 7}).task_settings) == 7


def test_no_nodes_means_one_for_each_client():
    assert settings(**{"num-nodes": 0}).num_nodes == DEFAULTS["num-clients"]
    assert settings(**{"num-nodes": 3}).num_nodes == 3


def test_noise_may_be_zero():
    assert settings(**{"sdp-noise-multiplier": 0.0}).noise_multiplier == 0.0


def test_whole_numbers_stand_for_floats():
    parsed = settings(**{"sdp-epsilon-direction": 50, "sdp-max-norm": 5})
    assert parsed.budget.epsilon_direction == 50.0
    assert isinstance(parsed.max_norm, float)


def test_output_folder_is_a_path():
    assert settings(**{"output-dir": "runs/x"}).output_dir == Path("runs/x")


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().seed = 1


LAUNCHER_KEYS = {"trials", "engine", "sweep"}
RUN_FILES = sorted(
    path
    for path in CONF.glob("**/*.toml")
    if "audit" not in path.parts
    and not path.stem.startswith("pretrain")
    and tomllib.loads(path.read_text()).get("engine") != "stream"
)


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_run_files_set_known_keys_to_valid_values(path):
    config = tomllib.loads(path.read_text())
    sweep = config.get("sweep", {})
    config = {key: value for key, value in config.items() if key not in LAUNCHER_KEYS}
    assert set(config) | set(sweep) <= set(DEFAULTS)
    assert not set(config) & set(sweep)
    assert settings(**config).task == config["task"]
    for key, values in sweep.items():
        for value in values:
            assert settings(**config, **{key: value})


def test_there_are_run_files():
    assert RUN_FILES
