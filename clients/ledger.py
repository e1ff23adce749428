"""The device's own account of the privacy it has spent: on disk before a report leaves."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from flwr_sdp import _validate
from flwr_sdp._files import sync_folder
from flwr_sdp.clients.held_file import HeldFile, sweep
from flwr_sdp.separated import SeparatedEvent

SCHEMA_VERSION = 2

# Each schema by what it adds to the one before. The first kept replies in `reply`; now they are in
# files of their own, as long as they may still be asked for.
_FIRST_SCHEMA = """
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
"""
_SECOND_SCHEMA = """
ALTER TABLE replies ADD COLUMN file TEXT;
ALTER TABLE replies ADD COLUMN size INTEGER;
ALTER TABLE replies ADD COLUMN expires REAL;
"""
# Through which a connection that changes nothing reads the first schema as the second.
_SECOND_OF_FIRST = """
CREATE TEMP VIEW replies AS SELECT report, reply, NULL AS file, NULL AS size FROM main.replies
"""

# An application id of SQLite files, so that another program's file is not taken for a ledger.
_APPLICATION = 0x73647031

# Beside a reply: for its header, and for what the database grows by.
_MARGIN = 65_536


class LedgerError(RuntimeError):
    """The ledger cannot be read or written; no report may leave the device."""

    reply: ClassVar[str] = "the ledger of this device cannot be used, see its log"
    """What a server is told: where the ledger is, and what is spent, is no affair of its."""


class ReplyForgotten(LedgerError):
    """The message was answered before, and its reply is no longer kept."""

    reply = "this message was answered before, and its reply is no longer kept"


class _Rehearsed(Exception):
    """A write was tried, and is taken back."""


class LocalBudgetExhausted(ValueError):
    """One more report would exceed the cap on what the device spends in all."""

    reply = "the total epsilon cap of this device is reached"
    """What the server is told: what is spent, and on what, may be another server's affair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Which message a report answers, and from which data.

    Attributes
    ----------
    data_set : str
        Whose privacy is spent. Budgets are kept by data set.
    run_id, message_id : str
        The message, as Flower names it.
    """

    data_set: str
    run_id: str
    message_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """One report that was charged, or what was charged by hand.

    Attributes
    ----------
    time : str
        When it was, in UTC.
    request : Request
        What it answered.
    event : SeparatedEvent
        What it cost, exactly.
    max_norm : float
        Longest update that was not shortened.
    dim : int
        Coordinates of the update; 0 of a charge by hand.
    """

    time: str
    request: Request
    event: SeparatedEvent
    max_norm: float
    dim: int

    @property
    def by_hand(self) -> bool:
        """Whether this is no report, but was charged by hand."""
        return self.dim == 0


Admit = Callable[[Sequence[LedgerEntry]], None]
"""A cap of another kind: raises :class:`LocalBudgetExhausted` after entries that leave no room."""


def basic_composition(entries: Iterable[LedgerEntry]) -> float:
    """Return what reports cost together as pure differential privacy: the sum, rounded once."""
    events = [entry.event for entry in entries]
    return math.fsum(
        loss for event in events for loss in (event.epsilon_direction, event.epsilon_magnitude)
    )


def renyi_composition(entries: Iterable[LedgerEntry], order: float) -> float:
    r"""Return what reports cost together as Renyi differential privacy of an order, at least 1.

    By the paper's conversion, a report of epsilon is
    :math:`(\min\{\epsilon, 2 \alpha \epsilon^2\}, \alpha)`-Renyi private (section 2.1, after
    Mironov 2017). Renyi losses add up. This helps where epsilon is small.
    """
    order = _validate.number("order", order, minimum=1.0)
    epsilons = [entry.event.epsilon for entry in entries]
    return math.fsum(min(epsilon, 2.0 * order * epsilon**2) for epsilon in epsilons)


class DeviceLedger:
    """What the reports of this device have cost, in an SQLite file.

    A report is charged, and its private reply stored, before the reply leaves: the reply in a file
    of its own, and then the charge in a transaction that names it. So a device that is killed at
    any moment has charged whatever has left it, and the same message delivered again gets the same
    bytes for the same charge. The last reply of each data set is kept for that, for as long as its
    message may be delivered.

    Parameters
    ----------
    path : path-like
        The file; its folder must be there, and is where replies are kept too. Keep it on a disk
        that survives restarts. Without a cap it is made with the first report. **With a cap, one
        that is missing is an error**: :meth:`create` makes it, once.
    total_epsilon_cap : float, optional
        Most that the reports of one data set may cost in all, by basic composition.

    Raises
    ------
    ValueError
        If the cap is not a positive number, or the folder is missing.
    LedgerError
        From every method, if the file is empty or not a ledger, or cannot be read or written.

    Notes
    -----
    **Privacy.** With a cap, everything a data set has ever been reported for is ``cap``-local
    differentially private: the sum of the exact losses, rounded once, is never above it by more
    than four units in its last place, so that decimals that add up to the cap keep to it. The
    ledger holds settings, times and replies as they left, and nothing else that was computed from
    data.

    Several processes may use one ledger.
    """

    def __init__(self, path: str | Path, *, total_epsilon_cap: float | None = None) -> None:
        self.path = Path(path).absolute()
        if not self.path.parent.is_dir():
            raise ValueError(
                f"path must be in a folder that exists; got {str(path)!r}: make the folder first"
            )
        if total_epsilon_cap is not None:
            total_epsilon_cap = _validate.number("total_epsilon_cap", total_epsilon_cap, above=0.0)
        self.total_epsilon_cap = total_epsilon_cap

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        total_epsilon_cap: float | None = None,
        spent: Mapping[str, float] | None = None,
    ) -> DeviceLedger:
        """Make a new ledger on disk, **once in the life of a device**, and return it.

        Parameters
        ----------
        path, total_epsilon_cap
            As for the class.
        spent : mapping of str to float, optional
            Epsilon that data sets have spent already, charged by hand.

        Raises
        ------
        LedgerError
            If anything is there already.
        """
        ledger = cls(path, total_epsilon_cap=total_epsilon_cap)
        with ledger._faults():
            try:
                ledger._make(spent or {})
            except FileExistsError as error:
                raise LedgerError(
                    f"{ledger.path} is there already: a new ledger would forget what was spent"
                ) from error
        return ledger

    # ------------------------------------------------------------------ charge
    def reply(self, request: Request) -> bytes | None:
        """Return the reply that was stored for a message, or None if it has not been answered.

        Raises
        ------
        LedgerError
            If it was answered and the reply is no longer kept: a second report would be a second
            charge, which nobody asked for.
        """
        with self._open() as database:
            return self._stored(database, request)

    def check(
        self,
        request: Request,
        event: SeparatedEvent,
        cap: float | None = None,
        admit: Admit | None = None,
    ) -> None:
        """Raise what :meth:`charge` would raise: ask before anything is trained.

        Raises
        ------
        LocalBudgetExhausted
            If `event` does not fit under the caps any more.
        LedgerError
            If nothing can be charged: the ledger is lost, or it cannot be written.
        """
        cap = self._cap(cap)
        if cap is None and admit is None and not self._exists():
            return  # it is made with the first report
        with self._open(must_exist=True, write=True) as database:
            self._check(database, request, event, cap, admit)
            with contextlib.suppress(_Rehearsed), _transaction(database):
                rehearsal = replace(request, message_id=os.urandom(8).hex())
                _record_reply(database, rehearsal, event, 1.0, 1, ("", 0, None))
                raise _Rehearsed
            self._sweep(database)

    def room(self, size: int) -> HeldFile:
        """Reserve room on disk for a reply of so many bytes, for :meth:`charge`.

        Use it in a ``with`` statement around the training: what is not charged is given back.

        Raises
        ------
        LedgerError
            If there is none.
        """
        with self._faults():
            return HeldFile(self._file, size + _MARGIN)

    def charge(
        self,
        request: Request,
        event: SeparatedEvent,
        reply: Sequence[bytes],
        *,
        max_norm: float,
        dim: int,
        cap: float | None = None,
        admit: Admit | None = None,
        time_to_live: float | None = None,
        room: HeldFile | None = None,
    ) -> bytes | None:
        """Charge a report and store its reply; only then may it leave.

        Parameters
        ----------
        request : Request
            What is answered.
        event : SeparatedEvent
            What it costs.
        reply : sequence of bytes
            The reply, in parts.
        max_norm, dim : float, int
            For the record.
        cap : float, optional
            A cap beside that of the ledger; the lower one holds.
        admit : callable, optional
            Gets what the data set was charged before, and raises :class:`LocalBudgetExhausted` if
            this report may not be added.
        time_to_live : float, optional
            Seconds from now in which the message may be delivered again; afterwards the reply is
            forgotten. By default it is kept until the next report.
        room : HeldFile, optional
            What :meth:`room` has reserved.

        Returns
        -------
        bytes or None
            The reply to send in place of this one, if the message was answered in the meantime.

        Raises
        ------
        LocalBudgetExhausted
            If it does not fit under the cap. Nothing has been charged.
        LedgerError
            As for :meth:`check`. Nothing has been charged.
        ValueError
            If a loss is not a positive number.
        """
        cap = self._cap(cap)
        for name in ("epsilon_direction", "epsilon_magnitude"):
            _validate.number(name, getattr(event, name), above=0.0)
        with (
            self._open(must_exist=bool(cap or admit), write=True, create=True) as database,
            contextlib.ExitStack() as held,
        ):
            if (earlier := self._stored(database, request)) is not None:
                return earlier
            file = room or held.enter_context(HeldFile(self._file))
            size = file.write(reply)
            expires = None if time_to_live is None else time.time() + time_to_live
            with _transaction(database):
                if (earlier := self._stored(database, request)) is not None:
                    return earlier
                self._check(database, request, event, cap, admit)
                stored = file.path.name, size, expires
                _record_reply(database, request, event, max_norm, dim, stored)
            file.keep()
            self._sweep(database)
        return None

    def charge_by_hand(self, data_set: str, epsilon: float) -> None:
        """Charge what was spent and is not in this ledger, whatever the cap.

        After a backup was restored, for instance. It counts like a report of this epsilon, and
        :attr:`LedgerEntry.by_hand` tells it apart.

        Raises
        ------
        ValueError
            If `epsilon` is not a positive number, or `data_set` no name.
        LedgerError
            If there is no ledger.
        """
        with self._open(must_exist=True, write=True) as database, _transaction(database):
            _record_by_hand(database, data_set, epsilon)

    # ------------------------------------------------------------------ read
    def entries(self, data_set: str | None = None) -> list[LedgerEntry]:
        """Return what was charged, to one data set or to all, oldest first."""
        with self._open() as database:
            return _entries(database, data_set)

    def total_epsilon(self, data_set: str) -> float:
        """Return what the reports of a data set cost together: basic composition of pure DP."""
        return basic_composition(self.entries(data_set))

    def renyi_epsilon(self, data_set: str, order: float) -> float:
        """Return the same as Renyi loss of an order; see :func:`renyi_composition`."""
        return renyi_composition(self.entries(data_set), order)

    def data_sets(self) -> list[str]:
        """Return the names of the data sets that have been charged."""
        with self._open() as database:
            rows = database.execute("SELECT DISTINCT data_set FROM reports ORDER BY data_set")
            return [name for (name,) in rows.fetchall()]

    # ------------------------------------------------------------------ the file
    @property
    def _file(self) -> Path:
        """Where the file really is: what is kept beside it has one place."""
        return Path(os.path.realpath(self.path))

    def _exists(self) -> bool:
        """Return whether anything is there, a link to nothing included."""
        with self._faults():
            return os.path.lexists(self.path)

    def _cap(self, cap: float | None) -> float | None:
        """Return the lower of two caps."""
        caps = (cap, self.total_epsilon_cap)
        return min((each for each in caps if each is not None), default=None)

    def _check(
        self,
        database: sqlite3.Connection,
        request: Request,
        event: SeparatedEvent,
        cap: float | None,
        admit: Admit | None,
    ) -> None:
        if admit is not None:
            admit(_entries(database, request.data_set))
        if cap is None:
            return
        total = _total(database, request.data_set, event)
        if not _validate.within(total, cap):
            spent = _total(database, request.data_set)
            texts = _validate.apart(cap, spent, event.epsilon, total)
            raise LocalBudgetExhausted(
                f"one more report would exceed the total epsilon cap {texts[0]} of data set "
                f"{request.data_set!r}: {texts[1]} is spent, a report costs {texts[2]}, "
                f"{texts[3]} in all"
            )

    def _stored(self, database: sqlite3.Connection, request: Request) -> bytes | None:
        row = database.execute(
            "SELECT report, reply, file, size FROM reports LEFT JOIN replies ON report = id"
            " WHERE data_set = ? AND run_id = ? AND message_id = ?",
            (request.data_set, request.run_id, request.message_id),
        ).fetchone()
        if row is None:
            return None
        report, reply, file, size = row
        if file is not None:
            with contextlib.suppress(FileNotFoundError):
                reply = self._file.with_name(file).read_bytes()
        if report is None or (file is not None and len(reply) != size):
            raise ReplyForgotten(
                f"message {request.message_id} was answered before, and its reply is no longer kept"
            )
        stored: bytes = reply
        return stored

    def _sweep(self, database: sqlite3.Connection) -> None:
        """Forget replies that can no longer be asked for; another time, if it cannot be now."""
        with contextlib.suppress(sqlite3.Error, OSError), _transaction(database):
            database.execute("DELETE FROM replies WHERE expires < ?", (time.time(),))
            rows = database.execute("SELECT file FROM replies WHERE file IS NOT NULL")
            sweep(self._file, {name for (name,) in rows.fetchall()})

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"the ledger {self.path} failed: {error}") from error

    def _lost(self, what: str) -> LedgerError:
        return LedgerError(
            f"the ledger {self.path} {what}: restore it from a backup and charge what was spent "
            "since; or, if this device has never sent a report, make it with 'flwr-sdp ledger "
            f"{self.path} --new', where nothing is in its place"
        )

    @contextlib.contextmanager
    def _open(
        self, *, must_exist: bool = False, write: bool = False, create: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Yield a connection of this moment: connections survive neither forks nor threads."""
        with self._faults():
            exists = self._exists()
            if must_exist and not exists:
                raise self._lost("is missing")
            if exists and not self.path.exists():
                raise self._lost("is a link to nothing")
            if not exists and create:
                with contextlib.suppress(FileExistsError):  # another process was first
                    self._make({})
                exists = True
            # Where nothing was charged, reading makes no file.
            with contextlib.closing(_connect(self._file if exists else None)) as database:
                if exists:
                    self._prepare(database, write)
                else:
                    _make_tables(database)
                yield database

    def _make(self, spent: Mapping[str, float]) -> None:
        """Make the file in one step, or raise ``FileExistsError``."""
        for end in ("-journal", "-wal", "-shm"):
            if os.path.lexists(left := f"{self._file}{end}"):
                raise LedgerError(
                    f"{left} is left of a ledger that is lost, and SQLite would write it into the "
                    "new one: remove it first"
                )
        with HeldFile(self._file) as part:
            with contextlib.closing(_connect(part.path)) as database:
                database.execute("PRAGMA journal_mode = MEMORY")  # it has no name yet to lose
                with _transaction(database):
                    _make_tables(database)
                    for data_set, epsilon in spent.items():
                        _record_by_hand(database, data_set, epsilon)
            try:
                os.link(part.path, self.path)
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                if os.path.lexists(self.path):
                    raise FileExistsError from None
                os.rename(part.path, self.path)
            sync_folder(self.path.parent)

    def _prepare(self, database: sqlite3.Connection, write: bool) -> None:
        """Make sure that this is a ledger: SQLite takes no bytes, or one, for a new database."""
        (application,) = database.execute("PRAGMA application_id").fetchone()
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if application != _APPLICATION and (application or tables):
            raise LedgerError(f"{self.path} is not a ledger, but another database")
        if not {"reports", "replies"} <= tables:
            raise self._lost("is empty" if not tables else "has lost a table")
        version = _version(database)
        if version not in (1, SCHEMA_VERSION):
            raise LedgerError(
                f"the ledger {self.path} has schema {version}; this release reads "
                f"{SCHEMA_VERSION}: install the release that wrote it"
            )
        if version == 1 and write:
            with _transaction(database):
                if _version(database) == 1:  # no other process was first
                    _execute(database, _SECOND_SCHEMA)
                    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version == 1:
            database.execute(_SECOND_OF_FIRST)


