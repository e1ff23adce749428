"""A whole training run, in one process."""

import csv
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from flwr_sdp.clients import SeparatedDPMod
from flwr_sdp.strategies import CheckpointError, Checkpoints
from simulations import client_app
from simulations.engine.local_grid import LocalGrid
from simulations.server_app import run_training
from simulations.settings import Settings
from tests.messages import default_run_config

COLUMNS = [
    "round",
    "accuracy",
    "loss",
    "cdp-epsilon",
    "cohort",
    "replies",
    "failures",
    "refused",
    "fraction-projected",
    "kept-length",
    "mean-norm",
    "noise-norm",
    "signal-to-noise",
    "seconds",
    "peak-memory-mib",
]
# Few clients and rounds, and so a larger budget of the direction than the digits need.
SHORT = {"num-clients": 20, "num-server-rounds": 12, "sdp-epsilon-direction": 500.0}
TINY = {"num-clients": 6, "num-server-rounds": 2, "sdp-epsilon-direction": 500.0, "local-steps": 1}


class Spy(LocalGrid):
    """A LocalGrid that remembers whom it asked to train, round by round."""

    def __init__(self, *args):
        super().__init__(*args)
        self.cohorts = []

    def push_messages(self, messages):
        self.cohorts.append([message.metadata.dst_node_id for message in messages])
        return super().push_messages(messages)


def train(config, *, app=client_app.app, folder=None, **changes):
    config = default_run_config() | config | changes
    config["output-dir"] = "" if folder is None else str(folder)
    grid = Spy(app, config["num-nodes"] or config["num-clients"], config)
    accuracy, report = run_training(grid, Settings.from_run_config(config))
    return accuracy, report, grid.cohorts


def load_model(folder, server_round):
    checkpoints = folder / "checkpoints"
    for path in checkpoints.glob("round-*.ckpt"):
        if int(path.stem.partition("-")[2]) > server_round:
            path.rename(path.with_suffix(".later"))
    _, snapshot = Checkpoints(checkpoints).load()
    for path in checkpoints.glob("*.later"):
        path.rename(path.with_suffix(".ckpt"))
    return {name: array.numpy() for name, array in snapshot.model.items()}


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    return (*train(SHORT, folder=folder), folder)


# ------------------------------------------------------------------ a private run
def test_private_run_learns(private):
    """Chance is 0.1; runs like this end at about 0.9."""
    accuracy, _, _, _ = private
    assert accuracy > 0.6


def test_metrics_have_a_row_a_round(private):
    accuracy, report, cohorts, folder = private
    table = rows(folder / "metrics.csv")
    assert list(table[0]) == COLUMNS
    assert [int(row["round"]) for row in table] == list(range(13))
    assert [int(row["cohort"]) for row in table[1:]] == list(map(len, cohorts))
    for row in table[1:]:
        assert all(math.isfinite(float(value)) for value in row.values())
        assert row["replies"] == row["cohort"]
        assert row["failures"] == row["refused"] == "0"
        assert float(row["fraction-projected"]) == 0.0
    epsilons = [float(row["cdp-epsilon"]) for row in table[1:]]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == report.central.epsilon
    assert float(table[-1]["accuracy"]) == accuracy
    assert {table[0][name] for name in COLUMNS[3:]} == {""}


