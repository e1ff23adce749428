"""The device's ledger: what is charged, what is refused, and what is answered again."""

import contextlib
import errno
import math
import os
import pickle
import re
import shutil
import sqlite3
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flwr_sdp.clients import DeviceLedger, LedgerEntry, LedgerError, LocalBudgetExhausted, Request
from flwr_sdp.separated import SeparatedEvent
from tests.statistics_helpers import assert_detects

EXTRA = 3  # of PRAGMA synchronous, in SQLite's documentation


def request(message=0, data_set="ward", run="1"):
    return Request(data_set=data_set, run_id=run, message_id=f"message-{message}")


def event(epsilon, magnitude=None):
    """Return an event of this epsilon: its direction half of it, or all but `magnitude`."""
    magnitude = epsilon / 2 if magnitude is None else magnitude
    return SeparatedEvent(epsilon_direction=epsilon - magnitude, epsilon_magnitude=magnitude)


def charge(ledger, asked, epsilon=1.0, reply=b"reply", **options):
    cost = epsilon if isinstance(epsilon, SeparatedEvent) else event(epsilon)
    return ledger.charge(asked, cost, [reply], max_norm=2.0, dim=7, **options)


def exact(events):
    return sum(
        (Fraction(e.epsilon_direction) + Fraction(e.epsilon_magnitude) for e in events),
        Fraction(0),
    )


def charged(ledger):
    """Return all that a ledger knows of what was charged."""
    return [(entry.request, entry.event) for entry in ledger.entries()]


def connections(monkeypatch, kind=sqlite3.Connection, prepare=lambda _database: None):
    """Let every connection be of `kind`, and `prepare` it."""
    connect = sqlite3.connect

    def opened(*args, **options):
        database = connect(*args, **options, factory=kind)
        prepare(database)
        return database

    monkeypatch.setattr(sqlite3, "connect", opened)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path):
    return DeviceLedger(path)


# ------------------------------------------------------------------ one report
def test_a_charge_is_one_row_with_what_it_cost(ledger):
    before = datetime.now(UTC)
    cost = SeparatedEvent(epsilon_direction=0.1, epsilon_magnitude=0.7)
    assert ledger.charge(request(4), cost, [b"a", b"", b"bc"], max_norm=1.25, dim=9) is None
    (entry,) = ledger.entries()
    assert entry == LedgerEntry(
        time=entry.time, request=request(4), event=cost, max_norm=1.25, dim=9
    )
    time = datetime.fromisoformat(entry.time)
    assert time.utcoffset() == timedelta(0)
    assert before - timedelta(seconds=1) <= time <= datetime.now(UTC)
    assert ledger.reply(request(4)) == b"abc"


@pytest.mark.parametrize("is_made", [False, True])
def test_nothing_is_charged_by_asking(ledger, path, is_made):
    if is_made:
        DeviceLedger.create(path)
    before = path.read_bytes() if is_made else None
    assert ledger.reply(request()) is None
    ledger.check(request(), event(5.0), 5.0 if is_made else None)
    assert ledger.entries() == []
    assert (path.read_bytes() if path.exists() else None) == before
    assert ledger.data_sets() == []
    assert ledger.total_epsilon("ward") == 0.0
    assert ledger.renyi_epsilon("ward", 2.0) == 0.0


def test_an_empty_reply_is_a_reply(ledger):
    assert ledger.charge(request(), event(1.0), [], max_norm=1.0, dim=2) is None
    assert ledger.reply(request()) == b""
    assert charge(ledger, request()) == b""
    assert len(ledger.entries()) == 1


def test_entries_are_in_the_order_of_the_charges(ledger):
    asked = [request(message, data_set) for message, data_set in ((9, "b"), (1, "a"), (5, "b"))]
    for each in asked:
        charge(ledger, each)
    assert [entry.request for entry in ledger.entries()] == asked
    assert [entry.request for entry in ledger.entries("b")] == [asked[0], asked[2]]
    assert ledger.entries("c") == []


def test_what_is_charged_is_there_for_whoever_opens_the_file_next(ledger, path):
    """Another object, as after a restart, and a copy, as in a process of Ray's."""
    charge(ledger, request())
    for other in (DeviceLedger(path), pickle.loads(pickle.dumps(ledger))):  # noqa: S301
        assert charged(other) == charged(ledger) == [(request(), event(1.0))]


# ------------------------------------------------------------------ totals
TENTHS = [SeparatedEvent(epsilon_direction=0.1, epsilon_magnitude=0.2)] * 10
WIDE = [
    SeparatedEvent(epsilon_direction=1e16, epsilon_magnitude=1.0),
    SeparatedEvent(epsilon_direction=1.0, epsilon_magnitude=1e-9),
    SeparatedEvent(epsilon_direction=3.0, epsilon_magnitude=1.0 / 3.0),
]


