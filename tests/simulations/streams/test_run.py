"""A whole run: files, progress, exit status, and that processes change nothing."""

import csv
import json
import multiprocessing
import os
import signal
import time
import tomllib
from pathlib import Path

import pytest

from flwr_sdp.cli.results.stream_figures import plot_streams
from simulations.config_reader import read_toml
from simulations.streams import run
from simulations.streams.outcome import write
from simulations.streams.processes import run_jobs

CONF = Path(__file__).resolve().parents[3] / "simulations" / "conf"

TINY = {
    "logistic": {
        "num-users": 60, "trials": 3, "dim": 5, "signal": 2.0, "records": 6, "epsilons": [5.0],
    },
    "sparse": {
        "num-users": 30, "trials": 3, "dim": 60, "held-out": 100, "records": 6,
        "epsilons": [50.0], "methods": ["cube-separated", "none-mirror"],
    },
}  # fmt: skip


def runfile(folder, task, /, **changes):
    """Write a tiny run file; TOML writes numbers, texts and lists as JSON does."""
    config = tomllib.loads((CONF / task / "smoke.toml").read_text()) | TINY[task] | changes
    path = folder / f"{task}.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    return path


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=["logistic", "sparse"])
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    path = runfile(folder, request.param)
    status = run.main([str(path), str(folder / "two"), "--processes", "2"])
    return request.param, status, folder, path


def test_files_are_tidy_and_complete(finished):
    task, status, folder, _ = finished
    assert status == 0
    assert {path.name for path in (folder / "two").iterdir()} == {
        "results.csv",
        "averaged.csv",
        "facts.json",
    }
    found = rows(folder / "two" / "results.csv")
    assert list(found[0]) == [
        "task", "method", "epsilon", "trial", "iteration",
        "gap", "error", "average_gap", "average_error",
    ]  # fmt: skip
    assert {row["task"] for row in found} == {task}
    keys = [(row["method"], row["epsilon"], row["trial"], row["iteration"]) for row in found]
    assert len(set(keys)) == len(keys)
    levels = {key[:2] for key in keys}
    assert len(keys) == len(levels) * 3 * 7
    averaged = rows(folder / "two" / "averaged.csv")
    assert {row["method"] for row in averaged} - {method for method, _ in levels} == (
        {"mle"} if task == "logistic" else set()
    )
    last = {key[:3]: row for key, row in zip(keys, found, strict=True)}
    for row in averaged:
        if row["method"] != "mle":
            end = last[row["method"], row["epsilon"], row["trial"]]
            assert row["error"] == end["average_error"]
            assert row["gap"] == end["average_gap"]


def test_facts_say_what_was_run(finished):
    task, _, folder, _ = finished
    facts = json.loads((folder / "two" / "facts.json").read_text())
    assert facts["task"] == task
    assert facts["processes"] == 2
    assert facts["settings"]["trials"] == 3
    for level in facts["levels"]:
        if level["epsilon"] is not None:
            assert level["exact_epsilon"] == pytest.approx(level["epsilon"])
            assert level["scale"] > 0.99


def test_processes_change_nothing(finished):
    """The same as of all parts in this process, one after the other."""
    task, _, folder, path = finished
    study = run.read_study(read_toml(path))
    write(folder / "one", task, [job() for job in study.jobs()], study.facts())
    for name in ("results.csv", "averaged.csv"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()


def test_picture_is_drawn_from_the_tables(finished):
    from matplotlib import image

    task, _, folder, _ = finished
    (picture,) = plot_streams(folder / "two")
    assert picture.name == f"{task}.png"
    height, width = image.imread(picture).shape[:2]
    assert 1000 < width < 2500
    assert 500 < height < 1200


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("logistic", {"dim": 0}, "streams: dim must be an integer >= 2; got 0\n"),
        ("sparse", {"held-out": -1}, "streams: held-out must be an integer >= 1; got -1\n"),
        ("logistic", {"task": "digits"}, "streams: task must be one of 'logistic', 'sparse'; "),
        ("logistic", {"engine": "ray"}, "streams: engine must be one of 'stream'; got 'ray'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(task, changes, message, tmp_path, capsys):
    path = runfile(tmp_path, task, **changes)
    assert run.main([str(path), str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_mistake_found_in_a_process_is_told(tmp_path, capsys):
    path = runfile(tmp_path, "logistic", dim=50)  # 60 users cannot fix 50 coordinates
    assert run.main([str(path), str(tmp_path / "out"), "--processes", "1"]) == 2
    assert "streams: num-users must be larger" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_files_and_processes_are_checked(tmp_path, capsys):
    assert run.main([str(tmp_path / "none.toml"), str(tmp_path)]) == 2
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("dim = ")
    assert run.main([str(tmp_path / "bad.toml"), str(tmp_path)]) == 2
    assert "bad.toml is not valid TOML" in capsys.readouterr().err
    path = runfile(tmp_path, "logistic")
    assert run.main([str(path), str(tmp_path / "out"), "--processes", "0"]) == 2
    assert "--processes must be an integer >= 1; got 0" in capsys.readouterr().err


def test_a_table_of_something_else_is_refused(tmp_path):
    (tmp_path / "results.csv").write_text("task,method,iteration\ndigits,private,0\n")
    with pytest.raises(ValueError, match=r"task must be 'logistic' or 'sparse' .*got \['digits'\]"):
        plot_streams(tmp_path)


class Fails:
    """A part of a study that has a mistake in it."""

    def __call__(self):
        raise ArithmeticError("a mistake")


class IsKilled:
    """A part of a study that runs out of memory."""

    def __call__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class TakesLong:
    """A part of a study that takes long."""

    def __call__(self):
        time.sleep(600)


@pytest.mark.parametrize(
    ("job", "error", "message"),
    [
        (Fails, ArithmeticError, "a mistake"),
        (IsKilled, RuntimeError, "ended with status -9 before its part was done"),
    ],
)
def test_a_process_that_fails_takes_the_others_along(job, error, message):
    start = time.monotonic()
    with pytest.raises(error, match=message):
        list(run_jobs([TakesLong(), job()], processes=2))
    assert time.monotonic() - start < 60
    assert multiprocessing.active_children() == []
