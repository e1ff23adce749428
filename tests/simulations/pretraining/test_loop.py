"""The loop of pretraining, and the file that says what it does."""

import csv
import math
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from simulations.pretraining.loop import pretrain
from simulations.pretraining.settings import _DEFAULTS, PretrainSettings
from simulations.tasks import DataSettings, ModelSettings
from tests.messages import default_run_config

CONF = Path(__file__).resolve().parents[3] / "simulations" / "conf"


def line(network, settings, output, scores=None):
    """Fit y = 2 x - 1; `scores` are what evaluations return in turn, in place of the truth."""
    inputs = torch.linspace(-1, 1, 20)[:, None]

    def loss(network, inputs, targets):
        return ((network(inputs) - targets) ** 2).mean()

    def batch(rng):
        rows = torch.from_numpy(rng.integers(20, settings.batch_size).astype("int64"))
        return inputs[rows], 2.0 * inputs[rows] - 1.0

    def evaluate():
        assert not network.training
        error = float(loss(network, inputs, 2.0 * inputs - 1.0).detach())
        return {"accuracy": -error if scores is None else scores.pop(0), "loss": error}

    return pretrain(
        network, batch=batch, evaluate=evaluate, settings=settings, output=output, loss=loss
    )


def settings(**changes):
    config = {"task": "toy", "steps": 300, "learning-rate": 0.05, "evaluate-every": 50}
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    return PretrainSettings.from_config(config | changed)


def test_it_learns_and_says_so(tmp_path, capsys):
    network = nn.Linear(1, 1)
    best = line(network, settings(), tmp_path)
    assert best["loss"] < 1e-3
    assert float(network.weight.detach()) == pytest.approx(2.0, abs=0.1)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [50, 100, 150, 200, 250, 300]
    assert float(rows[-1]["training-loss"]) < float(rows[0]["training-loss"])
    assert "[300/300] training loss" in capsys.readouterr().out


def test_the_best_weights_are_kept(tmp_path):
    """The second of three evaluations says that it is the best: those weights come back."""
    torch.manual_seed(3)
    networks = [nn.Linear(1, 1), nn.Linear(1, 1)]
    networks[1].load_state_dict(networks[0].state_dict())
    few = settings(steps=100, evaluate_every=40)
    best = line(networks[0], few, tmp_path, scores=[0.1, 0.9, 0.5])
    assert best["step"] == 80
    last = line(networks[1], few, tmp_path, scores=[0.1, 0.2, 0.5])
    assert last["step"] == 100
    assert best["loss"] != last["loss"]
    assert not torch.equal(networks[0].weight, networks[1].weight)


def test_the_seed_decides_the_batches(tmp_path):
    def trained(seed):
        torch.manual_seed(0)
        network = nn.Linear(1, 1)
        line(network, settings(steps=20, batch_size=4, seed=seed), tmp_path)
        return float(network.weight.detach())

    assert trained(1) == trained(1) != trained(2)


def test_a_loss_that_is_no_number_ends_it(tmp_path):
    with pytest.raises(FloatingPointError, match="lower learning-rate, which is 1e"):
        line(nn.Linear(1, 1), settings(learning_rate=1e30), tmp_path)


# ------------------------------------------------------------------ the file
def write(folder, **keys):
    import tomli_w

    path = folder / "pretrain.toml"
    path.write_text(tomli_w.dumps({"task": "toy", "steps": 5, **keys}))
    return path


def test_a_file_is_read(tmp_path):
    read = PretrainSettings.from_file(write(tmp_path))
    assert read == PretrainSettings.from_config({"task": "toy", "steps": 5})
    assert (read.task, read.steps, read.batch_size, read.learning_rate) == ("toy", 5, 64, 1e-3)
    assert read.data == DataSettings()
    assert read.model == ModelSettings()
    path = write(tmp_path, **{"data-dir": "a", "model-width": 64, "vocabulary-size": 10})
    read = PretrainSettings.from_file(path)
    assert read.data == DataSettings(folder=Path("a"))
    assert read.model == ModelSettings(width=64, vocabulary_size=10)


def test_defaults_are_those_of_a_run():
    """The keys that a run config has as well mean the same there."""
    run = default_run_config()
    for key in {
        "data",
        "data-dir",
        "download",
        "image-size",
        "seed",
        "model-width",
        "sequence-length",
    }:
        assert _DEFAULTS[key] == run[key]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"steps": 0}, "steps must be"),
        ({"steps": "5"}, "steps must be"),
        ({"learning-rate": math.nan}, "learning-rate must be"),
        ({"batch-size": 0}, "batch-size must be"),
        ({"evaluate-every": True}, "evaluate-every must be"),
        ({"batchsize": 5}, "a key of the file must be one of .* got 'batchsize'"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        PretrainSettings.from_file(write(tmp_path, **keys))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none.toml"):
        PretrainSettings.from_file(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(CONF.rglob("pretrain*.toml")), ids=lambda p: p.parent.name)
def test_files_of_this_repository_are_read(path):
    read = PretrainSettings.from_file(path)
    assert read.task == tomllib.loads(path.read_text())["task"] == path.parent.name
