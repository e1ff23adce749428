"""The run file of an audit: what is refused, by name."""

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest

from simulations.audit.settings import Settings

CONF = Path(__file__).resolve().parents[3] / "simulations" / "conf" / "audit"
DEFAULT = tomllib.loads((CONF / "digits.toml").read_text())


def config(**changes):
    """Return the default run file with keys changed; ``linear_trials`` stands for its section's."""
    changed = {key: dict(v) if isinstance(v, dict) else v for key, v in DEFAULT.items()}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            changed[section][name] = value
        else:
            changed[key] = value
    return changed


def keys():
    for key, value in DEFAULT.items():
        yield from (f"{key}.{name}" for name in value) if isinstance(value, dict) else (key,)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.stem)
def test_run_files_are_valid(path):
    assert Settings.read(path).task == "digits"


def test_there_is_a_field_for_every_key():
    fields = {field.name for field in dataclasses.fields(Settings)}
    assert {key.replace(".", "_").replace("-", "_") for key in keys()} == fields
    settings = Settings.from_config(DEFAULT)
    assert settings.words_batch_size == 200
    assert settings.epsilon_directions == (5000.0, 500.0, 50.0)


@pytest.mark.parametrize("key", list(keys()))
def test_missing_key_is_named(key):
    section, _, name = key.partition(".")
    changed = config()
    if name:
        del changed[section][name]
    else:
        del changed[key]
    with pytest.raises(ValueError, match=rf"^{key} is missing from the run file: see conf/audit/"):
        Settings.from_config(changed)


@pytest.mark.parametrize("key", ["sedd", "linear.trails", "epsilons"])
def test_unknown_key_is_named_with_those_there_are(key):
    with pytest.raises(ValueError, match=rf"unknown key '{key}' .*there are .*linear\.trials"):
        Settings.from_config(config(**{key: 1}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("task", "faces", "task must be one of 'digits'; got 'faces'"),
        ("seed", -1, "seed must be an integer >= 0; got -1"),
        ("confidence", 1.0, "confidence must be a finite number < 1 and >= 0.5; got 1.0"),
        ("epsilon-directions", [], "epsilon-directions must be a list of one or more entries"),
        ("epsilon-directions", 50.0, "epsilon-directions must be a list of .*got 50.0"),
        ("epsilon-directions", [5.0, 0.0], "every one of epsilon-directions must be .*got 0.0"),
        ("words.epsilons", ["5"], "every one of words.epsilons must be .*got '5'"),
        ("tolerance", 1.0, "tolerance must be .*got 1.0"),
        ("max-norm", math.nan, "max-norm must be a finite number > 0; got nan"),
        ("linear.trials", 1698, "linear.trials must be an integer >= 1 and <= 1697; got 1698"),
        ("inversion.steps", 0, "inversion.steps must be an integer >= 1; got 0"),
        ("confined.trials", 1698, "confined.trials must be an integer >= 2 and <= 1697; got 1698"),
        ("confined.reports", 1, "confined.reports must be an integer >= 2; got 1"),
        ("low-frequency.dim-target", 65, "low-frequency.dim-target must be .*<= 64; got 65"),
        ("words.dictionary-size", 200, "words.dictionary-size must be an integer >= 201; got 200"),
        ("words.precision", 0, "words.precision must be .*got 0"),
        ("distinguish.outputs", 2.5, "distinguish.outputs must be an integer >= 4; got 2.5"),
        ("picture.rows", True, "picture.rows must be an integer .*got True"),
        ("linear", 5, "linear.trials is missing"),
    ],
)
def test_bad_value_is_named(key, value, message):
    with pytest.raises(ValueError, match=message):
        Settings.from_config(config(**{key: value}))


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*missing.toml: No such file"):
        Settings.read(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("seed = ")
    with pytest.raises(ValueError, match=r"bad.toml is not valid TOML"):
        Settings.read(tmp_path / "bad.toml")
