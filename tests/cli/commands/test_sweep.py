"""Trials and sweeps, from the call to the results, on an engine that costs nothing."""

import csv
import json
import math
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flwr_sdp.cli.app import app
from flwr_sdp.cli.commands import simulate
from flwr_sdp.cli.engines import follow
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import results_name
from flwr_sdp.cli.results import figure_style
from flwr_sdp.cli.results.curves import finals, gap_curves
from flwr_sdp.cli.results.trials import read_results
from flwr_sdp.strategies.folder_lock import FolderLock
from tests.cli.fake_app import Log, fake_engine, write_app

pytest.importorskip("matplotlib", reason="needs flwr-sdp[simulation]")

ROOT = Path(__file__).resolve().parents[3]
SWEEP = ["--sweep", "sdp-epsilon-direction=100,50", "--trials", "2"]
REPORT = """Privacy report
  unit     one client, over 2 rounds
  local    against whoever sees a report: pure local differential privacy
           a report   epsilon 60: 50 direction, 10 magnitude
           in total   epsilon 120 for a client in every cohort
  central  NONE
  note     a toy
"""
HEAD = ["task", "data", "privacy", "sdp-epsilon-direction", "sdp-rule", "trial", "seed"]


@pytest.fixture
def log(monkeypatch):
    made = Log()
    monkeypatch.setitem(simulate.ENGINES, "local", fake_engine(made))
    monkeypatch.setattr(follow, "_POLL", 0.01)
    return made


@pytest.fixture
def call(tmp_path, log, monkeypatch):
    """Return a function that calls simulate on the toy: exit status, output, folder of the run."""
    config = write_app(tmp_path / "app")
    monkeypatch.setenv("COLUMNS", "100")

    def called(*arguments, config=config):
        start = ["simulate", config, "--engine", "local", "--output", tmp_path / "runs"]
        arguments = [*start, *arguments]
        result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        folders = sorted(
            (tmp_path / "runs" / "toy").iterdir(), key=lambda path: path.stat().st_mtime
        )
        return result.exit_code, result.output, folders[-1]

    return called


@pytest.fixture
def call_json(tmp_path, log):
    """Return a function that calls simulate with --json: exit status, the object, the screen."""
    config = write_app(tmp_path / "app")

    def called(*arguments):
        start = ["simulate", config, "--engine", "local", "--output", tmp_path / "runs", "--json"]
        arguments = [*start, *arguments]
        result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        return result.exit_code, json.loads(result.stdout), result.stderr

    return called


def rows_of(run_dir):
    with (run_dir / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------ layout and results
def test_what_the_engine_foresees_is_said_first(call, log):
    log.warnings = ["too many clients: pass --num-cpus 2"]
    status, output, _ = call("--no-baseline")
    assert status == 0
    warning = "warning: too many clients: pass --num-cpus 2\n"
    assert output.index("results in") < output.index(warning) < output.index("Privacy report")
    log.warnings = []
    assert "warning" not in call("--no-baseline")[1]


def test_a_single_run_lies_where_it_always_did(call, log):
    status, output, run_dir = call("--seed", 5)
    assert status == 0, output
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "accuracy.png",
        "baseline-metrics.csv",
        "baseline-report.json",
        "baseline.log",
        "config.toml",
        "metrics.csv",
        "private.log",
        "report.json",
        "report.txt",
        "results.csv",
    ]
    assert log.started == [("private", 5), ("baseline", 5)]
    assert (log.entered, log.left) == (1, 1)
    assert "private  accuracy 0.8520" in output
    assert "baseline accuracy 0.9520" in output
    assert (run_dir / "report.txt").read_text() == REPORT
    assert f"\n\n{REPORT}" in output
    config = tomllib.loads((run_dir / "config.toml").read_text())
    assert config["seed"] == 5
    assert config["engine"] == "local"


