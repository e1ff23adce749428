"""Checkpoints: what a killed run is resumed from, and what is refused."""

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import GaussianPrivacyEvent
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from flwr_sdp import secure_generator, seeded_generator
from flwr_sdp.strategies import (
    CheckpointError,
    Checkpoints,
    poisson_accountant,
    poisson_rdp_accountant,
)
from flwr_sdp.strategies.events import RatedEvent
from flwr_sdp.strategies.ledger import Ledger
from tests.messages import FakeGrid, error_reply, flat, private_reply, record
from tests.statistics_helpers import assert_detects
from tests.strategies.resumable import FIXED, NODES, build, initial_model, run

ROOT = Path(__file__).resolve().parents[2]


def same(first, second):
    assert list(first) == list(second)
    for name in first:
        assert (first[name].dtype, first[name].shape) == (second[name].dtype, second[name].shape)
        np.testing.assert_array_equal(first[name].numpy(), second[name].numpy())


def unbroken(rounds, **options):
    strategy = build(**options)
    return strategy, run(strategy, rounds)


# ------------------------------------------------------------------ resumed is as if unbroken
INNER = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    "FedAvgM": lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.0),
    "FedYogi": lambda: FedYogi(fraction_evaluate=0.0),
    "FedAdagrad": lambda: FedAdagrad(fraction_evaluate=0.0),
    "FedProx": lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
}


@pytest.mark.parametrize("name", list(INNER))
@pytest.mark.parametrize("stop", [1, 4])
def test_resumed_run_ends_where_an_unbroken_one_does(tmp_path, name, stop):
    """Model, epsilon, rounds and report; the mutant forgets the optimiser's state."""
    whole, expected = unbroken(6, strategy=INNER[name]())
    run(build(tmp_path, strategy=INNER[name]()), stop)
    resumed = build(tmp_path, strategy=INNER[name]())
    result = run(resumed, 6, resume=True)
    same(result.arrays, expected.arrays)
    same(resumed.last_arrays, expected.arrays)
    assert resumed.privacy_spent() == whole.privacy_spent()
    assert resumed.report() == whole.report()
    assert sorted(result.train_metrics_clientapp) == list(range(stop + 1, 7))


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_the_state_of_the_optimiser_is_what_makes_it_so(tmp_path, name, monkeypatch):
    _, expected = unbroken(6, strategy=INNER[name]())
    run(build(tmp_path, strategy=INNER[name]()), 3)
    forget = "flwr_sdp.strategies.clip_and_noise.restore_state"
    monkeypatch.setattr(forget, lambda *_: None)
    result = run(build(tmp_path, strategy=INNER[name]()), 6, resume=True)
    assert_detects(same, result.arrays, expected.arrays)


def test_resume_may_be_repeated(tmp_path):
    _, expected = unbroken(6)
    run(build(tmp_path), 1)
    for rounds in (2, 3, 3, 6):
        strategy = build(tmp_path)
        result = run(strategy, rounds, resume=True)
        assert strategy.rounds_done == strategy.privacy_spent().num_releases == rounds
    same(result.arrays, expected.arrays)


def test_run_that_is_complete_is_not_trained_further(tmp_path):
    run(build(tmp_path), 3)
    strategy = build(tmp_path)
    asked = []
    result = run(strategy, 3, resume=True, on_question=asked.append)
    assert asked == []
    same(result.arrays, strategy.last_arrays)
    assert strategy.privacy_spent().num_releases == 3


def test_evaluation_goes_on_with_the_rounds_of_the_whole_run(tmp_path):
    run(build(tmp_path), 2)
    seen = []
    run(build(tmp_path), 4, resume=True, evaluate=lambda r, model: seen.append((r, flat(model))))
    assert [server_round for server_round, _ in seen] == [2, 3, 4]
    _, expected = unbroken(2)
    np.testing.assert_array_equal(seen[0][1], flat(expected.arrays))