def test_report_has_every_part(private):
    accuracy, report, _, folder = private
    facts = json.loads((folder / "report.json").read_text())
    assert facts["task"] == "digits"
    assert facts["final_accuracy"] == accuracy
    assert facts["rounds"] == 12
    assert facts["local"]["epsilon_per_report"] == pytest.approx(510.0)
    assert facts["local"]["epsilon_per_report"] <= 510.0
    assert facts["local"]["max_reports_per_client"] == 12
    assert facts["central"]["epsilon"] == report.central.epsilon
    assert facts["central"]["releases"] == 12
    assert facts["central"]["population"] == 20
    (projected,) = facts["central_projected"]
    assert projected["status"] == "projected, not run"
    assert projected["population"] == 10_000_000
    assert projected["epsilon"] < facts["central"]["epsilon"]
    assert facts["reconstruction"]["dim_target"] == 9610
    assert any("seed 0" in text for text in facts["exceptions"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "metrics.csv",
        "report.json",
    ]


def test_replies_are_never_projected_at_the_default_clip_norm(private):
    _, report, _, _ = private
    assert report.exceptions == tuple(text for text in report.exceptions if "seed" in text)


# ------------------------------------------------------------------ reproducible
def test_same_seed_same_cohorts():
    first, again, other = (train(TINY, **{"seed": seed})[2] for seed in (5, 5, 6))
    assert first == again != other
    assert len(first) == 2


def test_baseline_is_the_same_in_every_run():
    (first, _, cohorts), (again, _, cohorts_again) = (
        train(TINY, baseline=True, **{"local-steps": 5}) for _ in range(2)
    )
    assert first == again
    assert cohorts == cohorts_again


def test_noise_is_not_repeated(tmp_path):
    """Cohorts, data and training repeat; the noise of devices and server is never seeded."""
    norms = []
    for name in ("first", "again"):
        folder = tmp_path / name
        folder.mkdir()
        train(TINY, folder=folder, **{"sdp-sampling-rate": 1.0})
        norms.append([row["mean-norm"] for row in rows(folder / "metrics.csv")[1:]])
    assert not set(norms[0]) & set(norms[1])


# ------------------------------------------------------------------ baseline
def epsilons(value):
    """Return every number under a name that speaks of epsilon."""
    if isinstance(value, list):
        return [number for part in value for number in epsilons(part)]
    if not isinstance(value, dict):
        return []
    found = [part for name, part in value.items() if "epsilon" in name and part is not None]
    return found + [number for part in value.values() for number in epsilons(part)]


def test_baseline_claims_no_privacy(tmp_path):
    accuracy, report, _ = train(TINY, baseline=True, folder=tmp_path)
    facts = json.loads((tmp_path / "baseline-report.json").read_text())
    assert facts["local"] is facts["central"] is facts["reconstruction"] is None
    assert facts["central_projected"] == []
    assert epsilons(facts) == []
    assert "epsilon" not in report.to_text()
    assert report.projections == ()
    assert any("replies without the mark" in text for text in facts["exceptions"])
    table = rows(tmp_path / "baseline-metrics.csv")
    assert list(table[0]) == COLUMNS
    assert [row["cdp-epsilon"] for row in table] == [""] * 3
    assert facts["final_accuracy"] == accuracy
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "baseline-metrics.csv",
        "baseline-report.json",
    ]


# ------------------------------------------------------------------ failures
def failing(partitions):
    """Return the simulated app, broken at some partitions."""
    app = ClientApp()

    @app.train(mods=[SeparatedDPMod()])
    def train_or_fail(message, context):
        if context.node_config["partition-id"] in partitions:
            raise RuntimeError("the disk is full")
        return client_app.train(message, context)

    return app


def test_failing_client_ends_the_run_and_names_the_round(tmp_path, caplog):
    with pytest.raises(RuntimeError, match=r"1 client\(s\) failed in round 1"):
        train(TINY, app=failing({2}), folder=tmp_path, **{"sdp-sampling-rate": 1.0})
    assert "partition 2" in caplog.text
    assert "the disk is full" in caplog.text
    assert [row["failures"] for row in rows(tmp_path / "metrics.csv")] == ["", "1"]


def test_run_goes_on_without_failing_clients_if_told_to(tmp_path):
    _, report, _ = train(
        TINY,
        app=failing({0, 3}),
        folder=tmp_path,
        **{"sdp-sampling-rate": 1.0, "fail-fast": False},
    )
    table = rows(tmp_path / "metrics.csv")
    assert [row["failures"] for row in table[1:]] == ["2", "2"]
    assert [row["replies"] for row in table[1:]] == ["4", "4"]
    assert report.rounds == 2
    assert any("a client failed" in text and "(4x)" in text for text in report.exceptions)