def test_a_sweep_has_a_row_for_each_run_and_round(call, log):
    status, output, run_dir = call(*SWEEP)
    assert status == 0, output
    assert [name for name, _ in log.started] == [
        f"{name}/trial-{trial}"
        for trial in (0, 1)
        for name in ("epsilon-direction=100", "epsilon-direction=50", "baseline")
    ]
    rows = rows_of(run_dir)
    assert list(rows[0]) == [*HEAD, "round", "accuracy", "cdp-epsilon", "averaged-accuracy"]
    assert len(rows) == 6 * 3
    assert {row["data"] for row in rows} == {"toy (stand-in)"}
    facts = [tuple(row[key] for key in HEAD[2:]) for row in rows[::3]]
    assert facts == [
        ("private", "100.0", "tight", "0", "0"),
        ("private", "50.0", "tight", "0", "0"),
        ("none", "", "", "0", "0"),
        ("private", "100.0", "tight", "1", "1"),
        ("private", "50.0", "tight", "1", "1"),
        ("none", "", "", "1", "1"),
    ]
    assert [row["round"] for row in rows[:3]] == ["0", "1", "2"]
    assert rows[1]["accuracy"] == ""
    assert rows[2]["accuracy"] == repr(0.9 - 0.05 + 0.0 + 0.001 * 2)
    assert {path.name for path in run_dir.iterdir() if path.is_file()} == {
        "config.toml",
        "results.csv",
        "gap.png",
        "accuracy.png",
        "frontier.png",
        "box.png",
    }


def test_the_picture_of_one_swept_value_names_it(call, monkeypatch):
    titles = []
    monkeypatch.setattr(
        figure_style, "save", lambda figure, path: titles.append(figure.axes[0].get_title()) or path
    )
    call("--sweep", "sdp-epsilon-direction=100")
    assert titles == ["toy (stand-in), 10 clients: ε₁ = 100, ε₂ = 10 a report"]


def test_every_point_has_its_own_report_and_the_one_that_is_shown_says_whose_it_is(call):
    """What is guaranteed at one point is not at another."""
    _, output, run_dir = call(*SWEEP)
    for epsilon in (100, 50):
        for trial in (0, 1):
            folder = run_dir / f"epsilon-direction={epsilon}" / f"trial-{trial}"
            assert (
                f"epsilon {epsilon + 10}: {epsilon} direction"
                in (folder / "report.txt").read_text()
            )
    assert len(list(run_dir.rglob("report.txt"))) == 4
    shown = "epsilon-direction=100 trial 0, whose guarantee is its own:\nPrivacy report\n"
    assert shown in output
    assert output.count("Privacy report") == 1


def test_the_summary_has_the_accuracy_of_the_averaged_models_where_there_is_one(call):
    _, output, _ = call(*SWEEP)
    assert "averaged" not in output
    _, output, _ = call(*SWEEP, "--set", "average-from=1")
    assert "averaged accuracy" in output
    words = " ".join(output.split())
    assert "0.8570 ± 0.0050 0.8670 ± 0.0050 0.0500 ± 0.0000" in words
    assert "0.9070 ± 0.0050 0.9170 ± 0.0050" in words  # without privacy


def test_the_summary_has_mean_standard_error_and_gap_over_trials(call):
    _, output, run_dir = call(*SWEEP)
    reached = [0.852, 0.862]
    mean, error = statistics.mean(reached), statistics.stdev(reached) / math.sqrt(2)
    (line,) = [line.split() for line in output.splitlines() if line.startswith(" private  100")]
    assert line == [
        *("private", "100", "2"),
        *(f"{mean:.4f}", "±", f"{error:.4f}"),
        *("0.0500", "±", "0.0000"),
        "1",  # central epsilon
    ]
    results = read_results([run_dir])
    assert [len(final.gaps) for final in finals(results)] == [2, 2]
    curve = gap_curves(results)[1]
    assert curve.level[0] == ("sdp-epsilon-direction", "50.0")
    assert curve.rounds == [0, 2]  # the other was not evaluated
    assert curve.mean == pytest.approx([0.102, 0.1])


def test_without_a_baseline_there_is_none(call, log):
    status, output, run_dir = call(*SWEEP, "--no-baseline")
    assert status == 0, output
    assert not (run_dir / "baseline").exists()
    assert len(log.started) == 4
    assert not (run_dir / "gap.png").exists()
    assert {row["privacy"] for row in rows_of(run_dir)} == {"private"}