@pytest.mark.parametrize("events", [TENTHS, WIDE], ids=["tenths", "wide"])
def test_total_is_the_exact_sum_rounded_once(ledger, events):
    for message, cost in enumerate(events):
        charge(ledger, request(message), cost)
    assert ledger.total_epsilon("ward") == float(exact(events))
    # Neither of the sums one would write first has this value.
    one_by_one = 0.0
    for cost in events:
        one_by_one += cost.epsilon_direction
        one_by_one += cost.epsilon_magnitude
    assert one_by_one != float(exact(events))


@pytest.mark.parametrize("order", [1.0, 2, 2.5, 64.0, 1e6])
def test_renyi_total_is_the_sum_of_the_papers_conversion(ledger, order):
    """min(epsilon, 2 order epsilon^2), in rational arithmetic; below 1 / (2 order) it helps."""
    epsilons = [0.001, 0.03, 0.2, 0.5, 1.0, 6.0]
    for message, epsilon in enumerate(epsilons):
        charge(ledger, request(message), epsilon)
    costs = [exact([event(epsilon)]) for epsilon in epsilons]
    expected = sum(min(cost, 2 * Fraction(order) * cost**2) for cost in costs)
    assert ledger.renyi_epsilon("ward", order) == pytest.approx(float(expected), rel=1e-14)
    helps = order < 1 / (2 * min(epsilons))
    assert (ledger.renyi_epsilon("ward", order) < ledger.total_epsilon("ward")) == helps


def test_renyi_total_is_of_one_data_set(ledger):
    charge(ledger, request(0, "a"), 0.1)
    charge(ledger, request(1, "b"), 0.2)
    assert ledger.renyi_epsilon("a", 2.0) == pytest.approx(0.04, rel=1e-14)
    assert ledger.renyi_epsilon("b", 2.0) == pytest.approx(0.16, rel=1e-14)


@pytest.mark.parametrize("order", [0.999, 0.0, -2.0, math.nan, math.inf, "2", True])
def test_other_orders_are_refused(ledger, order):
    with pytest.raises(ValueError, match=rf"order must be .*>= 1; got {order!r}"):
        ledger.renyi_epsilon("ward", order)


def test_budgets_are_kept_by_data_set(path):
    ledger = DeviceLedger.create(path, total_epsilon_cap=5.0)
    for data_set in ("b", "a", "partition-3"):
        charge(ledger, request(0, data_set), 4.0)
        with pytest.raises(LocalBudgetExhausted, match=f"data set '{data_set}'"):
            charge(ledger, request(1, data_set), 4.0)
    assert ledger.data_sets() == ["a", "b", "partition-3"]
    assert [ledger.total_epsilon(name) for name in ledger.data_sets()] == [4.0, 4.0, 4.0]
    assert ledger.total_epsilon("c") == 0.0


# ------------------------------------------------------------------ the lifetime cap
def test_a_report_that_would_exceed_the_cap_is_refused_and_not_charged(path):
    """At 4 a report, a third would make 12: a cap that looks at what is spent so far, 8, fails."""
    ledger = DeviceLedger.create(path, total_epsilon_cap=10.0)
    for message in range(2):
        ledger.check(request(message), event(4.0))
        assert charge(ledger, request(message), 4.0) is None
    before = charged(ledger)
    for _ in range(2):
        with pytest.raises(LocalBudgetExhausted, match=r"cap 10 .*8 is spent, .*costs 4"):
            ledger.check(request(2), event(4.0))
        with pytest.raises(LocalBudgetExhausted, match=r"cap 10 .*8 is spent, .*costs 4"):
            charge(ledger, request(2), 4.0)
    assert charged(ledger) == before
    assert len(before) == 2
    assert ledger.reply(request(2)) is None
    assert ledger.reply(request(1)) == b"reply"  # the reply that is kept stays
    charge(ledger, request(3), 2.0)  # a smaller one fits, to the last bit
    assert ledger.total_epsilon("ward") == 10.0
    with pytest.raises(LocalBudgetExhausted):
        charge(ledger, request(4), 1e-14)


@pytest.mark.parametrize(
    ("epsilon", "cap"),
    [("0.1", "1"), ("0.1", "0.3"), ("0.3", "0.9"), ("4.2", "42"), ("0.7", "2.1")],
)
def test_reports_fit_as_they_do_on_paper(path, epsilon, cap):
    """Three of 0.1 are the float after 0.3, and ten of 4.2 that after 42: they fit, and no more."""
    fit = int(Fraction(cap) / Fraction(epsilon))
    ledger = DeviceLedger.create(path, total_epsilon_cap=float(cap))
    for message in range(fit):
        ledger.check(request(message), event(float(epsilon)))
        charge(ledger, request(message), float(epsilon))
    with pytest.raises(LocalBudgetExhausted) as caught:
        charge(ledger, request(fit), float(epsilon))
    assert len(ledger.entries()) == fit
    words = re.findall(r"[\d.]*\d", str(caught.value))
    assert words[0] != words[-1]  # the cap, and what there would be in all