def test_simulated_app_is_private_whatever_else_it_does():
    """Without the mod's settings the simulated device answers with an error, not with a model."""
    config = default_run_config() | TINY
    del config["sdp-max-norm"]
    settings = Settings.from_run_config(config | {"sdp-max-norm": 5.0, "fail-fast": True})
    with pytest.raises(RuntimeError, match="failed in round 1"):
        run_training(LocalGrid(client_app.app, 6, config), settings)


# ------------------------------------------------------------------ budgets
def test_spent_budget_ends_the_run_with_a_report(tmp_path):
    changes = {
        "num-server-rounds": 5,
        "sdp-noise-multiplier": 4.0,
        "sdp-sampling-rate": 1.0,
        "sdp-max-epsilon": 1.8,  # two rounds cost 1.5, three cost 1.9
    }
    _, report, cohorts = train(TINY, folder=tmp_path, **changes)
    assert report.rounds == len(cohorts)
    assert 0 < len(cohorts) < 5
    assert report.central.epsilon <= 1.8
    assert len(rows(tmp_path / "metrics.csv")) == 1 + len(cohorts)
    assert json.loads((tmp_path / "report.json").read_text())["central"]["epsilon"] <= 1.8


def test_explicit_clip_norm_projects_replies(tmp_path):
    """At a clip norm below the smallest norm a report can have, all of them."""
    changes = {"sdp-clip-norm": 1e-6, "sdp-sampling-rate": 1.0}
    _, report, _ = train(TINY, folder=tmp_path, **changes)
    assert report.central.clip_norm == 1e-6
    assert [row["fraction-projected"] for row in rows(tmp_path / "metrics.csv")[1:]] == ["1.0"] * 2


def test_no_noise_no_central_epsilon(tmp_path):
    _, report, _ = train(TINY, folder=tmp_path, **{"sdp-noise-multiplier": 0.0})
    facts = json.loads((tmp_path / "report.json").read_text())
    assert facts["central"] is None
    assert facts["central_projected"] == []
    assert facts["local"] is not None
    assert report.projections == ()


def test_projection_can_be_left_out():
    _, report, _ = train(TINY, **{"projected-population": 0})
    assert report.projections == ()
    assert report.central is not None


@pytest.mark.parametrize(
    "changes", [{"projected-population": 50}, {"sdp-noise-multiplier": 1e-8}], ids=str
)
def test_impossible_projection_does_not_cost_the_run(changes, tmp_path):
    """It is refused before anyone trains, or left out; a finished run is never lost to it."""
    trained = []

    class Counting(Spy):
        def push_messages(self, messages):
            trained.append(1)
            return super().push_messages(messages)

    config = default_run_config() | TINY | changes | {"output-dir": str(tmp_path)}
    grid = Counting(client_app.app, config["num-clients"], config)
    refusal = None
    try:
        run_training(grid, Settings.from_run_config(config))
    except ValueError as error:
        refusal = error
    if refusal is not None:
        assert trained == []
        assert "projected" in str(refusal)
    else:
        assert json.loads((tmp_path / "report.json").read_text())["central_projected"] == []


def test_missing_output_folder_is_found_before_training(tmp_path):
    """A clear error at once, or a folder that is made."""
    folder = tmp_path / "not" / "there"
    refusal = None
    try:
        train(TINY, folder=folder)
    except (OSError, ValueError) as error:
        refusal = error
    assert "there" in str(refusal) if refusal else (folder / "report.json").exists()


# ------------------------------------------------------------------ resume
class Broken(Exception):
    """What ends a run in its middle."""


def test_run_that_broke_off_is_resumed_with_all_its_rows(tmp_path):
    """The noise of the devices is never seeded, so that the models differ; all else is the same."""
    config = {**TINY, "num-server-rounds": 5}
    whole = train(config)
    trained = []

    def train_or_break(message, context):
        trained.append(message.content["config"]["server-round"])
        if trained[-1] == 4:
            raise Broken
        return client_app.train(message, context)

    app = ClientApp()
    app.train(mods=[SeparatedDPMod()])(train_or_break)
    with pytest.raises(RuntimeError, match="failed in round 4"):
        train(config, app=app, folder=tmp_path)
    before = (tmp_path / "metrics.csv").read_text()
    _, report, cohorts = train(config, folder=tmp_path, resume=True)
    assert cohorts == whole[2][4:]
    assert report.central == whole[1].central
    assert report.rounds == report.max_reports_per_client == 5
    assert any("client failed" in text for text in report.exceptions)
    assert (tmp_path / "metrics.csv").read_text().startswith(before)
    assert [int(row["round"]) for row in rows(tmp_path / "metrics.csv")] == list(range(6))
    again, _, cohorts = train(config, folder=tmp_path, resume=True)
    assert cohorts == []
    assert again == float(rows(tmp_path / "metrics.csv")[-1]["accuracy"])