def test_a_loop_of_ones_own_can_be_resumed(tmp_path):
    _, expected = unbroken(3)
    run(build(tmp_path), 2)
    strategy = build(tmp_path)
    model = strategy.restore(initial_model())
    grid = FakeGrid(range(NODES))
    messages = strategy.configure_train(strategy.rounds_done + 1, model, ConfigRecord(), grid)
    replies = [
        private_reply(m, 0.1 * (m.metadata.dst_node_id / NODES - flat(m.content["arrays"])))
        for m in messages
    ]
    arrays, _ = strategy.aggregate_train(strategy.rounds_done + 1, replies)
    same(arrays, expected.arrays)


def test_exceptions_and_metrics_are_remembered(tmp_path):
    strategy = build(tmp_path, min_replies=1)
    grid = FakeGrid(range(NODES), lambda message: error_reply(message, "no disk"))
    strategy.start(grid, initial_model(), num_rounds=2)
    resumed = build(tmp_path, min_replies=1)
    resumed.restore(initial_model())
    assert resumed.report() == strategy.report()
    assert resumed.last_round == strategy.last_round
    assert resumed.report().rounds == 0
    assert resumed.report().max_reports_per_client == 2
    assert any("no disk" in text for text in resumed.report().exceptions)


def test_seeded_noise_of_the_first_half_is_not_forgotten_by_the_second(tmp_path):
    """A run of which a part was seeded has no central guarantee."""
    run(build(tmp_path), 2)
    resumed = build(tmp_path, rng=secure_generator())
    run(resumed, 3, resume=True)
    assert resumed.report().central is None
    assert any("seeded generator" in text for text in resumed.report().exceptions)


def test_fixed_cohorts_and_runs_without_noise_are_resumed_too(tmp_path):
    for name, options in {
        "fixed": {"sampling_rate": None, "cohort_size": 4},
        "without noise": {"noise_multiplier": 0.0},
        "unclipped": {"noise_multiplier": 0.0, "clip_norm": float("inf")},
    }.items():
        whole, expected = unbroken(4, **options)
        run(build(tmp_path / name, **options), 2)
        resumed = build(tmp_path / name, **options)
        same(run(resumed, 4, resume=True).arrays, expected.arrays)
        assert resumed.privacy_spent() == whole.privacy_spent()


def test_population_is_that_of_the_first_round(tmp_path):
    run(build(tmp_path, accountant=None), 1)
    strategy = build(tmp_path, accountant=None)
    strategy.restore(initial_model())
    assert strategy.population == NODES
    grid = FakeGrid(range(3 * NODES), private_reply)
    strategy.configure_train(2, initial_model(), ConfigRecord(), grid)
    assert strategy.expected_cohort == NODES / 2


def test_a_resumed_run_is_charged_at_the_rate_drawn_with(tmp_path):
    """A ledger of before, whose charges are of whole clients, keeps them and is reported so."""
    options = {"sampling_rate": 0.26, "noise_multiplier": 3.0, "accountant": None}
    options |= {"population": NODES, "rng": secure_generator()}
    whole = build(**options)
    run(whole, 4)
    run(build(tmp_path, **options), 2)
    resumed = build(tmp_path, **options)
    run(resumed, 4, resume=True)
    assert resumed.privacy_spent() == whole.privacy_spent()
    assert resumed.report().central == whole.report().central
    assert resumed.report().central.sampling_rate == 0.26
    path = tmp_path / "ledger.json"
    ledger = json.loads(path.read_text())
    assert [charge.pop("sampling_rate") for charge in ledger["charges"]] == [0.26]
    path.write_text(json.dumps(ledger))
    old = build(tmp_path, **options)
    old.restore(initial_model())
    expected = poisson_accountant(population=NODES, delta=1e-5)
    expected.compose(GaussianPrivacyEvent(3.0, 4, NODES), 4)
    report = old.report()
    assert report.central.epsilon == expected.get_epsilon(1e-5) > whole.privacy_spent().epsilon
    assert report.central.sampling_rate == 4 / NODES
    assert any("drawn at rate 0.26 and rounds charged at 0.333" in e for e in report.exceptions)