def test_reports_below_the_last_bit_of_the_cap_add_up(path):
    """10 and 5e-16 is 10 as a float, and so it is after each such report, added one at a time."""
    ledger = DeviceLedger.create(path, total_epsilon_cap=10.0)
    charge(ledger, request(0), 10.0)
    assert 10.0 + 5e-16 == 10.0
    most = 10.0 + 4 * math.ulp(10.0)
    fit = int((4 * Fraction(math.ulp(10.0)) + Fraction(math.ulp(10.0)) / 2) / Fraction(5e-16))
    for message in range(1, fit + 1):
        charge(ledger, request(message), 5e-16)
    assert ledger.total_epsilon("ward") == most
    with pytest.raises(LocalBudgetExhausted, match=r"cap 10 .*10\.0+7 is spent, .* 10\.0+9 in all"):
        charge(ledger, request(fit + 1), 5e-16)


@pytest.mark.parametrize(("of_ledger", "of_call"), [(10.0, 5.0), (5.0, 10.0), (None, 5.0)])
def test_the_lower_of_two_caps_holds(path, of_ledger, of_call):
    ledger = DeviceLedger.create(path, total_epsilon_cap=of_ledger)
    charge(ledger, request(0), 4.0, cap=of_call)
    with pytest.raises(LocalBudgetExhausted, match="cap 5 "):
        ledger.check(request(1), event(4.0), of_call)
    with pytest.raises(LocalBudgetExhausted, match="cap 5 "):
        charge(ledger, request(1), 4.0, cap=of_call)
    assert ledger.total_epsilon("ward") == 4.0


def test_a_cap_counts_what_was_charged_without_one(path):
    """The cap is of all the reports there were, not of those that one object made."""
    for message in range(3):
        charge(DeviceLedger(path), request(message), 4.0)
    ledger = DeviceLedger(path, total_epsilon_cap=15.0)
    with pytest.raises(LocalBudgetExhausted, match="12 is spent"):
        charge(ledger, request(3), 4.0)
    assert charge(DeviceLedger(path), request(3), 4.0) is None


@pytest.mark.parametrize("cap", [0, -1.0, math.nan, math.inf, "5", True])
def test_other_caps_are_refused_at_once(path, cap):
    with pytest.raises(ValueError, match=rf"total_epsilon_cap must be .*> 0; got {cap!r}"):
        DeviceLedger(path, total_epsilon_cap=cap)


@pytest.mark.parametrize("cap", [None, 10.0])
@pytest.mark.parametrize("epsilon", [math.nan, math.inf, -1.0])
def test_an_event_that_is_no_loss_is_not_charged(path, cap, epsilon):
    """A negative one would give back what was spent."""
    ledger = DeviceLedger(path, total_epsilon_cap=cap)
    with pytest.raises(ValueError, match="epsilon_direction must be"):
        charge(ledger, request(), epsilon)
    assert not path.exists()
    assert ledger.entries() == []
    assert ledger.reply(request()) is None


# ------------------------------------------------------------------ the same message again
def test_the_same_message_gets_the_bytes_of_the_first_for_one_charge(ledger):
    assert charge(ledger, request(), 1.0, b"first") is None
    assert charge(ledger, request(), 3.0, b"second") == b"first"
    assert ledger.reply(request()) == b"first"
    assert charged(ledger) == [(request(), event(1.0))]


def test_the_same_message_is_answered_when_the_budget_is_spent(path):
    ledger = DeviceLedger.create(path, total_epsilon_cap=4.0)
    charge(ledger, request(), 4.0, b"first")
    assert charge(ledger, request(), 4.0, b"second") == b"first"
    assert ledger.total_epsilon("ward") == 4.0


@pytest.mark.parametrize(
    "other", [request(1), request(0, "other"), request(0, run="2")], ids=["id", "data set", "run"]
)
def test_a_message_is_known_by_its_id_its_run_and_its_data_set(ledger, other):
    charge(ledger, request(0), reply=b"first")
    assert ledger.reply(other) is None
    assert charge(ledger, other, reply=b"second") is None
    assert ledger.reply(other) == b"second"
    assert [entry.request for entry in ledger.entries()] == [request(0), other]


def test_the_last_reply_of_each_data_set_is_kept(ledger):
    charge(ledger, request(0, "a"), reply=b"a0")
    charge(ledger, request(0, "b"), reply=b"b0")
    charge(ledger, request(1, "a"), reply=b"a1")
    assert ledger.reply(request(1, "a")) == b"a1"
    assert ledger.reply(request(0, "b")) == b"b0"
    before = charged(ledger)
    with pytest.raises(LedgerError, match=r"message-0 was answered before, .*no longer kept"):
        ledger.reply(request(0, "a"))
    with pytest.raises(LedgerError, match=r"message-0 was answered before, .*no longer kept"):
        charge(ledger, request(0, "a"))
    assert charged(ledger) == before
    assert ledger.reply(request(1, "a")) == b"a1"