def test_a_run_file_may_say_it_all(call, log, tmp_path):
    config = tmp_path / "app" / "toy.toml"
    config.write_text(
        'engine = "local"\ntrials = 2\nnum-clients = 3\n[sweep]\nlocal-steps = [1, 5]\n'
    )
    status, output, run_dir = call(config=config)
    assert status == 0, output
    assert [name for name, _ in log.started[2:4]] == [
        "local-steps=1/trial-0",
        "local-steps=5/trial-0",
    ]
    again = tomllib.loads((run_dir / "config.toml").read_text())
    assert (again["trials"], again["sweep"]) == (2, {"local-steps": [1, 5]})
    # Each is compared with the run without privacy of as many local steps.
    assert [final.gaps for final in finals(read_results([run_dir]))] == [
        pytest.approx([0.1, 0.1])
    ] * 2


# ------------------------------------------------------------------ broken off, and resumed
def test_a_run_that_fails_ends_the_sweep_and_what_is_done_stays(call, log):
    log.fail_at = "epsilon-direction=50/trial-0"
    status, output, run_dir = call(*SWEEP)
    assert status == 1
    assert "Kaboom" in output
    assert "ended as exit status 1" in output
    assert "1 of 6 runs are done: go on with --resume" in output
    assert len(log.started) == 2
    assert log.left == 1
    assert {row["sdp-epsilon-direction"] for row in rows_of(run_dir)} == {"100.0"}

    log.fail_at, done = None, len(log.started)
    status, output, again = call(*SWEEP, "--resume", run_dir)
    assert status == 0, output
    assert again == run_dir
    assert [name for name, _ in log.started[done:]] == [
        "epsilon-direction=50/trial-0",
        "baseline/trial-0",
        "epsilon-direction=100/trial-1",
        "epsilon-direction=50/trial-1",
        "baseline/trial-1",
    ]
    assert log.resumed == ["epsilon-direction=50/trial-0"]  # it alone had checkpoints
    assert len(rows_of(run_dir)) == 18


def test_what_is_still_under_way_is_not_resumed_and_nothing_is_written(call, log):
    log.fail_at = "epsilon-direction=50/trial-0"
    _, _, run_dir = call(*SWEEP)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    lock = FolderLock(run_dir / "epsilon-direction=50" / "trial-0" / "checkpoints")
    with pytest.raises(CommandError, match=r"is in use by .*, whose run is not over") as refused:
        call(*SWEEP, "--set", "num-server-rounds=9", "--resume", run_dir)
    assert refused.value.exit_code == 2
    lock.release()
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_an_interrupt_stops_the_run_and_says_where_the_rest_is(call, log):
    log.interrupt_at = "baseline/trial-0"
    with pytest.raises(CommandError, match="stopped: what there is lies in") as caught:
        call(*SWEEP)
    assert caught.value.exit_code == 130
    assert (log.stopped, log.left) == (1, 1)


def test_a_finished_sweep_starts_nothing_and_more_trials_only_those(call, log):
    _, _, run_dir = call(*SWEEP)
    status, output, _ = call(*SWEEP, "--resume", run_dir)
    assert status == 0, output
    assert "6 of 6 runs are done already" in output
    assert (len(log.started), log.entered) == (6, 1)
    status, output, _ = call(*SWEEP[:2], "--trials", 3, "--resume", run_dir)
    assert status == 0, output
    assert log.started[6:] == [
        ("epsilon-direction=100/trial-2", 2),
        ("epsilon-direction=50/trial-2", 2),
        ("baseline/trial-2", 2),
    ]
    assert len(rows_of(run_dir)) == 27


def test_a_sweep_of_more_rounds_runs_again(call, log):
    _, _, run_dir = call(*SWEEP)
    call(*SWEEP, "--set", "fail-fast=false", "--resume", run_dir)
    assert len(log.started) == 6
    status, output, _ = call(*SWEEP, "--set", "num-server-rounds=4", "--resume", run_dir)
    assert status == 0, output
    assert len(log.started) == 12
    assert len(rows_of(run_dir)) == 6 * 5