def _connect(path: Path | None) -> sqlite3.Connection:
    """Return a connection to a file that is there, or to nothing."""
    database = sqlite3.connect(
        ":memory:" if path is None else f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=60.0,
        isolation_level=None,
    )
    # The folder is synced too, so that the journal's removal is not undone.
    database.execute("PRAGMA synchronous = EXTRA")
    return database


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def _execute(database: sqlite3.Connection, script: str) -> None:
    """Execute statements; a script of SQLite's would commit first."""
    for statement in script.strip().split(";\n"):
        database.execute(statement)


def _make_tables(database: sqlite3.Connection) -> None:
    _execute(database, _FIRST_SCHEMA)
    _execute(database, _SECOND_SCHEMA)
    database.execute(f"PRAGMA application_id = {_APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock from the start, so that what was read stays true."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:  # SQLite itself rolls back when the disk is full
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _entries(database: sqlite3.Connection, data_set: str | None) -> list[LedgerEntry]:
    rows = database.execute(
        "SELECT time, data_set, run_id, message_id, epsilon_direction, epsilon_magnitude,"
        " max_norm, dim FROM reports WHERE :only IS NULL OR data_set = :only ORDER BY id",
        {"only": data_set},
    ).fetchall()
    return [
        LedgerEntry(
            time=time,
            request=Request(data_set=name, run_id=run_id, message_id=message_id),
            event=SeparatedEvent(epsilon_direction=direction, epsilon_magnitude=magnitude),
            max_norm=max_norm,
            dim=dim,
        )
        for time, name, run_id, message_id, direction, magnitude, max_norm, dim in rows
    ]


def _total(
    database: sqlite3.Connection, data_set: str, further: SeparatedEvent | None = None
) -> float:
    """Return the sum of all losses, with that of a further report; rounded once."""
    rows = database.execute(
        "SELECT epsilon_direction, epsilon_magnitude FROM reports WHERE data_set = ?", (data_set,)
    ).fetchall()
    if further is not None:
        rows.append((further.epsilon_direction, further.epsilon_magnitude))
    return math.fsum(epsilon for row in rows for epsilon in row)


def _record(
    database: sqlite3.Connection, request: Request, event: SeparatedEvent, max_norm: float, dim: int
) -> int | None:
    """Write down a charge, and return its id."""
    return database.execute(
        "INSERT INTO reports (time, data_set, run_id, message_id, epsilon_direction,"
        " epsilon_magnitude, max_norm, dim) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            datetime.now(UTC).isoformat(timespec="seconds"),
            request.data_set,
            request.run_id,
            request.message_id,
            event.epsilon_direction,
            event.epsilon_magnitude,
            max_norm,
            dim,
        ),
    ).lastrowid


def _record_reply(
    database: sqlite3.Connection,
    request: Request,
    event: SeparatedEvent,
    max_norm: float,
    dim: int,
    stored: tuple[str, int, float | None],
) -> None:
    """Write down a charge, and where its reply is, in the place of the data set's last one."""
    report = _record(database, request, event, max_norm, dim)
    database.execute(
        "DELETE FROM replies WHERE report IN (SELECT id FROM reports WHERE data_set = ?)",
        (request.data_set,),
    )
    database.execute(
        "INSERT INTO replies (report, reply, file, size, expires) VALUES (?, x'', ?, ?, ?)",
        (report, *stored),
    )


def _record_by_hand(database: sqlite3.Connection, data_set: str, epsilon: float) -> None:
    if not isinstance(data_set, str) or not data_set:
        raise ValueError(f"data_set must be a text that is not empty; got {data_set!r}")
    epsilon = _validate.number("epsilon", epsilon, above=0.0)
    request = Request(data_set=data_set, run_id="", message_id=f"by hand {os.urandom(8).hex()}")
    event = SeparatedEvent(epsilon_direction=epsilon, epsilon_magnitude=0.0)
    _record(database, request, event, 0.0, 0)