def test_one_reply_is_on_disk_however_many_there_were(ledger, path):
    for message in range(4):
        charge(ledger, request(message), reply=bytes([message]) * 300_000)
        sizes = [each.stat().st_size for each in path.parent.iterdir() if each != path]
        assert sizes == [300_000]
    assert path.stat().st_size < 100_000
    assert ledger.reply(request(3)) == b"\3" * 300_000


def test_a_reply_is_forgotten_when_its_message_can_no_longer_come(ledger, path, monkeypatch):
    """With the next report, be it from other data. What has no time to live stays."""
    charge(ledger, request(0, "a"), reply=b"a" * 5000, time_to_live=100.0)
    charge(ledger, request(0, "b"), reply=b"b" * 5000)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 90.0)
    ledger.check(request(1, "c"), event(1.0))
    assert ledger.reply(request(0, "a")) == b"a" * 5000
    monkeypatch.setattr(time, "time", lambda: now + 110.0)
    ledger.check(request(1, "c"), event(1.0))
    with pytest.raises(LedgerError, match="no longer kept"):
        ledger.reply(request(0, "a"))
    with pytest.raises(LedgerError, match="no longer kept"):
        charge(ledger, request(0, "a"))
    assert ledger.reply(request(0, "b")) == b"b" * 5000
    assert len(list(path.parent.iterdir())) == 2
    assert len(ledger.entries()) == 2


def written_by(action):
    """Return the bytes that this process writes to files meanwhile, as the system counts them."""

    def count():
        facts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(facts["wchar"])

    before = count()
    action()
    return count() - before


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count")
def test_a_reply_is_written_once(ledger):
    """And with some pages of the database: the limit fails if as little as 5% is written twice."""
    size = 4_000_000
    for asked in map(request, range(3)):
        written = written_by(partial(charge, ledger, asked, reply=os.urandom(size)))
        assert size <= written < 1.05 * size


def test_a_reply_that_was_lost_or_cut_is_not_sent(ledger, path):
    charge(ledger, request(), reply=b"x" * 5000)
    (kept,) = [each for each in path.parent.iterdir() if each != path]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.write_bytes(b"x" * 4999)
    with pytest.raises(LedgerError, match="no longer kept"):
        ledger.reply(request())
    kept.unlink()
    with pytest.raises(LedgerError, match="no longer kept"):
        charge(ledger, request())
    assert len(ledger.entries()) == 1


def test_what_is_not_charged_leaves_no_file(path):
    ledger = DeviceLedger.create(path, total_epsilon_cap=4.0)
    with ledger.room(50_000):
        (held,) = [each for each in path.parent.iterdir() if each != path]
        assert held.stat().st_size >= 50_000
        assert stat.S_IMODE(held.stat().st_mode) == 0o600
        ledger.check(request(), event(1.0))  # sweeps, and leaves what is held
        assert held.exists()
    assert os.listdir(path.parent) == [path.name]
    with ledger.room(50_000) as room:
        charge(ledger, request(), 4.0, b"x" * 40_000, room=room)
    assert ledger.reply(request()) == b"x" * 40_000
    with ledger.room(50_000) as room, pytest.raises(LocalBudgetExhausted):
        charge(ledger, request(1), 4.0, b"x" * 40_000, room=room)
    assert len(os.listdir(path.parent)) == 2
    assert ledger.reply(request()) == b"x" * 40_000


# ------------------------------------------------------------------ lost and made
def emptied(path):
    path.write_bytes(b"")


def cut_to_a_byte(path):
    path.write_bytes(path.read_bytes()[:1])


def cut_to_its_first_page(path):
    path.write_bytes(path.read_bytes()[:4096])


