"""flwr-sdp ledger: what a device has spent, as a table and as JSON."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_sdp import cli
from flwr_sdp._rounding import round_up
from flwr_sdp.clients import DeviceLedger, Request
from flwr_sdp.separated import SeparatedEvent

COMMAND = Path(sys.executable).parent / "flwr-sdp"


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs the command in this process: status, output, errors."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("COLUMNS", "80")

    def called(*arguments):
        monkeypatch.setattr(sys, "argv", ["flwr-sdp", "ledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    yield called
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_nothing_is_charged_where_it_cannot_be_shown(path, run):
    """Whoever repeats a command that has failed would charge twice."""
    for order in ("inf", "nan"):
        status, _, errors = run(path, "--charge", 5, "--data-set", "ward", "--order", order)
        assert (status, "order must be a finite number >= 1" in errors) == (2, True)
    assert not any(entry.by_hand for entry in DeviceLedger(path).entries())


def test_a_data_set_that_was_not_there_is_said(path, run):
    status, _, errors = run(path, "--charge", 5, "--data-set", "wards")
    assert status == 0
    assert "'wards' is new in this ledger, which had 'clinic', 'ward'" in errors
    assert run(path, "--charge", 5, "--data-set", "ward")[2] == ""


def charge(path, number, direction, magnitude, data_set="ward", message="message"):
    DeviceLedger(path).charge(
        Request(data_set=data_set, run_id="17", message_id=f"{message}-{number}"),
        SeparatedEvent(epsilon_direction=direction, epsilon_magnitude=magnitude),
        [b"reply"],
        max_norm=2.5,
        dim=1234,
    )


@pytest.fixture
def path(tmp_path):
    """Return a ledger of two data sets."""
    made = tmp_path / "ledger.db"
    charge(made, 0, 50.0, 10.0)
    charge(made, 1, 0.1, 0.2, "clinic")
    charge(made, 2, 50.0, 10.0)
    charge(made, 3, 0.01, 0.02, "clinic")
    return made


def cells(line):
    """Return the cells of a line, which stand two spaces apart."""
    return re.split(r"\s{2,}", line.strip())


def tables(output):
    """Return the rows of both tables."""
    reports, _, totals = output.partition("Spent in all")
    return [
        [cells(line) for line in part.splitlines()[skip:] if line.strip()]
        for part, skip in ((reports, 2), (totals, 2))
    ]


# ------------------------------------------------------------------ the table
def test_the_table_has_every_report_and_every_total(run, path):
    status, output, errors = run(path)
    assert (status, errors) == (0, "")
    reports, totals = tables(output)
    assert [row[1:] for row in reports] == [
        ["ward", "message-0", "60", "50", "10"],
        ["clinic", "message-1", "0.3", "0.1", "0.2"],
        ["ward", "message-2", "60", "50", "10"],
        ["clinic", "message-3", "0.03", "0.01", "0.02"],
    ]
    times = [entry.time for entry in DeviceLedger(path).entries()]
    assert [row[0] for row in reports] == [time[:10] + " " + time[11:19] for time in times]
    # Renyi of order 2: 4 epsilon^2 where epsilon is below 1/4, so 0.3 + 0.0036.
    assert totals == [
        ["clinic", "2", "0.33", "0.3036 at order 2"],
        ["ward", "2", "120", "120 at order 2"],
    ]


def test_the_order_is_of_the_callers_choice(run, path):
    _, output, _ = run(path, "--order", "1")
    assert tables(output)[1][0][2:] == ["0.33", "0.1818 at order 1"]  # 2 * 0.09 + 2 * 0.0009


def test_one_data_set_may_be_picked(run, path):
    status, output, _ = run(path, "--data-set", "clinic")
    assert status == 0
    reports, totals = tables(output)
    assert [row[1:3] for row in reports] == [["clinic", "message-1"], ["clinic", "message-3"]]
    assert [row[0] for row in totals] == ["clinic"]
    assert "ward" not in output


def test_ids_as_flower_makes_them_are_shortened(run, tmp_path):
    charge(tmp_path / "ledger.db", 0, 1.0, 1.0, message="0123456789abcdef" * 4)
    _, output, _ = run(tmp_path / "ledger.db")
    assert tables(output)[0][0][2] == "01234567.."


@pytest.mark.parametrize(
    "name",
    ["partition-3", "clinic-north-ward-12", "w" * 100],
    ids=["short", "middling", "long"],
)
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e6])
def test_no_number_is_cut_at_80_columns(run, tmp_path, name, scale):
    """Names may be shortened or wrapped; every number has its six digits."""
    made = tmp_path / "ledger.db"
    direction, magnitude = 1.234567 * scale, 2.345678 * scale
    for number in range(3):
        charge(made, number, direction, magnitude, name)
    status, output, _ = run(made)
    assert status == 0
    assert all(len(line) <= 80 for line in output.splitlines())
    ledger = DeviceLedger(made)
    (time, *_) = [entry.time[11:16] for entry in ledger.entries()]
    total, renyi = ledger.total_epsilon(name), ledger.renyi_epsilon(name, 2.0)
    words = output.split()
    for number, count in (
        (direction, 3),
        (magnitude, 3),
        (direction + magnitude, 3),
        (total, 1),
        (renyi, 1),
    ):
        assert words.count(round_up(number, 6)) >= count, f"{number} in {output}"
    assert time in output
    assert name[:4] in output


@pytest.mark.parametrize("name", ["[/x]", "[bold]ward", "ward [3]", ":smile:", "[link=x]"])
def test_names_are_shown_as_they_are(run, tmp_path, name):
    charge(tmp_path / "ledger.db", 0, 1.0, 1.0, name)
    status, output, _ = run(tmp_path / "ledger.db")
    assert status == 0
    assert output.count(name) == 2


# ------------------------------------------------------------------ JSON
@pytest.mark.parametrize("data_set", [None, "clinic"])
def test_json_has_the_ledgers_own_numbers(run, path, data_set):
    options = [] if data_set is None else ["--data-set", data_set]
    status, output, errors = run(path, "--json", "--order", "2.5", *options)
    assert (status, errors) == (0, "")
    facts, ledger = json.loads(output), DeviceLedger(path)
    assert set(facts) == {"reports", "totals"}
    assert facts["reports"] == [
        {
            "time": entry.time,
            "data_set": entry.request.data_set,
            "run_id": "17",
            "message_id": entry.request.message_id,
            "epsilon_direction": entry.event.epsilon_direction,
            "epsilon_magnitude": entry.event.epsilon_magnitude,
            "epsilon": entry.event.epsilon,
            "max_norm": 2.5,
            "dim": 1234,
        }
        for entry in ledger.entries(data_set)
    ]
    assert facts["totals"] == [
        {
            "data_set": name,
            "reports": 2,
            "epsilon": ledger.total_epsilon(name),
            "renyi_order": 2.5,
            "renyi_epsilon": ledger.renyi_epsilon(name, 2.5),
        }
        for name in ([data_set] if data_set else ["clinic", "ward"])
    ]
    assert len(facts["reports"]) == (2 if data_set else 4)


def test_asking_changes_nothing(run, path):
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    for options in ([], ["--json"], ["--data-set", "ward"]):
        assert run(path, *options)[0] == 0
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


# ------------------------------------------------------------------ made, and charged by hand
def test_a_ledger_is_made_once(run, tmp_path):
    path = tmp_path / "ledger.db"
    for options in (["--new"], []):
        assert run(path, *options) == (0, "No reports have been charged.\n", "")
    status, output, _ = run(path, "--json")
    assert (status, json.loads(output)) == (0, {"reports": [], "totals": []})
    charge(path, 0, 3.0, 1.0)
    before = path.read_bytes()
    for options in (["--new"], ["--new", "--charge", "5", "--data-set", "ward"]):
        status, output, errors = run(path, *options)
        assert (status, output) == (2, "")
        assert errors.count("\n") == 1
        assert f"{path} is there already" in errors
    assert path.read_bytes() == before


@pytest.mark.parametrize("at_once", [False, True])
def test_what_is_charged_by_hand_is_shown_as_that(run, tmp_path, at_once):
    path, spent = tmp_path / "ledger.db", ["--charge", "100", "--data-set", "ward"]
    if not at_once:
        run(path, "--new")
    status, output, errors = run(path, *["--new"][:at_once], *spent)
    assert (status, errors) == (0, "")
    assert tables(output)[0][0][1:] == ["ward", "by hand", "100", "100", "0"]
    charge(path, 1, 15.0, 5.0)
    assert tables(run(path)[1])[1] == [["ward", "2", "120", "120 at order 2"]]
    assert [entry.by_hand for entry in DeviceLedger(path).entries()] == [True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--charge", "5"], "--charge needs --data-set"),
        (["--new", "--charge", "5"], "--charge needs --data-set"),
        (["--new", "--data-set", "ward"], "--data-set needs --charge"),
        (["--charge", "5", "--data-set", "ward"], "is missing"),
        (["--new", "--charge", "0", "--data-set", "ward"], "epsilon must be a finite number > 0"),
        (["--new", "--charge", "nan", "--data-set", "ward"], "epsilon must be a finite number > 0"),
    ],
)
def test_what_cannot_be_charged_makes_no_file(run, tmp_path, options, message):
    status, output, errors = run(tmp_path / "ledger.db", *options)
    assert (status, output) == (2, "")
    assert errors.count("\n") == 1
    assert message in errors
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ mistakes
def empty(folder):
    (folder / "empty.db").touch()
    return folder / "empty.db"


def text(folder):
    (folder / "notes").write_text("a text that is longer than the header of a database: " * 5)
    return folder / "notes"


def database(folder):
    opened = sqlite3.connect(folder / "other.db")
    with opened:
        opened.execute("CREATE TABLE reports (id INTEGER)")
    opened.close()
    return folder / "other.db"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing.db", "is not there: give the file that sdp-ledger names"),
        (lambda folder: folder / "no" / "missing.db", "is not there"),
        (lambda folder: folder, "is not there"),
        (empty, "is empty: restore it from a backup"),
        (text, "file is not a database"),
        (database, "is not a ledger, but another database"),
    ],
    ids=["missing", "missing folder", "folder", "empty", "text", "database"],
)
@pytest.mark.parametrize("options", [[], ["--json"], ["--data-set", "ward"]], ids=" ".join)
def test_what_is_no_ledger_is_one_line_with_exit_status_2(run, tmp_path, make, message, options):
    path = make(tmp_path)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*")}
    status, output, errors = run(path, *options)
    assert (status, output) == (2, "")
    assert errors.count("\n") == 1
    assert errors.startswith("flwr-sdp: ")
    assert str(path) in errors
    assert message in errors
    assert {each: each.read_bytes() for each in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_an_unknown_data_set_is_one_line_with_exit_status_2(run, path, options):
    status, output, errors = run(path, "--data-set", "nowhere", *options)
    assert (status, output) == (2, "")
    assert (
        errors == f"flwr-sdp: {path} has no data set 'nowhere': leave --data-set out to see all\n"
    )


@pytest.mark.parametrize("order", ["0.5", "nan", "inf", "two"])
def test_other_orders_are_refused(run, path, order):
    status, output, errors = run(path, "--order", order)
    assert (status, output) == (2, "")
    assert "order" in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------ the command itself
def test_the_command_is_installed(path, tmp_path):
    def command(*arguments):
        return subprocess.run(
            [COMMAND, "ledger", *map(str, arguments)],
            env={**os.environ, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    done = command(path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["reports"]) == 4
    done = command(tmp_path / "missing.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "missing.db").exists()