def test_budget_of_a_resumed_run_counts_what_was_spent_before(tmp_path):
    full = build(max_epsilon=4.5)
    with pytest.raises(PrivacyBudgetExhausted):
        run(full, 50)
    run(build(tmp_path, max_epsilon=4.5), 2)
    resumed = build(tmp_path, max_epsilon=4.5)
    with pytest.raises(PrivacyBudgetExhausted):
        run(resumed, 50, resume=True)
    assert resumed.report() == full.report()
    assert resumed.rounds_done == full.report().rounds > 2


# ------------------------------------------------------------------ killed at any moment
class Killed(BaseException):
    """What a process does not survive."""


class Deadly:
    """Raises `Killed` at the n-th of the moments at which a process could be killed."""

    def __init__(self, monkeypatch, at):
        self.left = at
        for owner, name in (
            (os, "fsync"),
            (Path, "replace"),
            (Path, "unlink"),
            (zipfile.ZipFile, "writestr"),
        ):
            monkeypatch.setattr(owner, name, self.around(getattr(owner, name)))
        # Before every array that is written; after it, Python would complain of the open entry.
        monkeypatch.setattr(zipfile.ZipFile, "open", self.before(zipfile.ZipFile.open))

    def around(self, function):
        def before_and_after(*args, **kwargs):
            self.moment()
            result = function(*args, **kwargs)
            self.moment()
            return result

        return before_and_after

    def before(self, function):
        def wrapped(*args, **kwargs):
            self.moment()
            return function(*args, **kwargs)

        return wrapped

    def moment(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Killed


def run_killed(directory, rounds, at, monkeypatch):
    """Run until killed at moment `at`; return the models anyone has seen, or None if unharmed."""
    seen = {}

    def question(message):
        deadly.moment()
        server_round = message.content["config"]["server-round"]
        seen[server_round - 1] = flat(message.content["arrays"])

    with monkeypatch.context() as patch:
        deadly = Deadly(patch, at)
        try:
            run(
                build(directory),
                rounds,
                on_question=question,
                evaluate=lambda r, model: seen.update({r: flat(model)}),
            )
        except Killed:
            return seen
    return None


def test_a_kill_at_any_moment_loses_the_running_round_and_no_charge(tmp_path, monkeypatch):
    """Every place where a file is written, synced, renamed or removed, every question to a node.

    Whatever anyone had seen by then is charged for, a round that is run again shows the same model
    (its noise is seeded), and the end is that of an unbroken run.
    """
    rounds = 2
    whole, expected = unbroken(rounds)
    models = [flat(unbroken(r)[1].arrays) for r in range(1, rounds + 1)]
    moments = 0
    while True:
        moments += 1
        directory = tmp_path / str(moments)
        seen = run_killed(directory, rounds, moments, monkeypatch)
        if seen is None:
            break
        last_seen = max(seen, default=0)
        strategy = build(directory)
        try:
            strategy.restore(initial_model())
        except CheckpointError:  # killed before the first round had begun: nobody was asked
            assert last_seen == 0
            if (directory / "ledger.json").exists():
                assert json.loads((directory / "ledger.json").read_text())["rounds_asked"] == 0
            same(run(build(directory), rounds).arrays, expected.arrays)
            continue
        charged = strategy.accountant.num_releases if strategy.accountant else 0
        assert last_seen <= strategy.rounds_done <= charged <= strategy.rounds_done + 1
        for server_round, model in seen.items():
            if server_round > 0:
                np.testing.assert_array_equal(model, models[server_round - 1])
        strategy = build(directory)
        result = run(strategy, rounds, resume=True)
        same(result.arrays, expected.arrays)
        assert strategy.privacy_spent() == whole.privacy_spent()
        assert strategy.report().rounds == rounds
        assert Checkpoints(directory).load()[0].num_charges == rounds
        asked = strategy.report().max_reports_per_client
        assert rounds <= asked <= rounds + 1  # the devices' reports of a lost round are spent
        assert not list(directory.glob(".*"))
    assert moments > 50


def test_file_is_on_disk_before_its_name_is(tmp_path, monkeypatch):
    """Or a loss of power could leave the new name with nothing behind it."""
    events = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append(f"sync {kind}")
        return sync(descriptor)

    def replaced(path, target):
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    run(build(tmp_path), 1)
    assert events == ["sync file", "rename", "sync folder"] * 5


def test_replies_are_aggregated_once_for_each_charge(tmp_path):
    strategy = build(tmp_path)
    with pytest.raises(ValueError, match="server_round must have been configured"):
        strategy.aggregate_train(1, [])
    grid = FakeGrid(range(NODES))
    strategy.configure_train(1, initial_model(), ConfigRecord(), grid)
    strategy.aggregate_train(1, [])
    with pytest.raises(ValueError, match="once for each time; got 1"):
        strategy.aggregate_train(1, [])
    assert strategy.accountant.num_releases == 1


def test_charge_is_on_disk_before_anyone_is_asked(tmp_path):
    charges = []

    def look(_message):
        ledger = json.loads((tmp_path / "ledger.json").read_text())
        charges.append((ledger["charged_round"], ledger["charges"][0]["count"]))

    run(build(tmp_path, sampling_rate=1.0), 3, on_question=look)
    assert charges == [(r, r) for r in (1, 2, 3) for _ in range(NODES)]


def test_model_is_on_disk_before_anyone_sees_it(tmp_path):
    def look(server_round, model):
        _, snapshot = Checkpoints(tmp_path).load() if server_round else (None, None)
        if snapshot is not None:
            assert snapshot.server_round == server_round
            same(snapshot.model, model)

    run(build(tmp_path), 3, evaluate=look)


def test_failed_write_keeps_the_model_from_being_released(tmp_path, monkeypatch):
    """A full disk: the round ends with an error, not with a model that has no checkpoint."""
    strategy = build(tmp_path)
    run(strategy, 1)
    before = strategy.last_arrays
    messages = list(
        strategy.configure_train(2, before, ConfigRecord(), FakeGrid(range(NODES), private_reply))
    )

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        strategy.aggregate_train(2, [private_reply(message) for message in messages])
    assert strategy.last_arrays is before


def test_repeated_round_is_charged_once_and_its_reports_twice(tmp_path):
    def stop(message):
        if message.content["config"]["server-round"] == 3:
            raise Killed

    with pytest.raises(Killed):
        run(build(tmp_path), 5, on_question=stop)
    strategy = build(tmp_path)
    strategy.restore(initial_model())
    assert (strategy.rounds_done, strategy.privacy_spent().num_releases) == (2, 3)
    strategy = build(tmp_path)
    run(strategy, 5, resume=True)
    assert strategy.privacy_spent().num_releases == 5
    assert strategy.report().max_reports_per_client == 6


def test_going_back_to_an_older_model_is_charged_again(tmp_path):
    """Round 4 has been seen: what is run in its place is one more release."""
    run(build(tmp_path), 4)
    (tmp_path / "round-00000004.ckpt").unlink()
    strategy = build(tmp_path)
    run(strategy, 4, resume=True)
    assert strategy.rounds_done == 4
    assert strategy.privacy_spent().num_releases == 5
    again = build(tmp_path)
    again.restore(initial_model())
    assert again.privacy_spent() == strategy.privacy_spent()


def program(directory, kill_at):
    return subprocess.run(
        [sys.executable, "-m", "tests.strategies.resumable", directory, "50", kill_at],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_25_rounds_kill_resume_25_rounds_is_50_rounds(tmp_path):
    """A real SIGKILL, in the middle of round 26. The numbers: 1e-9, and the same model."""
    whole, expected = unbroken(50, **FIXED)
    killed = program(tmp_path, "26:asked")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = program(tmp_path, "0:never")
    assert resumed.returncode == 0, resumed.stderr
    facts = json.loads(resumed.stdout.splitlines()[-1])
    assert facts["epsilon"] == pytest.approx(whole.privacy_spent().epsilon, rel=1e-9)
    assert (facts["rounds"], facts["releases"]) == (50, 50)
    np.testing.assert_allclose(facts["model"], flat(expected.arrays), rtol=1e-6)


# ------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clip_norm": 1.5}, r"^clip_norm must be as in the run .*, 2.0; got 1.5"),
        ({"noise_multiplier": 2.0}, r"^noise_multiplier must be .*1.0; got 2.0"),
        ({"sampling_rate": 0.25}, r"^sampling_rate must be .*0.5; got 0.25"),
        ({"sampling_rate": None, "cohort_size": 5}, r"^cohort_size must be .*None; got 5"),
        ({"population": NODES + 1}, r"^population must be .*12; got 13"),
        ({"seed": 1}, r"^seed must be .*0; got 1"),
        ({"seed": None}, r"^seed must be .*0; got None"),
        ({"min_replies": 2}, r"^min_replies must be .*0; got 2"),
        ({"excluded": ["w*"]}, r"^excluded must be .*got \['w\*'\]"),
        ({"strategy": FedAvg(fraction_evaluate=0.0)}, "^strategy must be .*'FedAdam'.*'FedAvg'"),
        (
            {"strategy": FedAdam(fraction_evaluate=0.0, eta=0.5)},
            r"^strategy_settings: eta must be .*0.1; got 0.5",
        ),
    ],
)
def test_checkpoint_of_another_configuration_is_refused_naming_the_field(tmp_path, options, match):
    run(build(tmp_path), 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=match):
        build(tmp_path, **options).restore(initial_model())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("model", "match"),
    [
        ({"w": np.zeros(6, np.float32), "steps": np.zeros(2, int)}, "arrays: w must be .*got"),
        ({"w": np.zeros(5, np.float64), "steps": np.zeros(2, int)}, "arrays: w must be .*float32"),
        ({"w": np.zeros(5, np.float32)}, "arrays: steps must be"),
        ({"v": np.zeros(5, np.float32), "steps": np.zeros(2, int)}, "arrays: v must be"),
    ],
)
def test_checkpoint_of_another_model_is_refused_naming_the_array(tmp_path, model, match):
    run(build(tmp_path), 1)
    with pytest.raises(CheckpointError, match=match):
        build(tmp_path).restore(record(model))