def without_tables(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE replies")
        database.execute("DROP TABLE reports")


def without_replies(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE replies")


def linked_to_nothing(path):
    path.unlink()
    path.symlink_to(path.with_name("gone"))


def another_database(path):
    path.unlink()
    sqlite3.connect(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM")  # of a header, and nothing else


@pytest.mark.parametrize("where", ["ledger", "call", "nowhere"])
@pytest.mark.parametrize(
    "lose",
    [
        *(Path.unlink, emptied, cut_to_a_byte, cut_to_its_first_page, linked_to_nothing),
        *(without_tables, without_replies, another_database),
    ],
)
def test_a_lost_ledger_is_no_fresh_budget(path, lose, where):
    """Under a cap, whoever names it, nothing is allowed; without one, only what is gone is new."""
    DeviceLedger.create(path)
    for message in range(2):
        charge(DeviceLedger(path), request(message), 4.0)
    lose(path)
    before = path.read_bytes() if path.exists() else None
    is_gone = not os.path.lexists(path)
    ledger = DeviceLedger(path, total_epsilon_cap=100.0 if where == "ledger" else None)
    cap = 100.0 if where == "call" else None
    if where == "nowhere" and is_gone:
        ledger.check(request(50), event(4.0))
        assert charge(ledger, request(50), 4.0) is None
        return
    for _ in range(2):
        with pytest.raises(LedgerError, match=str(path)) as caught:
            ledger.check(request(50), event(4.0), cap)
        with pytest.raises(LedgerError, match=str(path)):
            charge(ledger, request(50), 4.0, cap=cap)
    if lose in (Path.unlink, emptied, cut_to_a_byte):
        assert f"flwr-sdp ledger {path} --new" in str(caught.value)
    assert (path.read_bytes() if path.exists() else None) == before


def test_what_cannot_be_charged_is_found_by_the_check(path):
    """Whichever of its pages is zeros: where the check passes, so does the charge."""
    charge(DeviceLedger.create(path), request(0), 4.0)
    whole, found = path.read_bytes(), []
    for start in range(0, len(whole), 4096):
        path.write_bytes(whole[:start] + bytes(4096) + whole[start + 4096 :])
        ledger = DeviceLedger(path, total_epsilon_cap=100.0)
        try:
            ledger.check(request(1), event(4.0))
        except LedgerError:
            found.append(start)
        else:
            assert charge(ledger, request(1), 4.0) is None
    assert len(found) >= 3


def test_a_ledger_that_goes_while_the_app_trains_is_not_made_anew(path):
    ledger = DeviceLedger.create(path, total_epsilon_cap=10.0)
    with ledger.room(1000) as room:
        ledger.check(request(), event(4.0))
        path.unlink()
        with pytest.raises(LedgerError, match="is missing"):
            charge(ledger, request(), 4.0, room=room)
    assert os.listdir(path.parent) == []


def test_a_ledger_is_made_once(path):
    mask = os.umask(0o022)
    try:
        ledger = DeviceLedger.create(path, total_epsilon_cap=10.0)
    finally:
        os.umask(mask)
    assert ledger.total_epsilon_cap == 10.0
    assert os.listdir(path.parent) == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    charge(DeviceLedger(path, total_epsilon_cap=10.0), request(), 4.0)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is there already"):
        DeviceLedger.create(path)
    assert path.read_bytes() == before
    for thing in (Path.mkdir, Path.touch, lambda other: other.symlink_to(path.parent / "nowhere")):
        other = path.with_name(f"other-{len(os.listdir(path.parent))}")
        thing(other)
        with pytest.raises(LedgerError, match="is there already"):
            DeviceLedger.create(other)


def test_processes_that_make_a_ledger_at_once_make_one(path):
    def make(_):
        try:
            return DeviceLedger.create(path)
        except LedgerError:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(8)))
    assert made.count(None) == 7
    assert os.listdir(path.parent) == [path.name]


# ------------------------------------------------------------------ charged by hand
@pytest.mark.parametrize("how", ["later", "at once"])
def test_what_is_charged_by_hand_counts_and_can_be_told_apart(path, how):
    if how == "at once":
        ledger = DeviceLedger.create(path, total_epsilon_cap=10.0, spent={"ward": 6.5})
    else:
        ledger = DeviceLedger.create(path, total_epsilon_cap=10.0)
        ledger.charge_by_hand("ward", 6.5)
    charge(ledger, request(), 3.5)
    by_hand, report = ledger.entries("ward")
    assert (by_hand.by_hand, report.by_hand) == (True, False)
    assert by_hand.event.epsilon == 6.5
    assert ledger.total_epsilon("ward") == 10.0
    assert ledger.renyi_epsilon("ward", 2.0) == 10.0
    with pytest.raises(LocalBudgetExhausted):
        ledger.check(request(1), event(0.1))
    for _ in range(2):  # whatever the cap: it has happened
        ledger.charge_by_hand("ward", 0.05)
    assert ledger.total_epsilon("ward") == pytest.approx(10.1, rel=1e-15)
    assert ledger.renyi_epsilon("ward", 2.0) == pytest.approx(10.0 + 2 * 4 * 0.05**2, rel=1e-14)
    assert ledger.reply(request()) == b"reply"


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "5", True])
def test_other_charges_by_hand_are_refused(path, epsilon):
    with pytest.raises(ValueError, match=rf"epsilon must be .*> 0; got {epsilon!r}"):
        DeviceLedger.create(path, spent={"ward": epsilon})
    assert os.listdir(path.parent) == []
    ledger = DeviceLedger.create(path)
    with pytest.raises(ValueError, match=rf"epsilon must be .*> 0; got {epsilon!r}"):
        ledger.charge_by_hand("ward", epsilon)
    assert ledger.entries() == []


@pytest.mark.parametrize("data_set", ["", None, 5, b"ward"])
def test_what_is_charged_by_hand_has_a_name(path, data_set):
    ledger = DeviceLedger.create(path)
    with pytest.raises(ValueError, match="data_set must be a text that is not empty"):
        ledger.charge_by_hand(data_set, 1.0)
    assert ledger.entries() == []


@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
def test_no_ledger_is_made_beside_the_journal_of_a_lost_one(path, end):
    """SQLite would play the journal into it, and give back what was charged by hand."""
    left = path.with_name(path.name + end)
    left.write_bytes(b"pages of before")
    with pytest.raises(LedgerError, match=f"{left} is left of a ledger that is lost"):
        DeviceLedger.create(path, spent={"ward": 1000.0})
    assert os.listdir(path.parent) == [left.name]


