"""Two live servers and one folder: one of them goes on, and no model is released uncharged."""

import contextlib
import errno
import gc
import logging
import os
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from flwr_sdp.strategies import CheckpointError, Checkpoints, folder_lock
from tests.messages import FakeGrid, error_reply, flat, private_reply
from tests.strategies.resumable import NODES, build, initial_model, run
from tests.strategies.test_checkpoint import ROOT, Killed, same, unbroken

IN_USE = "is in use by another strategy of this process, whose run is not over"
CHANGED = r"ledger\.json is not as this run left it"
posix = pytest.mark.skipif(os.name != "posix", reason="how processes are forked on POSIX")


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """What is on disk when is the matter of test_checkpoint."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def once(action, at):
    """Return what does `action` when it first hears of round `at`."""
    done = []

    def hear(heard, *_):
        server_round = heard if isinstance(heard, int) else heard.content["config"]["server-round"]
        if server_round == at and not done:
            done.append(1)
            action()

    return hear


# ------------------------------------------------------------------ where there are locks
@pytest.mark.parametrize("hangs", ["on_question", "evaluate"])
@pytest.mark.parametrize("go", ["resume", "start", "restore"])
def test_a_second_run_is_refused_while_the_first_hangs(tmp_path, hangs, go):
    """At a question of round 2, or while the model of round 2 is evaluated; the first goes on."""
    _, expected = unbroken(4)

    def second():
        asked, before = [], files(tmp_path)
        grid = FakeGrid(range(NODES), lambda message: asked.append(message) or error_reply(message))
        second = build(tmp_path)
        arguments = () if go == "restore" else (grid,)
        with pytest.raises(CheckpointError, match=IN_USE):
            getattr(second, go)(*arguments, initial_model())
        assert asked == []
        assert files(tmp_path) == before

    first = build(tmp_path)
    same(run(first, 4, **{hangs: once(second, 2)}).arrays, expected.arrays)
    assert first.privacy_spent().num_releases == Checkpoints(tmp_path).load()[0].num_charges == 4


def test_of_two_that_start_at_once_in_an_empty_folder_one_does(tmp_path):
    """The second comes between the first look at the folder and the first file in it."""
    asked = []

    def second(*_):
        with pytest.raises(CheckpointError, match=IN_USE):
            run(build(tmp_path / "new"), 2, on_question=asked.append)

    run(build(tmp_path / "new"), 2, evaluate=once(second, 0))
    assert asked == []


@pytest.mark.parametrize("end", [None, Killed, KeyboardInterrupt, RuntimeError])
def test_the_folder_is_free_when_the_run_has_ended_however_it_did(tmp_path, end):
    def stop():
        if end is not None:
            raise end

    first = build(tmp_path)  # it is still there when the second one runs
    with contextlib.suppress(Killed, KeyboardInterrupt, RuntimeError):
        run(first, 3, on_question=once(stop, 2))
    assert not (tmp_path / ".lock").exists()
    strategy = build(tmp_path)
    run(strategy, 3, resume=True)
    assert strategy.privacy_spent().num_releases == 3


RESTORE = """
import sys
from flwr_sdp.strategies import CheckpointError
from tests.strategies.resumable import build, initial_model
try:
    build(sys.argv[1]).restore(initial_model())
except CheckpointError as error:
    print(error)