def test_a_row_that_a_kill_left_out_is_written_by_the_resumed_run(tmp_path):
    train(TINY, folder=tmp_path)
    before = (tmp_path / "metrics.csv").read_text()
    lines = before.splitlines(keepends=True)
    (tmp_path / "metrics.csv").write_text("".join(lines[:-1]))
    train(TINY, folder=tmp_path, resume=True)
    assert (tmp_path / "metrics.csv").read_text() == before


def test_other_settings_are_refused(tmp_path):
    train(TINY, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"^noise_multiplier must be"):
        train(TINY, folder=tmp_path, resume=True, **{"sdp-noise-multiplier": 1.0})


def test_folder_with_a_run_is_not_trained_over(tmp_path):
    train(TINY, folder=tmp_path)
    with pytest.raises(CheckpointError, match="holds a run of 2 rounds"):
        train(TINY, folder=tmp_path)


def test_checkpoints_can_be_left_out(tmp_path):
    train(TINY, folder=tmp_path, **{"checkpoint-keep": 0})
    assert not (tmp_path / "checkpoints").exists()


def test_cohorts_of_a_fixed_size():
    _, report, cohorts = train(TINY, **{"sdp-cohort-size": 4})
    assert [len(cohort) for cohort in cohorts] == [4, 4]
    assert report.central.sampling == "fixed-size"
    assert report.central.sampling_rate == 4 / 6


# ------------------------------------------------------------------ the task as it is shipped
@pytest.mark.slow
def test_digits_reach_their_accuracy():
    """The default run, five seeds: the mean is at least 0.94 and no run below 0.91."""
    accuracies = [train({}, **{"seed": seed})[0] for seed in range(5)]
    assert statistics.mean(accuracies) >= 0.94, accuracies
    assert min(accuracies) >= 0.91, accuracies


# ------------------------------------------------------------------ engines and options
def test_few_nodes_stand_for_all_clients(tmp_path):
    """The same cohorts; in the baseline, whose training repeats, the same accuracy as well."""
    whole = train(TINY, baseline=True)
    few = train(TINY, baseline=True, folder=tmp_path, **{"num-nodes": 2})
    assert few[0] == pytest.approx(whole[0], abs=1e-9)
    assert all(len(cohort) <= 2 for cohort in few[2])
    replies = [int(row["replies"]) for row in rows(tmp_path / "baseline-metrics.csv")[1:]]
    assert replies == [len(cohort) for cohort in whole[2]]


def test_few_nodes_are_as_private(tmp_path):
    _, report, _ = train(SHORT, folder=tmp_path, **{"num-nodes": 2, "num-server-rounds": 3})
    _, expected, _ = train(SHORT, **{"num-server-rounds": 3})
    assert report.local == expected.local
    assert report.central == expected.central
    assert any("simulated clients" in text for text in report.exceptions)


