"""The ledger across processes: devices that are killed at any moment, and several at once.

One host process imports everything once, and forks a process for each device. What a device prints
is what has left it.
"""

import json
import os
import random
import select
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from flwr_sdp import SeparatedBudget, SeparatedMechanism
from flwr_sdp.clients import DeviceLedger, Request
from tests.statistics_helpers import assert_detects

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="devices are forked processes")

ROOT = Path(__file__).resolve().parents[2]
EVENT = SeparatedMechanism.from_budget(
    8, SeparatedBudget(epsilon_direction=3.0, epsilon_magnitude=1.0), 2.0
).event

HOST = '''
import contextlib, hashlib, json, os, resource, signal, sqlite3, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
os.umask(0o022)
import numpy as np
from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import (
    DeviceLedger, LedgerError, LocalBudgetExhausted, Request, SeparatedDPMod
)
from flwr_sdp.clients.held_file import HeldFile
from flwr_sdp.clients.stored_reply import decode
from flwr_sdp.clients.testing import context, message
from flwr_sdp.separated import SeparatedEvent
from tests.messages import client_app, record, reply_with, shifted


def say(**facts):
    os.write(1, json.dumps(facts).encode() + b"\\n")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def digest(content):
    """All that is in a reply."""
    made = hashlib.sha256()
    for name, rec in content.items():
        for key, value in rec.items():
            facts = (name, key, getattr(value, "dtype", value), getattr(value, "shape", ""))
            made.update(repr(facts).encode() + getattr(value, "data", b""))
    return made.hexdigest()


class Spied(sqlite3.Connection):
    """Once the app was asked, kills the process before a statement."""

    kill, armed, autocommit = None, False, False

    def execute(self, statement, *values):
        if self.autocommit and statement.split()[0] in ("BEGIN", "COMMIT", "ROLLBACK"):
            return super().execute("SELECT 1")
        if self.kill and self.armed and statement.startswith(self.kill):
            die()
        return super().execute(statement, *values)


def write_half(file, parts):
    """And end."""
    write(file, [b"".join(parts)[: sum(map(len, parts)) // 2]])
    die()


write = HeldFile.write


def spy(kill, autocommit):
    Spied.kill, Spied.autocommit = kill, autocommit
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=Spied)


def kill_after_charge(late):
    charge = DeviceLedger.charge

    def charge_and_die(self, request, event, reply, **options):
        if not late:
            charge(self, request, event, reply, **options)
        say(charged=digest(decode(b"".join(reply))))
        die()

    DeviceLedger.charge = charge_and_die


def device(path, messages, *, cap=None, dim=8, kill=None, mutant=None, pause=False, limit=None):
    """Answer messages with an app behind the mod."""
    calls = []

    def train(asked, _):
        calls.append(1)
        if kill == "train":
            die()
        Spied.armed = True
        return reply_with(asked, shifted(asked.content["arrays"], 0.1))

    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if kill == "after charge":
        kill_after_charge(late=mutant == "late")
    elif kill == "chmod":
        Path.chmod = os.chmod = os.fchmod = lambda *_, **__: die()
    elif kill == "write":
        HeldFile.write = write_half
    elif kill not in (None, "train"):
        spy(kill, autocommit=mutant == "autocommit")
    caps = {"sdp-ledger": path} | ({} if cap is None else {"sdp-total-epsilon-cap": cap})
    budget = SeparatedBudget(epsilon_direction=3.0, epsilon_magnitude=1.0)
    app = client_app(SeparatedDPMod(budget, 2.0), train)
    model = record({"w": np.zeros(dim)})
    say(pid=os.getpid())
    for number in range(*messages):
        asked = message({"arrays": model}, message_id=f"message-{number}")
        reply = app(asked, context(node_config=caps))
        if reply.has_error():
            say(refused=number, reason=reply.error.reason, trained=len(calls))
            if pause:
                signal.pause()
            break
        say(message=number, digest=digest(reply.content))


def charges(path, first, count, *, cap=None, size=5, ledger=None, limit=None):
    """Charge some reports to a ledger, 1.0 each."""
    ledger = ledger or DeviceLedger(path, total_epsilon_cap=cap)
    if limit:
        most = os.path.getsize(path) + limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    cost = SeparatedEvent(epsilon_direction=0.5, epsilon_magnitude=0.5)
    for number in range(first, first + count):
        asked = Request(data_set="ward", run_id="1", message_id=f"message-{number}")
        try:
            done = ledger.charge(asked, cost, [b"x" * size], max_norm=2.0, dim=8) is None
        except LocalBudgetExhausted:
            done = "exhausted"
        except LedgerError as error:
            done = str(error)
        say(message=number, done=done)


def several(path, processes, count, **options):
    """Start processes that wait for each other before they charge."""
    ready, go = os.pipe(), os.pipe()
    for index in range(processes):
        if (pid := os.fork()) == 0:
            os.close(go[1])
            os.write(ready[1], b".")
            os.read(go[0], 1)
            charges(path, index * count, count, **options)
            os._exit(0)
    for _ in range(processes):
        os.read(ready[0], 1)
    os.close(go[1])
    for _ in range(processes):
        os.wait()


def forked(path):
    """Use one ledger before, in and after a fork."""
    ledger = DeviceLedger.create(path, total_epsilon_cap=3.5)
    charges(path, 0, 1, ledger=ledger)
    if os.fork() == 0:
        charges(path, 1, 1, ledger=ledger)
        os._exit(0)
    os.wait()
    charges(path, 2, 2, ledger=ledger)


for line in sys.stdin:
    name, options = json.loads(line)
    pid = os.fork()
    if pid == 0:
        try:
            globals()[name](**options)
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    say(ended=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
'''