def test_nothing_is_charged_by_hand_where_there_is_no_ledger(ledger, path):
    with pytest.raises(LedgerError, match="is missing"):
        ledger.charge_by_hand("ward", 1.0)
    assert os.listdir(path.parent) == []


# ------------------------------------------------------------------ ledgers of before
FIRST_SCHEMA = """
CREATE TABLE reports (
    id INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    data_set TEXT NOT NULL,
    run_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    epsilon_direction REAL NOT NULL,
    epsilon_magnitude REAL NOT NULL,
    max_norm REAL NOT NULL,
    dim INTEGER NOT NULL,
    UNIQUE (data_set, run_id, message_id)
);
CREATE TABLE replies (report INTEGER PRIMARY KEY REFERENCES reports (id), reply BLOB NOT NULL);
PRAGMA application_id = 1935962161;
PRAGMA user_version = 1;
INSERT INTO reports VALUES (1, '2027-01-01T00:00:00+00:00', 'a', '1', 'message-0', 2, 2, 2, 7);
INSERT INTO reports VALUES (2, '2027-01-01T00:00:01+00:00', 'a', '1', 'message-1', 2, 2, 2, 7);
INSERT INTO reports VALUES (3, '2027-01-01T00:00:02+00:00', 'b', '1', 'message-0', 2, 2, 2, 7);
INSERT INTO replies VALUES (2, x'6131');
INSERT INTO replies VALUES (3, x'6230');
"""


def test_a_ledger_of_the_first_schema_is_read_as_it_is_and_goes_on(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(FIRST_SCHEMA)
    before = path.read_bytes()
    ledger = DeviceLedger(path, total_epsilon_cap=12.0)
    for written in (False, True):
        assert len(ledger.entries()) == 3
        assert [ledger.total_epsilon(name) for name in ("a", "b")] == [8.0, 4.0]
        assert ledger.reply(request(1, "a")) == b"a1"
        assert ledger.reply(request(0, "b")) == b"b0"
        with pytest.raises(LedgerError, match="no longer kept"):
            ledger.reply(request(0, "a"))
        if not written:
            assert path.read_bytes() == before
            ledger.check(request(2, "a"), event(4.0))
    charge(ledger, request(2, "a"), 4.0, b"a2")
    with pytest.raises(LocalBudgetExhausted):
        charge(ledger, request(3, "a"), 4.0)
    assert ledger.reply(request(2, "a")) == b"a2"
    assert ledger.reply(request(0, "b")) == b"b0"
    with pytest.raises(LedgerError, match="no longer kept"):
        ledger.reply(request(1, "a"))


# ------------------------------------------------------------------ the file
def test_the_file_is_its_owners(ledger, path):
    mask = os.umask(0o022)
    try:
        charge(ledger, request())
    finally:
        os.umask(mask)
    kept = list(path.parent.iterdir())
    assert len(kept) == 2  # the reply too
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_a_missing_folder_is_refused_at_once(tmp_path):
    missing = tmp_path / "missing" / "ledger.db"
    with pytest.raises(ValueError, match=r"path must be in a folder that exists; got .*missing"):
        DeviceLedger(missing)
    assert list(tmp_path.iterdir()) == []


def other_database(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE reports (id INTEGER)")


def other_application(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA application_id = 77")
        database.execute("CREATE TABLE reports (id INTEGER)")


def text(path):
    path.write_text("a text that is much longer than the header of a database: " * 40)


def newer_schema(path):
    charge(DeviceLedger(path), request())
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 3")


METHODS = {
    "charge": lambda ledger: charge(ledger, request(5)),
    "check": lambda ledger: ledger.check(request(5), event(1.0), 10.0),
    "reply": lambda ledger: ledger.reply(request(5)),
    "entries": lambda ledger: ledger.entries(),
    "total_epsilon": lambda ledger: ledger.total_epsilon("ward"),
    "renyi_epsilon": lambda ledger: ledger.renyi_epsilon("ward", 2.0),
    "data_sets": lambda ledger: ledger.data_sets(),
}


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (other_database, "is not a ledger, but another database"),
        (other_application, "is not a ledger, but another database"),
        (text, "file is not a database"),
        (newer_schema, "has schema 3; this release reads 2: install the release that wrote it"),
        (Path.mkdir, "unable to open database file"),
    ],
    ids=["database", "application", "text", "newer", "folder"],
)
def test_what_is_not_a_ledger_is_named_and_unharmed(path, make, match, method):
    make(path)
    if path.is_file():
        path.chmod(0o640)
    before = path.read_bytes() if path.is_file() else None
    files = os.listdir(path.parent)
    with pytest.raises(LedgerError, match=match) as caught:
        METHODS[method](DeviceLedger(path))
    assert str(path) in str(caught.value)
    assert os.listdir(path.parent) == files
    if before is not None:
        assert path.read_bytes() == before
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_database_of_another_application_without_tables_is_refused(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA application_id = 77")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is not a ledger"):
        charge(DeviceLedger(path), request())
    assert path.read_bytes() == before


def test_a_ledger_that_was_cut_short_is_refused(ledger, path):
    charge(ledger, request(), reply=b"x" * 50_000)
    path.write_bytes(path.read_bytes()[:9000])
    for method in METHODS.values():
        with pytest.raises(LedgerError, match=str(path)):
            method(ledger)


def test_a_ledger_is_never_in_memory(tmp_path, monkeypatch):
    """SQLite takes this name for a database that is gone after each call: no cap would hold."""
    monkeypatch.chdir(tmp_path)
    try:
        charge(DeviceLedger(":memory:"), request())
    except (ValueError, LedgerError):
        return
    assert DeviceLedger(":memory:").total_epsilon("ward") == 1.0


# ------------------------------------------------------------------ a disk that fails
def before_training(ledger, asked):
    ledger.check(asked, event(1.0))
    with ledger.room(500_000):
        pass


def full_disk(patched):
    def no_room(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    patched.setattr(os, "posix_fallocate", no_room, raising=False)


def full_without_fallocate(patched):
    patched.delattr(os, "posix_fallocate", raising=False)
    patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=400_000))