def test_run_in_one_process_is_that_of_the_launcher(tmp_path):
    """``python -m simulations.engine`` gives the numbers of any other grid."""
    config = default_run_config() | TINY | {"baseline": True, "output-dir": str(tmp_path)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    subprocess.run(
        [sys.executable, "-m", "simulations.engine", str(tmp_path / "config.json")],
        check=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    facts = json.loads((tmp_path / "baseline-report.json").read_text())
    assert facts["final_accuracy"] == train(TINY, baseline=True)[0]
    assert "digits" in facts["data"].lower()


@pytest.mark.parametrize(
    ("task", "data"), [("mnist", "mnist"), ("mnist", "fashion-mnist"), ("cifar10", "cifar10")]
)
def test_wrong_path_is_named_before_anything_starts(tmp_path, task, data):
    config = default_run_config() | {
        "task": task, "data": data, "data-dir": str(tmp_path / "nowhere"),
        "partition": "fresh", "examples-per-client": 10,
    }  # fmt: skip
    (tmp_path / "configs.json").write_text(json.dumps([default_run_config(), config]))
    done = subprocess.run(
        [sys.executable, "-m", "simulations.engine", "--check", str(tmp_path / "configs.json")],
        check=False, capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 1
    assert "nowhere" in done.stderr.splitlines()[-1]


def test_evaluation_may_be_rare_and_is_never_missing_at_the_end(tmp_path):
    changes = {"evaluate-every": 2, "num-server-rounds": 3}
    accuracy, _, _ = train(TINY, folder=tmp_path, **changes)
    table = rows(tmp_path / "metrics.csv")
    assert [row["accuracy"] != "" for row in table] == [True, False, True, True]
    assert float(table[-1]["accuracy"]) == accuracy


def test_budget_that_ends_before_an_evaluation_is_evaluated(tmp_path):
    changes = {
        "num-server-rounds": 50, "evaluate-every": 50, "sdp-noise-multiplier": 4.0,
        "sdp-sampling-rate": 1.0, "sdp-max-epsilon": 1.8,
    }  # fmt: skip
    accuracy, _, _ = train(TINY, folder=tmp_path, **changes)
    table = rows(tmp_path / "metrics.csv")
    assert 0 < int(table[-1]["round"]) < 50
    assert {row["accuracy"] for row in table[1:-1]} <= {""}
    assert float(table[-1]["accuracy"]) == accuracy != float(table[0]["accuracy"])
    assert json.loads((tmp_path / "report.json").read_text())["final_accuracy"] == accuracy


def test_averaged_models_are_evaluated_beside_the_last_one(tmp_path):
    train(TINY, folder=tmp_path, **{"average-from": 2, "num-server-rounds": 3})
    table = rows(tmp_path / "metrics.csv")
    assert [row["averaged-accuracy"] != "" for row in table] == [False, False, True, True]
    assert table[2]["averaged-loss"] == table[2]["loss"]
    assert table[3]["averaged-loss"] != table[3]["loss"]


def test_server_optimizer_is_the_one_that_was_named():
    """With a baseline, of which all else repeats."""
    plain = train(TINY, baseline=True)[0]
    other = train(TINY, baseline=True, **{"server-optimizer": "fedadam"})[0]
    assert plain != other


def test_average_of_a_resumed_run_is_that_of_an_unbroken_one(tmp_path):
    """The noise of the devices repeats nowhere, so the average is computed from the checkpoints."""
    config = {**TINY, "average-from": 1, "checkpoint-keep": 10}
    train({**config, "num-server-rounds": 2}, folder=tmp_path)
    train({**config, "num-server-rounds": 4}, folder=tmp_path, resume=True)
    with np.load(tmp_path / "average.npz") as kept:
        found = {name: kept[name] for name in kept.files if name[0] != "/"}
        assert (int(kept["/last-round"]), int(kept["/count"])) == (4, 4)
    models = [load_model(tmp_path, server_round) for server_round in range(1, 5)]
    for name, mean in found.items():
        expected = np.mean([model[name].astype(np.float64) for model in models], axis=0)
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-9)


def test_nodes_that_do_not_reply_in_time_end_the_run(tmp_path):
    """A round without replies is a round of noise: not what anyone wants to train on unnoticed."""
    with pytest.raises(RuntimeError, match=r"client\(s\) failed in round 1.*round-timeout"):
        train(TINY, folder=tmp_path, **{"sdp-sampling-rate": 1.0, "round-timeout": 1e-9})
    report = train(TINY, **{"sdp-sampling-rate": 1.0, "round-timeout": 1e-9, "fail-fast": False})[1]
    assert any("a client did not reply (12x)" in text for text in report.exceptions)