@pytest.mark.parametrize("setting", ["evaluate-every=2", "round-timeout=90.0"])
def test_what_makes_no_difference_to_a_finished_run_may_change(call, log, setting):
    _, _, run_dir = call(*SWEEP)
    status, output, _ = call(*SWEEP, "--set", setting, "--resume", run_dir)
    assert status == 0, output
    assert len(log.started) == 6


def test_another_limit_of_privacy_is_none_of_the_baselines(call, log):
    _, _, run_dir = call(*SWEEP)
    call(*SWEEP, "--set", "sdp-max-epsilon=3", "--resume", run_dir)
    again = [name for name, _ in log.started[6:]]
    assert again == [
        f"epsilon-direction={epsilon}/trial-{trial}" for trial in (0, 1) for epsilon in (100, 50)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "1"], "trials was 2 in .* and can only grow; got 1"),
        (
            ["--set", "num-server-rounds=1"],
            "num-server-rounds was 2 in .* and can only grow; got 1",
        ),
        (["--set", "average-from=1"], "average-from was 0 in the run in .* and is 1 here"),
        (["--sweep", "sdp-epsilon-direction=100"], "sweep was .* is resumed with its own settings"),
        (["--seed", "3"], "seed was 0 in the run in .* and is 3 here"),
    ],
)
def test_another_sweep_is_not_resumed(call, log, arguments, message):
    _, _, run_dir = call(*SWEEP)
    with pytest.raises(CommandError, match=message):
        call(*SWEEP, *arguments, "--resume", run_dir)
    assert len(log.started) == 6


def test_a_single_run_does_not_become_a_sweep(call):
    _, _, run_dir = call()
    with pytest.raises(CommandError, match="was a single one"):
        call("--trials", 2, "--resume", run_dir)


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("keys", "arguments", "message"),
    [
        ({}, ["--sweep", "local-steps=a,b"], "local-steps must be an integer"),
        ({}, ["--sweep", "seed=1,2"], "seed cannot be swept"),
        ({}, ["--trials", "0"], "trials must be"),
        ({"resume": None}, [*SWEEP, "--resume", "."], "no 'resume' .* it cannot be resumed"),
        ({"baseline": None}, SWEEP, "no 'baseline'"),
        ({}, [*SWEEP, "--resume", "docs"], "cannot read .*docs/config.toml"),
    ],
)
def test_mistakes_create_nothing(log, tmp_path, monkeypatch, keys, arguments, message):
    monkeypatch.chdir(ROOT)
    config = write_app(tmp_path / "app", **keys)
    start = ["simulate", config, "--engine", "local", "--output", tmp_path / "runs"]
    with pytest.raises(CommandError, match=message) as caught:
        CliRunner().invoke(app, list(map(str, [*start, *arguments])), catch_exceptions=False)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "runs").exists()
    assert log.started == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('engine = "local"\n', "has no local engine, simulations.engine: use --engine ray"),
        ('engine = "stream"\nanything = 1\n', "has no simulations.streams"),
    ],
)
def test_an_app_without_an_engine_of_its_own(tmp_path, content, message):
    config = write_app(tmp_path / "app")
    config.write_text(content)
    with pytest.raises(CommandError, match=message):
        CliRunner().invoke(
            app,
            ["simulate", str(config), "--output", str(tmp_path / "runs")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [["--no-baseline"], ["--resume", "."]])
def test_a_stream_is_neither_resumed_nor_compared(tmp_path, arguments):
    config = write_app(tmp_path / "app")
    config.write_text('engine = "stream"\n')
    with pytest.raises(CommandError, match="a stream has neither --resume nor --no-baseline"):
        CliRunner().invoke(app, ["simulate", str(config), *arguments], catch_exceptions=False)


def test_a_file_that_is_missing_is_named_before_anything_is_made(tmp_path):
    pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "flwr-sdp", "simulate"),
            ROOT / "simulations" / "conf" / "digits.toml",
            *("--engine", "local", "--output", tmp_path / "runs", "--set", "task=mnist"),
            *("--set", "data=mnist", "--set", f"data-dir={tmp_path / 'nowhere'}"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"flwr-sdp: {tmp_path / 'nowhere'}/")
    assert "/train-images-idx3-ubyte is missing, for data = 'mnist'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_says_where_results_go_and_what_trains_on_the_gpu(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = CliRunner().invoke(app, ["simulate", "--help"]).output
    words = " ".join(shown.replace("│", " ").split())
    assert results_name(ROOT / "simulations" / "conf" / "mnist" / "cpu.toml") == "mnist-cpu"
    assert "conf/mnist/cpu.toml mnist-cpu" in words
    assert "clients train on the CPU there, even if there is a GPU" in words