class Host:
    """Starts devices, and reads what they say."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        )
        self.buffer = b""

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def start(self, scenario, **options):
        self.process.stdin.write(json.dumps([scenario, options]).encode() + b"\n")
        self.process.stdin.flush()

    def line(self, until=None):
        """Return what is said next, or None when the moment `until` has come."""
        while b"\n" not in self.buffer:
            wait = 60.0 if until is None else max(until - time.monotonic(), 0.0)
            if not select.select([self.process.stdout], [], [], wait)[0]:
                assert until is not None, "the device hangs"
                return None
            read = os.read(self.process.stdout.fileno(), 65536)
            assert read, "the host ended"
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def rest(self):
        """Return what a device says until its end, and the signal that ended it."""
        said = []
        while "ended" not in (line := self.line()):
            said.append(line)
        return said, line["ended"]

    def run(self, scenario, path, **options):
        self.start(scenario, path=str(path), **options)
        return self.rest()


@pytest.fixture(scope="module")
def host():
    started = Host()
    yield started
    started.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def asked(number):
    return Request(data_set="default", run_id="1", message_id=f"message-{number}")


def charged(path):
    return [entry.request for entry in DeviceLedger(path).entries()]


def replies(said):
    return {line["message"]: line["digest"] for line in said if "message" in line}


def integrity(path):
    database = sqlite3.connect(path)
    try:
        return database.execute("PRAGMA integrity_check").fetchone()[0]
    finally:
        database.close()


# ------------------------------------------------------------------ charged, and not yet sent
def check_killed_between_charge_and_reply(host, path, mutant=None):
    """The row is there, and the same message gets the reply that was charged, for nothing more."""
    said, ended = host.run("device", path, messages=[0, 1], kill="after charge", mutant=mutant)
    assert ended == signal.SIGKILL
    assert replies(said) == {}
    (digest,) = [line["charged"] for line in said if "charged" in line]
    assert charged(path) == [asked(0)]
    for _ in range(2):
        said, ended = host.run("device", path, messages=[0, 1])
        assert ended == 0
        assert replies(said) == {0: digest}
        assert charged(path) == [asked(0)]


def test_a_device_that_is_killed_after_the_charge_sends_the_same_reply_later(host, tmp_path):
    """The mutant has charged nothing yet when its reply is ready."""
    check_killed_between_charge_and_reply(host, tmp_path / "ledger.db")
    assert_detects(check_killed_between_charge_and_reply, host, tmp_path / "late.db", "late")


# ------------------------------------------------------------------ in the middle of a charge
def check_killed_in_the_charge(host, path, kill, mutant=None):
    """Nothing is charged, the file is whole, and the message is answered as if for the first time.

    Message 0 has been answered before, and its reply is kept throughout. What was reserved for the
    other, or written of it, is in a file when the process ends, and must go again.
    """
    dim = 60_000
    first, _ = host.run("device", path, messages=[0, 1], dim=dim)
    assert list(replies(first)) == [0]
    assert len(os.listdir(path.parent)) == 2
    said, ended = host.run("device", path, messages=[1, 2], dim=dim, kill=kill, mutant=mutant)
    assert ended == signal.SIGKILL
    assert replies(said) == {}
    if kill == "COMMIT":
        assert path.with_name(f"{path.name}-journal").stat().st_size > 0
    sizes = sorted(each.stat().st_size for each in path.parent.glob("*-reply-*"))
    assert len(sizes) == 2
    assert sizes[1] > 8 * dim or kill == "write"
    assert charged(path) == [asked(0)]
    assert integrity(path) == "ok"
    said, _ = host.run("device", path, messages=[0, 2], dim=dim)
    assert list(replies(said)) == [0, 1]
    assert replies(said)[0] == replies(first)[0]
    assert charged(path) == [asked(0), asked(1)]
    assert len(os.listdir(path.parent)) == 2


@pytest.mark.parametrize(
    "kill",
    "train, write, INSERT INTO reports, DELETE FROM replies, INSERT INTO replies, COMMIT".split(
        ", "
    ),
)
def test_a_device_that_is_killed_in_the_charge_has_charged_nothing(host, path, kill):
    check_killed_in_the_charge(host, path, kill)


def test_a_device_that_is_killed_before_it_tidies_up_has_charged(host, path):
    """Both replies are in files then: the next message finds the old one without a name."""
    host.run("device", path, messages=[0, 1])
    said, ended = host.run(
        "device", path, messages=[1, 2], kill="DELETE FROM replies WHERE expires"
    )
    assert (ended, replies(said)) == (signal.SIGKILL, {})
    assert charged(path) == [asked(0), asked(1)]
    assert len(os.listdir(path.parent)) == 3
    said, _ = host.run("device", path, messages=[1, 3])
    assert list(replies(said)) == [1, 2]
    assert charged(path) == [asked(0), asked(1), asked(2)]
    assert len(os.listdir(path.parent)) == 2


def test_a_charge_and_its_reply_are_one_transaction(host, path):
    """The mutant commits each statement."""
    assert_detects(check_killed_in_the_charge, host, path, "INSERT INTO replies", "autocommit")


@pytest.mark.parametrize(
    "kill", ["BEGIN", "CREATE TABLE replies", "PRAGMA application_id =", "COMMIT", "chmod"]
)
def test_a_device_that_is_killed_while_it_makes_its_ledger_makes_it_again(host, path, kill):
    said, ended = host.run("device", path, messages=[0, 1], kill=kill)
    if kill != "chmod" or ended:  # a file that is made for its owner alone needs no chmod
        assert ended == signal.SIGKILL
        assert replies(said) == {}
    said, _ = host.run("device", path, messages=[0, 1])
    assert list(replies(said)) == [0]
    assert charged(path) == [asked(0)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ------------------------------------------------------------------ at any moment
def test_a_device_that_is_killed_at_any_moment_has_charged_what_has_left_it(host, path):
    """Eight times, from the making of the file on: at most the one reply that was on its way.

    Each comes up to 30 ms after up to three replies; a message takes 15 ms or more. After a restart
    the first message that got no reply is sent again.
    """
    moments, most = random.Random(5), 40  # noqa: S311
    cap = float(EVENT.epsilon * most)
    DeviceLedger.create(path, total_epsilon_cap=cap)
    seen = {}
    for _ in range(8):
        host.start("device", path=str(path), messages=[len(seen), 1000], cap=cap, pause=True)
        pid = host.line()["pid"]
        said = [host.line() for _ in range(moments.randrange(4))]
        until = time.monotonic() + moments.uniform(0.0, 0.03)
        while (line := host.line(until)) is not None:
            said.append(line)
        os.kill(pid, signal.SIGKILL)
        rest, ended = host.rest()
        assert ended == signal.SIGKILL
        new = replies(said + rest)
        assert seen.keys().isdisjoint(new)
        seen |= new
        rows = charged(path)
        assert len(rows) == len(set(rows)) <= most
        assert rows == [asked(number) for number in range(len(rows))]
        assert list(seen) == list(range(len(seen)))
        assert 0 <= len(rows) - len(seen) <= 1
    said, ended = host.run("device", path, messages=[len(seen), 1000], cap=cap)
    assert ended == 0
    assert said[-1]["refused"] == most
    assert "total epsilon cap" in said[-1]["reason"]
    seen |= replies(said)
    assert list(seen) == list(range(most))
    assert len(set(seen.values())) == most
    entries = DeviceLedger(path).entries()
    assert [entry.request for entry in entries] == [asked(number) for number in range(most)]
    assert {entry.event for entry in entries} == {EVENT}
    spent = sum(
        Fraction(e.event.epsilon_direction) + Fraction(e.event.epsilon_magnitude) for e in entries
    )
    assert float(spent) <= cap


# ------------------------------------------------------------------ several at once
@pytest.mark.parametrize(("cap", "fit"), [(None, 40), (25.5, 25)])
def test_processes_that_charge_at_once_count_each_other(host, path, cap, fit):
    """4 processes of 10 reports each; without a cap on a file that none of them has made yet."""
    if cap is not None:
        DeviceLedger.create(path)
    said, _ = host.run("several", path, processes=4, count=10, cap=cap)
    assert len(said) == 40
    assert Counter(str(line["done"]) for line in said) == Counter(
        {"True": fit} | ({"exhausted": 40 - fit} if fit < 40 else {})
    )
    ledger = DeviceLedger(path)
    assert ledger.total_epsilon("ward") == fit
    assert {entry.request.message_id for entry in ledger.entries()} == {
        f"message-{line['message']}" for line in said if line["done"] is True
    }
    assert len(ledger.entries()) == fit


def test_a_ledger_may_be_used_on_both_sides_of_a_fork(host, path):
    said, ended = host.run("forked", path)
    assert ended == 0
    assert [line["done"] for line in said] == [True, True, True, "exhausted"]
    assert DeviceLedger(path).total_epsilon("ward") == 3.0


def test_a_disk_that_is_full_charges_nothing(host, path):
    """The system refuses to let files grow by more than 8 KB; a reply has 1 MB."""
    host.run("charges", path, first=0, count=1)
    (line,), _ = host.run("charges", path, first=1, count=1, size=1_000_000, limit=8192)
    assert f"the ledger {path} failed: " in line["done"]
    assert len(os.listdir(path.parent)) == 2
    assert len(charged(path)) == 1
    assert integrity(path) == "ok"
    (line,), _ = host.run("charges", path, first=1, count=1, size=1_000_000)
    assert line["done"] is True
    assert len(charged(path)) == 2


def test_a_disk_that_is_full_is_found_before_the_app_is_asked(host, path):
    """The system refuses files of more than 100 KB; a reply has 480 KB."""
    host.run("device", path, messages=[0, 1], dim=60_000)
    said, _ = host.run("device", path, messages=[1, 2], dim=60_000, limit=100_000)
    (refused,) = [line for line in said if "refused" in line]
    assert refused["trained"] == 0
    assert refused["reason"].endswith("the ledger of this device cannot be used, see its log")
    assert str(path) not in refused["reason"]
    assert charged(path) == [asked(0)]
    assert len(os.listdir(path.parent)) == 2
    said, _ = host.run("device", path, messages=[1, 2], dim=60_000)
    assert list(replies(said)) == [1]