def test_budget_and_learning_rate_may_change(tmp_path):
    """They are no part of what has been released."""
    run(build(tmp_path, accountant=None), 1)
    changed = {"accountant": None, "max_epsilon": 1e6, "server_learning_rate": 0.5, "delta": 1e-7}
    resumed = build(tmp_path, **changed)
    resumed.restore(initial_model())
    assert resumed.privacy_spent().delta == 1e-7


def test_model_without_a_ledger_is_refused(tmp_path):
    run(build(tmp_path), 1)
    (tmp_path / "ledger.json").unlink()
    with pytest.raises(CheckpointError, match=r"no ledger\.json: a model whose charges"):
        build(tmp_path).restore(initial_model())
    with pytest.raises(CheckpointError, match="holds models without a ledger"):
        run(build(tmp_path), 1)


def rewrite(path, change):
    """Change the manifest of a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(entries["manifest.json"])
    change(manifest)
    entries["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


def test_model_whose_own_ledger_is_missing_is_refused(tmp_path):
    run(build(tmp_path), 1)
    rewrite(tmp_path / "round-00000001.ckpt", lambda manifest: manifest.pop("ledger"))
    with pytest.raises(CheckpointError, match="has no ledger"):
        build(tmp_path).restore(initial_model())


def test_ledger_of_another_time_is_refused(tmp_path):
    """The ledger of round 1 beside the model of round 3."""
    strategy = build(tmp_path)
    run(strategy, 1)
    old = (tmp_path / "ledger.json").read_bytes()
    run(build(tmp_path), 3, resume=True)
    (tmp_path / "ledger.json").write_bytes(old)
    with pytest.raises(CheckpointError, match="it has 1 charges, the model 3"):
        build(tmp_path).restore(initial_model())


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "schema", "kind"])
def test_damaged_checkpoint_is_refused_by_name(tmp_path, damage):
    run(build(tmp_path), 2)
    path = tmp_path / "round-00000002.ckpt"
    data = path.read_bytes()
    if damage == "schema":
        rewrite(path, lambda manifest: manifest.update(schema=99))
    elif damage == "kind":
        rewrite(path, lambda manifest: manifest.update(optimizer={"pickle": "data/0"}))
    else:
        at = data.index(b"NUMPY") + 150
        path.write_bytes(
            {
                "cut": data[: len(data) // 2],
                "flip": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
                "empty": b"",
                "text": b"not a checkpoint",
            }[damage]
        )
    with pytest.raises(CheckpointError, match=r"round-00000002.ckpt cannot be read .*move it away"):
        build(tmp_path).restore(initial_model())
    path.unlink()
    strategy = build(tmp_path)
    run(strategy, 2, resume=True)
    assert strategy.privacy_spent().num_releases == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.update(schema=99),
        lambda ledger: ledger.pop("charges"),
        lambda ledger: ledger["charges"][0].update(count=-5),
        lambda ledger: ledger["charges"][0].update(count=True),
        lambda ledger: ledger["charges"][0].update(noise_multiplier=-1.0),
        lambda ledger: ledger["charges"][0].update(unknown=1),
    ],
)
def test_damaged_ledger_is_refused(tmp_path, change):
    run(build(tmp_path), 2)
    path = tmp_path / "ledger.json"
    ledger = json.loads(path.read_text())
    change(ledger)
    path.write_text(json.dumps(ledger))
    with pytest.raises(CheckpointError, match=r"ledger.json cannot be read"):
        build(tmp_path).restore(initial_model())
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"ledger.json cannot be read"):
        build(tmp_path).restore(initial_model())


def test_nothing_to_resume_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint: nothing to resume"):
        build(tmp_path / "nothing").restore(initial_model())
    with pytest.raises(ValueError, match="checkpoints must be given"):
        build().restore(initial_model())


def test_a_run_is_not_overwritten_by_a_new_one(tmp_path):
    run(build(tmp_path), 1)
    asked = []
    with pytest.raises(CheckpointError, match="holds a run of 1 rounds: go on with strategy"):
        run(build(tmp_path), 1, on_question=asked.append)
    assert asked == []


def test_used_strategies_and_accountants_are_refused(tmp_path):
    run(build(tmp_path), 1)
    used = build()
    run(used, 1)
    used.checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="by a new strategy with a new accountant only"):
        used.restore(initial_model())
    accountant = poisson_rdp_accountant(population=NODES, delta=1e-5)
    accountant.compose(
        GaussianPrivacyEvent(noise_multiplier=1.0, sample_size=1, population_size=NODES)
    )
    with pytest.raises(ValueError, match="by a new strategy with a new accountant only"):
        build(tmp_path, accountant=accountant).restore(initial_model())
    with pytest.raises(ValueError, match="accountant must be new when checkpoints are written"):
        run(build(tmp_path / "new", accountant=accountant), 1)


def test_rounds_out_of_order_are_refused(tmp_path):
    strategy = build(tmp_path)
    run(strategy, 2)
    with pytest.raises(ValueError, match=r"server_round must be 3, .*got 1"):
        run(strategy, 1)


def test_seeded_stream_cannot_be_taken_up_in_its_middle(tmp_path):
    with pytest.raises(ValueError, match="rng must be a function of the round when it is seeded"):
        build(tmp_path, rng=seeded_generator(0))


def test_function_that_makes_no_generator_is_refused_before_the_charge():
    strategy = build(rng=lambda server_round: np.random.default_rng(server_round))
    with pytest.raises(ValueError, match="rng must make a KeystreamGenerator"):
        run(strategy, 1)
    assert strategy.accountant.num_releases == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None])
def test_keep_is_checked(tmp_path, value):
    with pytest.raises(ValueError, match=rf"^keep must be .*got {value!r}"):
        Checkpoints(tmp_path, keep=value)


def test_checkpoints_of_another_kind_are_refused(tmp_path):
    with pytest.raises(ValueError, match="checkpoints must be Checkpoints; got"):
        build(checkpoints=tmp_path)


# ------------------------------------------------------------------ the optimiser's own state
class Counting(FedAvg):
    """A strategy with state of every plain kind."""

    def __init__(self, **options):
        super().__init__(fraction_evaluate=0.0, **options)
        self.plain = {"a": [1, 2.5, None, True, "x"], 3: (float("inf"), float("nan"))}
        self.arrays = [np.arange(3), np.float32(0.25), np.array(1.5)]
        self.count = 0

    def aggregate_train(self, server_round, replies):
        self.count += 1
        self.plain["a"].append(self.count)
        self.arrays[0] = self.arrays[0] + self.count
        return super().aggregate_train(server_round, replies)


def test_plain_state_comes_back_as_it_was(tmp_path):
    whole, first, second = Counting(), Counting(), Counting()
    run(build(strategy=whole), 4)
    run(build(tmp_path, strategy=first), 2)
    run(build(tmp_path, strategy=second), 4, resume=True)
    assert second.count == whole.count == 4
    assert second.plain["a"] == whole.plain["a"]
    assert repr(second.plain) == repr(whole.plain)
    for one, other in zip(second.arrays, whole.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
        assert type(one) is type(other)


class Opaque(Counting):
    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)


def test_state_that_cannot_be_saved_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(
        ValueError, match=r"strategy must be plain data.*Opaque.generator holds a G"
    ):
        build(tmp_path, strategy=Opaque())
    run(build(strategy=Opaque()), 1)  # without checkpoints there is nothing to save


class Speaking(Opaque):
    def state_dict(self):
        return {"state": repr(self.generator.bit_generator.state)}

    def load_state_dict(self, state):
        self.loaded = state


def test_strategy_may_say_itself_what_is_saved(tmp_path):
    saved, resumed = Speaking(), Speaking()
    run(build(tmp_path, strategy=saved), 1)
    build(tmp_path, strategy=resumed).restore(initial_model())
    assert resumed.loaded == saved.state_dict()


def test_functions_are_settings_and_not_state(tmp_path):
    def weigh(_records, _key):
        return None

    run(build(tmp_path, strategy=FedAdam(fraction_evaluate=0.0)), 1)
    inner = FedAdam(fraction_evaluate=0.0, evaluate_metrics_aggr_fn=weigh)
    build(tmp_path, strategy=inner).restore(initial_model())
    assert inner.evaluate_metrics_aggr_fn is weigh


# ------------------------------------------------------------------ files
@pytest.mark.parametrize("keep", [1, 3])
def test_the_last_ones_are_kept(tmp_path, keep):
    run(build(checkpoints=Checkpoints(tmp_path, keep=keep)), 5)
    names = [f"round-{server_round:08d}.ckpt" for server_round in range(6 - keep, 6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.json", *names]


def test_model_comes_back_byte_by_byte(tmp_path):
    strategy = build(tmp_path)
    run(strategy, 1)
    _, snapshot = Checkpoints(tmp_path).load()
    assert isinstance(snapshot.model, ArrayRecord)
    for name, array in strategy.last_arrays.items():
        assert snapshot.model[name].data == array.data


def test_files_hold_no_code(tmp_path):
    run(build(tmp_path), 2)
    with zipfile.ZipFile(tmp_path / "round-00000002.ckpt") as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            data = archive.read(name)
            assert data.startswith(b"\x93NUMPY") if name != "manifest.json" else json.loads(data)


def test_ledger_stays_small(tmp_path):
    sizes = []
    for rounds in (1, 60):
        directory = tmp_path / str(rounds)
        run(build(directory), rounds)
        sizes.append((directory / "ledger.json").stat().st_size)
    assert sizes[1] < sizes[0] + 20


def test_ledger_survives_its_file():
    event = GaussianPrivacyEvent(noise_multiplier=1.1, sample_size=2, population_size=9)
    other = dataclasses.replace(event, noise_multiplier=0.3)
    rated = RatedEvent(1.1, 2, 9, 0.2)
    ledger = Ledger(settings={"clip_norm": 0.1})
    for server_round, charge in enumerate((event, event, other, event, rated, rated, None), 1):
        ledger = ledger.charged(server_round, charge).completed(server_round)
    assert ledger.charges == ((event, 2), (other, 1), (event, 1), (rated, 2))
    assert (ledger.num_charges, ledger.rounds_asked) == (6, 7)
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger
