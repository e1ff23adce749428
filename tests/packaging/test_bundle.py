"""What ``flwr build`` puts into the bundle that goes to the server and to every device."""

import csv
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging.work_tree import copy_work_tree

LIMIT = 1_000_000  # bytes of a bundle

# What may lie around in the folder of an app. Flower takes text files of many kinds when it is not
# told what to take, and refuses to build when one that git does not ignore lies too deep.
LEFTOVERS = [
    "runs/first/metrics.json",
    "runs/first/report.md",
    "runs/first/checkpoint/model.npz",
    "runs/first/accuracy.png",
    "weights/mnist/weights.npz",
    "weights/mnist/training.json",
    "data.csv",
    "data/train.jsonl",
    "data/train.npz",
    "notes.md",
    "try_out.py",
    "build/lib/flwr_sdp/privunit.py",
    ".venv/lib/python3.11/site-packages/torch/__init__.py",
    "{package}/data/cache/train.json",
    "{package}/data/cache/train.npz",
    "{package}/accuracy.png",
    "{package}/mine.toml",
    "{package}/__pycache__/settings.py",
]
# Ray, in environments in a clone of this repository that go by other names than .venv.
RAY = "lib/python3.11/site-packages/ray/rllib/examples/envs/classes/multi_agent/footsies/game"
DEEP_LEFTOVERS = [f"{name}/{RAY}/proto/__init__.py" for name in ("venv", "env")]


def command_environment(home):
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    environment.pop("PYTHONPATH", None)
    return environment


def build(app, folder):
    """Run ``flwr build`` for an app, and return the bundle."""
    folder.mkdir()
    done = subprocess.run(
        [Path(sys.executable).with_name("flwr"), "build", "--app", app],
        cwd=folder,
        env=command_environment(folder / "home"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [bundle] = folder.glob("*.fab")
    return bundle


def leave_files(app, package, names):
    """Write files where there are none, so large that two of them make a bundle too large."""
    for name in names:
        path = app / name.format(package=package)
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(LIMIT // 2))


@pytest.mark.parametrize(
    ("folder", "package", "leftovers"),
    [
        (".", "simulations", LEFTOVERS + DEEP_LEFTOVERS),
        ("docs/examples/logistic", "logistic", LEFTOVERS),
    ],
    ids=["simulations", "logistic"],
)
def test_bundle_holds_the_modules_of_the_app_and_nothing_else(tmp_path, folder, package, leftovers):
    app = copy_work_tree(tmp_path) / folder
    modules = {path.relative_to(app).as_posix() for path in (app / package).rglob("*.py")}
    assert f"{package}/server_app.py" in modules
    leave_files(app, package, leftovers)
    bundle = build(app, tmp_path / "built")
    with zipfile.ZipFile(bundle) as archive:
        assert set(archive.namelist()) == {"pyproject.toml", ".info/CONTENT"} | modules
    assert bundle.stat().st_size < LIMIT


def test_default_task_trains_from_its_bundle_alone(tmp_path):
    """Nothing that the app reads is left behind: one round, in a process that has no work tree."""
    pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")
    app = tmp_path / "app"
    shutil.unpack_archive(build(copy_work_tree(tmp_path), tmp_path / "built"), app, "zip")
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    results = tmp_path / "results"
    results.mkdir()
    config |= {"num-clients": 4, "num-server-rounds": 1, "output-dir": str(results)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "simulations.engine", tmp_path / "config.json"],
        cwd=app,
        env=command_environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    with (results / "metrics.csv").open(newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "1"]