def read_only(patched):
    connections(patched, prepare=lambda database: database.execute("PRAGMA query_only = ON"))


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (full_disk, "No space left on device"),
        (full_without_fallocate, "no room for"),
        (read_only, "readonly database"),
    ],
)
def test_a_disk_that_fails_charges_nothing(ledger, path, fault, match, monkeypatch):
    """What is asked before the training finds it, and so does the charge."""
    charge(ledger, request(0), reply=b"zero")
    before, files = charged(ledger), sorted(os.listdir(path.parent))
    with monkeypatch.context() as patched:
        fault(patched)
        with pytest.raises(LedgerError, match=match) as caught:
            before_training(ledger, request(1))
        assert str(path) in str(caught.value)
        with pytest.raises(LedgerError, match=match) as caught:
            charge(ledger, request(1), reply=b"x" * 500_000)
        assert str(path) in str(caught.value)
    assert sorted(os.listdir(path.parent)) == files
    assert charged(ledger) == before
    assert ledger.reply(request(0)) == b"zero"
    assert ledger.reply(request(1)) is None
    assert charge(ledger, request(1), reply=b"x" * 500_000) is None
    assert ledger.total_epsilon("ward") == 2.0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_file_that_is_read_only_can_be_read_and_not_charged(ledger, path):
    charge(ledger, request(0))
    path.chmod(0o400)
    with pytest.raises(LedgerError, match="readonly database"):
        charge(ledger, request(1))
    assert charged(ledger) == [(request(0), event(1.0))]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_reply_that_cannot_be_made_charges_nothing(ledger, cut):
    """Some of it has been written by then; an interrupt at the keyboard is as good as any error."""

    class Parts(list):
        rounds = 0

        def __iter__(self):
            Parts.rounds += 1
            yield from self[:cut]
            if Parts.rounds > 1 or cut == 0:
                raise KeyboardInterrupt
            yield from self[cut:]

    charge(ledger, request(0), reply=b"zero")
    with pytest.raises(KeyboardInterrupt):
        ledger.charge(request(1), event(1.0), Parts([b"a", b"b", b"c"]), max_norm=1.0, dim=2)
    assert charged(ledger) == [(request(0), event(1.0))]
    assert ledger.reply(request(0)) == b"zero"
    assert ledger.reply(request(1)) is None


def test_a_ledger_that_another_process_holds_is_waited_for(ledger, path, monkeypatch):
    """The wait is cut to nothing here; then it is an error, and no report goes out uncharged."""
    charge(ledger, request(0))
    asked = []

    def impatient(database):
        (milliseconds,) = database.execute("PRAGMA busy_timeout").fetchone()
        asked.append(milliseconds)
        database.execute("PRAGMA busy_timeout = 0")

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patched:
            connections(patched, prepare=impatient)
            with pytest.raises(LedgerError, match="database is locked"):
                charge(ledger, request(1))
            assert len(ledger.entries()) == 1  # reading goes on
    assert min(asked) >= 10_000
    assert charge(ledger, request(1)) is None


# ------------------------------------------------------------------ on disk before it returns
class Watched(sqlite3.Connection):
    """Writes down, at the moment of a charge, how the connection would commit it."""

    seen: list[tuple[object, ...]] = []  # noqa: RUF012 - one list for all connections

    def execute(self, statement, *values):
        if statement.startswith("INSERT INTO reports"):
            pragmas = ("synchronous", "journal_mode", "locking_mode")
            self.seen.append(
                tuple(
                    super(Watched, self).execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas
                )
            )
        return super().execute(statement, *values)


class Careless(Watched):
    """The mutant: leaves SQLite at its default, which does not sync the folder."""

    def execute(self, statement, *values):
        if statement.upper().startswith("PRAGMA SYNCHRONOUS"):
            return super().execute("SELECT 1")
        return super().execute(statement, *values)