"""


def test_a_loop_of_ones_own_keeps_other_processes_off_until_it_is_deleted(tmp_path):
    def elsewhere():
        command = [sys.executable, "-c", RESTORE, tmp_path]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    strategy, grid = build(tmp_path), FakeGrid(range(NODES), private_reply)
    strategy.configure_train(1, initial_model(), ConfigRecord(), grid)
    assert f"in use by process {os.getpid()} on " in elsewhere()
    assert Checkpoints(tmp_path).load()[0].num_charges == 1  # whoever only looks may
    del strategy
    gc.collect()
    assert elsewhere() == ""


@pytest.mark.parametrize("go", ["resume", "restore"])
@pytest.mark.parametrize("asked", [True, False])
def test_the_last_strategy_of_a_process_has_the_folder(tmp_path, go, asked):
    """An older one may be in a variable still. If it goes on, it charges and releases nothing."""
    first, grid = build(tmp_path), FakeGrid(range(NODES), private_reply)
    messages = first.configure_train(1, initial_model(), ConfigRecord(), grid)
    model, _ = first.aggregate_train(1, list(grid.send_and_receive(messages)))
    replies = []
    if asked:
        messages = first.configure_train(2, model, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
    second = build(tmp_path)
    if go == "resume":
        run(second, 3, resume=True)
    else:
        messages = second.configure_train(2, second.restore(initial_model()), ConfigRecord(), grid)
        second.aggregate_train(2, list(grid.send_and_receive(messages)))
    before, sent = files(tmp_path), len(grid.sent)
    go_on = (
        partial(first.aggregate_train, 2, replies)
        if asked
        else partial(first.configure_train, 2, model, ConfigRecord(), grid)
    )
    with pytest.raises(CheckpointError, match=CHANGED):
        go_on()
    assert (files(tmp_path), len(grid.sent)) == (before, sent)
    assert second.privacy_spent().num_releases == (3 if go == "resume" else 2)
    assert Checkpoints(tmp_path).load()[0].num_charges == second.privacy_spent().num_releases


@pytest.mark.parametrize("code", [errno.EROFS, errno.ESTALE, errno.ENOTDIR])
@pytest.mark.parametrize("failing", ["unlink", "stat"])
def test_a_run_that_is_over_stays_so_whatever_becomes_of_the_lock(
    tmp_path, monkeypatch, code, failing
):
    real = getattr(os, failing)

    def fail(what, *arguments, **options):
        if str(what).endswith(".lock"):
            raise OSError(code, os.strerror(code))
        return real(what, *arguments, **options)

    strategy = build(tmp_path)

    spoil = once(lambda: monkeypatch.setattr(os, failing, fail), 1)
    try:
        result = run(strategy, 1, on_question=spoil)
    finally:
        monkeypatch.undo()
    assert result.arrays


@posix
@pytest.mark.parametrize("what", ["folder", "link"])
def test_something_else_in_the_place_of_the_lock_is_said(tmp_path, what):
    lock = tmp_path / ".lock"
    lock.mkdir() if what == "folder" else lock.symlink_to(tmp_path / "missing" / "file")
    with pytest.raises(CheckpointError, match=r"\.lock cannot be opened .*: remove it"):
        run(build(tmp_path), 1)


@posix
def test_the_lock_that_another_user_left_behind_is_taken(tmp_path, monkeypatch):
    """A file that may only be read, which holds for root as well here."""
    (tmp_path / ".lock").write_text("process 1 on a machine")
    real = os.open

    def denied(path, flags, *arguments, **options):
        if str(path).endswith(".lock") and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", denied)
    run(build(tmp_path), 1, on_question=once(lambda: lock_is_held(tmp_path), 1))
    assert not (tmp_path / ".lock").exists()


def lock_is_held(folder):
    with pytest.raises(BlockingIOError):
        folder_lock.FolderLock(folder)


def test_a_run_that_went_on_elsewhere_is_not_taken_up_by_who_ended_it(tmp_path):
    """The first run ended; a second went on from its checkpoints; then the first is used again."""
    first, grid = build(tmp_path), FakeGrid(range(NODES), private_reply)
    run(first, 2)
    run(build(tmp_path), 3, resume=True)
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=CHANGED):
        first.configure_train(3, first.last_arrays, ConfigRecord(), grid)
    assert files(tmp_path) == before


@pytest.mark.parametrize("missing", ["missing", "new"])
def test_a_refused_resumption_leaves_nothing(tmp_path, missing):
    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run(build(tmp_path / missing), 1, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert not list((tmp_path / "new").iterdir())


HOLD = """
import sys
from pathlib import Path
from flwr_sdp.strategies.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_another_process_holds_until_it_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=rf"in use by process {other.pid} on "):
            run(build(tmp_path), 1)
        other.kill()
        other.wait()
        assert (tmp_path / ".lock").exists()
        run(build(tmp_path), 1)
    assert not (tmp_path / ".lock").exists()


FORK = """
import os, sys
from pathlib import Path
from flwr_sdp.strategies.folder_lock import FolderLock

def is_free():
    try:
        FolderLock(folder).release()
    except BlockingIOError:
        return False
    return True

folder = Path(sys.argv[1])
lock = FolderLock(folder)
(told, tell), (ended, end) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(end)
    held = lock.is_held
    lock.release()
    os.write(tell, b"01"[held or is_free()].to_bytes())
    os.read(ended, 1)  # until its parent has ended
    os._exit(0)
print("held by the child:", os.read(told, 1).decode())
print("free for the parent:", is_free())
lock.release()
print("free after the release:", is_free())
"""