def test_the_app_is_asked_whether_it_takes_every_point(log, tmp_path):
    """A wrong word in the last point of a sweep is found before the first has run."""
    arguments = ["simulate", ROOT / "simulations" / "conf" / "digits.toml", "--engine", "local"]
    arguments += ["--output", tmp_path / "runs", "--sweep", "sdp-rule=tight,loose"]
    with pytest.raises(CommandError, match=r"^sdp-rule must be .* got 'loose'$"):
        CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert not (tmp_path / "runs").exists()
    assert log.started == []


# ------------------------------------------------------------------ what a program reads
def test_a_dry_run_checks_says_what_would_run_and_writes_nothing(log, tmp_path):
    config = write_app(tmp_path / "app")
    start = ["simulate", str(config), "--engine", "local", "--output", str(tmp_path / "runs")]
    arguments = [*start, *SWEEP, "--dry-run"]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [run["label"] for run in told["runs"]] == [
        f"{name} trial {trial}"
        for trial in (0, 1)
        for name in ("epsilon-direction=100", "epsilon-direction=50", "baseline")
    ]
    assert told["runs"][1]["config"]["sdp-epsilon-direction"] == 50.0
    assert told["runs"][3]["config"]["seed"] == 1
    for_people = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "6 runs on local" in for_people
    assert "  epsilon-direction=50 trial 1: seed 1\n" in for_people
    with pytest.raises(CommandError, match="unknown key 'num-cleints'"):
        CliRunner().invoke(app, [*arguments, "--set", "num-cleints=3"], catch_exceptions=False)
    assert log.started == []
    assert not (tmp_path / "runs").exists()


def test_json_of_a_sweep_is_all_of_standard_output(call_json, log):
    status, told, screen = call_json(*SWEEP)
    assert status == 0
    assert told["completed"] is True
    assert [run["completed"] for run in told["runs"]] == [True] * 6
    folder = Path(told["folder"])
    first = told["runs"][0]
    assert Path(first["folder"]) == folder / "epsilon-direction=100" / "trial-0"
    assert first["point"] == {"sdp-epsilon-direction": 100.0}
    assert first["last_round"]["accuracy"] == repr(0.9 - 0.05 + 0.001 * 2)
    assert {Path(path).name for path in told["pictures"]} == {
        *("gap.png", "accuracy.png", "frontier.png", "box.png")
    }
    assert "Privacy report" in screen


def test_json_of_runs_that_failed_says_which(call_json, log):
    log.fail_at = "epsilon-direction=50/trial-0"
    status, told, screen = call_json(*SWEEP)
    assert status == 1
    assert told["completed"] is False
    assert [run["completed"] for run in told["runs"]] == [True, *[False] * 5]
    assert "Kaboom" in screen


def test_json_of_plot_names_the_pictures(call):
    _, _, run_dir = call(*SWEEP)
    result = CliRunner().invoke(app, ["plot", str(run_dir), "--kind", "box", "--json"])
    assert json.loads(result.stdout) == {"pictures": [str(run_dir / "box.png")]}


# ------------------------------------------------------------------ a stream
STREAM = """
import pathlib, sys, tomllib
config = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())
folder = pathlib.Path(sys.argv[2])
if config.get("fail"):
    raise SystemExit("streams: no such source")
(folder / "results.csv").write_text(f"iteration,value\\n0,{config['value']}\\n")
print("streamed")
"""


@pytest.fixture
def stream(tmp_path, monkeypatch):
    """Return the run file of an app with streams, of which no pictures are drawn."""
    from flwr_sdp.cli.commands import simulate_streams as streams

    config = write_app(tmp_path / "app")
    config.write_text('engine = "stream"\nvalue = 1\n')
    (tmp_path / "app" / "simulations").mkdir()
    (tmp_path / "app" / "simulations" / "streams.py").write_text(STREAM)
    monkeypatch.setattr(streams, "draw_streams", lambda folder: [folder / "stream.png"])
    monkeypatch.setattr(follow, "_POLL", 0.01)
    return ["simulate", str(config), "--output", str(tmp_path / "runs")]


def test_a_stream_runs_in_a_program_of_its_own(stream, tmp_path):
    result = CliRunner().invoke(app, [*stream, "--set", "value=7", "--trials", "2"])
    assert result.exit_code == 0, result.output
    (run_dir,) = (tmp_path / "runs" / "toy").iterdir()
    assert (run_dir / "results.csv").read_text() == "iteration,value\n0,7\n"
    assert (run_dir / "stream.log").read_text() == "streamed\n"
    assert tomllib.loads((run_dir / "config.toml").read_text()) == {
        "engine": "stream",
        "value": 7,
        "trials": 2,
    }
    assert "stream.png" in result.output


def test_a_dry_run_of_a_stream_runs_nothing(stream, tmp_path):
    result = CliRunner().invoke(app, [*stream, "--set", "value=7", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told == {"engine": "stream", "config": {"engine": "stream", "value": 7}}
    assert not (tmp_path / "runs").exists()


def test_json_of_a_stream(stream, tmp_path):
    result = CliRunner().invoke(app, [*stream, "--json"])
    (run_dir,) = (tmp_path / "runs" / "toy").iterdir()
    assert json.loads(result.stdout) == {
        "folder": str(run_dir),
        "completed": True,
        "pictures": [str(run_dir / "stream.png")],
    }
    failed = CliRunner().invoke(app, [*stream, "--json", "--set", "fail=true"])
    assert json.loads(failed.stdout)["completed"] is False


def test_settings_of_a_stream_are_checked_before_it_starts(tmp_path):
    config = ROOT / "simulations" / "conf" / "logistic" / "smoke.toml"
    call = ["simulate", str(config), "--output", str(tmp_path / "runs"), "--dry-run"]
    assert CliRunner().invoke(app, call, catch_exceptions=False).exit_code == 0
    with pytest.raises(CommandError, match=r"^trials must be .* got 0$"):
        CliRunner().invoke(app, [*call, "--trials", "0"], catch_exceptions=False)
    assert not (tmp_path / "runs").exists()


def test_a_stream_that_fails_is_a_run_that_failed(stream):
    result = CliRunner().invoke(app, [*stream, "--set", "fail=true"])
    assert result.exit_code == 1
    assert "streams: no such source" in result.output
    assert "the stream run ended as exit status 1" in result.output


# ------------------------------------------------------------------ the app's own engine
@pytest.mark.simulation
def test_two_points_in_the_apps_own_engine(tmp_path):
    pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "flwr-sdp", "simulate"),
            ROOT / "simulations" / "conf" / "digits.toml",
            *("--engine", "local", "--output", tmp_path),
            *("--sweep", "sdp-epsilon-direction=500,50"),
            *("--set", "num-clients=6", "--set", "num-server-rounds=2"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = (tmp_path / "digits").iterdir()
    results = read_results([run_dir])
    assert [(dict(f.level)["sdp-epsilon-direction"], len(f.gaps)) for f in finals(results)] == [
        ("500.0", 1),
        ("50.0", 1),
    ]
    assert len(rows_of(run_dir)) == 3 * 3
    for point in ("epsilon-direction=500", "epsilon-direction=50"):
        report = json.loads((run_dir / point / "trial-0" / "report.json").read_text())
        assert report["local"]["epsilon_per_report"] == pytest.approx(
            float(point.partition("=")[2]) + 10.0, rel=1e-9
        )