def check_durable(path, monkeypatch, kind):
    Watched.seen.clear()
    with monkeypatch.context() as patched:
        connections(patched, kind)
        for message in range(2):  # the file that is made, and the one that is there
            charge(DeviceLedger(path), request(message))
    assert Watched.seen == [(EXTRA, "delete", "normal")] * 2


def test_what_is_charged_is_synced_with_its_folder(tmp_path, monkeypatch):
    check_durable(tmp_path / "ledger.db", monkeypatch, Watched)
    assert_detects(check_durable, tmp_path / "other.db", monkeypatch, Careless)


def test_a_charge_is_committed_when_it_returns(ledger, path):
    """Another connection sees the row at once, and no lock is left."""
    charge(ledger, request())
    with contextlib.closing(sqlite3.connect(path, timeout=0.0)) as other, other:
        assert other.execute("SELECT count(*) FROM reports").fetchone() == (1,)
        other.execute("BEGIN EXCLUSIVE")
    assert len(os.listdir(path.parent)) == 2


# ------------------------------------------------------------------ threads
def test_threads_may_share_a_ledger(path):
    """12 charges in four threads under a cap for 9."""
    ledger = DeviceLedger.create(path, total_epsilon_cap=9.5)

    def one(message):
        try:
            return charge(ledger, request(message), 1.0, b"%d" % message) is None
        except LocalBudgetExhausted:
            return False

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(one, range(12)))
    assert sum(done) == 9
    assert ledger.total_epsilon("ward") == 9.0
    assert {entry.request for entry in ledger.entries()} == {
        request(message) for message in range(12) if done[message]
    }


def test_threads_that_answer_one_message_send_the_same_bytes(ledger):
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda n: charge(ledger, request(), reply=b"%d" % n), range(4)))
    sent = {b"%d" % n if other is None else other for n, other in enumerate(others)}
    assert others.count(None) == 1
    assert sent == {ledger.reply(request())}
    assert len(ledger.entries()) == 1


# ------------------------------------------------------------------ any sequence of charges
EPSILONS = st.one_of(
    st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0]), st.floats(1e-9, 3.0), st.floats(1e-300, 1e-290)
)


class AnySequence(RuleBasedStateMachine):
    """The ledger against a dict. Every call is made by a new object, as after a restart."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "ledger.db"
        self.cap = None
        self.charged = {}  # data set -> {request: event}
        self.last = {}  # data set -> (request, reply)

    def teardown(self):
        self.folder.cleanup()

    def open(self):
        return DeviceLedger(self.path, total_epsilon_cap=self.cap)

    @initialize(cap=st.sampled_from([None, 0.3, 1.0, 2.5]))
    def start(self, cap):
        self.cap = cap
        DeviceLedger.create(self.path)  # as there are caps

    def expected(self, asked, cost, cap):
        """Return what is to be raised or returned: kept reply, no longer kept, exhausted, None."""
        before = self.charged.get(asked.data_set, {})
        if asked in before:
            last, reply = self.last[asked.data_set]
            return reply if last == asked else LedgerError
        total = float(exact([*before.values(), cost]))
        caps = (each + 4 * math.ulp(each) for each in (cap, self.cap) if each is not None)
        fits = all(total <= each for each in caps)
        return None if fits else LocalBudgetExhausted

    @rule(
        message=st.integers(0, 3),
        run=st.sampled_from(["1", "2"]),
        data_set=st.sampled_from(["a", "b", "ü'\n;--"]),
        direction=EPSILONS,
        magnitude=EPSILONS,
        reply=st.binary(max_size=20),
        cap=st.sampled_from([None, None, 0.5, 2.0]),
    )
    def charge(self, message, run, data_set, direction, magnitude, reply, cap):
        asked = request(message, data_set, run)
        cost = SeparatedEvent(epsilon_direction=direction, epsilon_magnitude=magnitude)
        expected = self.expected(asked, cost, cap)
        if isinstance(expected, type):
            with pytest.raises(expected):
                charge(self.open(), asked, cost, reply, cap=cap)
            return
        assert charge(self.open(), asked, cost, reply, cap=cap) == expected
        if expected is None:
            self.charged.setdefault(data_set, {})[asked] = cost
            self.last[data_set] = (asked, reply)

    @invariant()
    def totals_agree(self):
        ledger = self.open()
        assert ledger.data_sets() == sorted(self.charged)
        for name, events in self.charged.items():
            assert {e.request: e.event for e in ledger.entries(name)} == events
            assert len(ledger.entries(name)) == len(events)
            assert ledger.total_epsilon(name) == float(exact(events.values()))
            most = math.inf if self.cap is None else self.cap + 4 * math.ulp(self.cap)
            assert ledger.total_epsilon(name) <= most
            assert ledger.reply(self.last[name][0]) == self.last[name][1]


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=20, stateful_step_count=20)