@posix
def test_a_forked_child_neither_holds_the_lock_nor_ends_it(tmp_path):
    """It lives on when its parent gives the lock back, and has done what a strategy's end does."""
    told = subprocess.run(
        [sys.executable, "-c", FORK, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == [
        "held by the child: 0",
        "free for the parent: False",
        "free after the release: True",
    ]


def test_a_program_that_is_started_does_not_hold_the_lock(tmp_path):
    lock = folder_lock.FolderLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        lock.release()
        folder_lock.FolderLock(tmp_path).release()
        program.communicate(b"end")


@posix
def test_a_lock_that_is_given_back_while_another_waits_is_not_held_twice(tmp_path, monkeypatch):
    """Its file is removed between the opening and the locking of the next one."""
    first = folder_lock.FolderLock(tmp_path)
    lock = folder_lock._lock

    def late(descriptor):
        first.release()
        lock(descriptor)

    monkeypatch.setattr(folder_lock, "_lock", late)
    second = folder_lock.FolderLock(tmp_path)
    monkeypatch.undo()
    with pytest.raises(BlockingIOError):
        folder_lock.FolderLock(tmp_path)
    assert second.is_held


# ------------------------------------------------------------------ where there are none
def lose_lock(folder):
    (folder / ".lock").unlink()


def replace_folder(folder):
    """A backup takes its place, say."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    folder.rename(folder.with_name("away"))
    copy.rename(folder)
    (folder / ".lock").unlink()


@pytest.mark.parametrize("lose", [lose_lock, replace_folder])
@pytest.mark.parametrize("hangs", ["on_question", "evaluate"])
@pytest.mark.parametrize("target", [2, 3, 5])
def test_who_finds_the_ledger_changed_stops(tmp_path, lose, hangs, target):
    """The first hangs in round 2, and another goes on to the round `target`; then it wakes.

    It releases nothing more, asks nobody and writes over nothing. Models seen by anyone are as many
    as are charged at most.
    """
    folder, released, asked = tmp_path / "run", [], []

    def release(server_round, model):
        if server_round:
            released.append((server_round, flat(model).tobytes()))

    def second():
        lose(folder)
        other = build(folder)
        run(other, target, resume=True, evaluate=release)
        second.left = files(folder)
        del asked[:]

    hang = once(second, 2)

    def evaluate(server_round, model):
        release(server_round, model)
        if hangs == "evaluate":
            hang(server_round)

    def question(message):
        asked.append(message.content["config"]["server-round"])
        if hangs == "on_question":
            hang(message)

    first = build(folder)
    if (target, hangs) == (2, "evaluate"):  # the other one had nothing to do
        run(first, 5, on_question=question, evaluate=evaluate)
        assert len(set(released)) == Checkpoints(folder).load()[0].num_charges == 5
        return
    with pytest.raises(CheckpointError, match=CHANGED):
        run(first, 5, on_question=question, evaluate=evaluate)
    assert set(asked) <= ({2} if hangs == "on_question" else set())  # of the round it hung in
    assert files(folder) == second.left
    charged = Checkpoints(folder).load()[0].num_charges
    assert len(set(released)) == target <= charged
    strategy = build(folder)
    run(strategy, 6, resume=True)
    assert strategy.privacy_spent().num_releases == 6


def test_who_finds_the_ledger_changed_asks_for_no_evaluation(tmp_path):
    strategy = build(tmp_path, strategy=FedAvg(fraction_evaluate=1.0))
    grid, ledger = FakeGrid(range(NODES), private_reply), tmp_path / "ledger.json"
    messages = strategy.configure_train(1, initial_model(), ConfigRecord(), grid)
    model, _ = strategy.aggregate_train(1, list(grid.send_and_receive(messages)))
    ledger.write_bytes(ledger.read_bytes() + b"\n")
    with pytest.raises(CheckpointError, match=CHANGED):
        strategy.configure_evaluate(1, model, ConfigRecord(), grid)


@pytest.mark.parametrize("change", ["removed", "touched", "older"])
def test_a_ledger_that_was_changed_by_hand_stops_the_run(tmp_path, change):
    """The last model it released is what it had."""
    older = []

    def act():
        ledger = tmp_path / "ledger.json"
        if change == "removed":
            ledger.unlink()
        else:
            ledger.write_bytes(older[0] if change == "older" else ledger.read_bytes() + b"\n")

    def look(server_round, _model):
        older.append((tmp_path / "ledger.json").read_bytes() if server_round else b"")
        if server_round == 1:
            older[:] = older[-1:]

    strategy = build(tmp_path)
    with pytest.raises(CheckpointError, match=CHANGED):
        run(strategy, 3, on_question=once(act, 2), evaluate=look)
    np.testing.assert_array_equal(flat(strategy.last_arrays), flat(unbroken(1)[1].arrays))


@posix
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF])
def test_a_file_system_without_locks_is_said_and_the_ledger_guards(
    tmp_path, monkeypatch, caplog, code
):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with (
        caplog.at_level(logging.WARNING, logger="flwr"),
        pytest.raises(CheckpointError, match=CHANGED),
    ):
        run(
            build(tmp_path),
            4,
            on_question=once(lambda: run(build(tmp_path), 3, resume=True), 2),
        )
    assert f"cannot be locked ({os.strerror(code)})" in caplog.text
    assert Checkpoints(tmp_path).load()[0].num_charges == 3
