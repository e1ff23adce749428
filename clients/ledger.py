"""The device's own account of the privacy it has spent: on disk before a report leaves."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flwr_sdp import _validate
from flwr_sdp.separated import SeparatedEvent

SCHEMA_VERSION = 1

_TABLES = """
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

# An application id of SQLite files, so that another program's file is not taken for a ledger.
_APPLICATION = 0x73647031


class LedgerError(RuntimeError):
    """The ledger cannot be read or written; no report may leave the device."""


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
    """One report that was charged.

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
        Coordinates of the update.
    """

    time: str
    request: Request
    event: SeparatedEvent
    max_norm: float
    dim: int


Admit = Callable[[Sequence[LedgerEntry]], None]


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

    A report is charged, and its private reply stored, in one transaction that is on disk before
    the reply leaves. So a device that is killed at any moment has charged whatever has left it, and
    the same message delivered again gets the same bytes for the same charge. The last reply of each
    data set is kept for that.

    Parameters
    ----------
    path : path-like
        The file. It is made with the first report; its folder must be there. Keep it on a disk that
        survives restarts: **without its ledger a device starts at zero**.
    total_epsilon_cap : float, optional
        Most that the reports of one data set may cost in all, by basic composition.

    Raises
    ------
    ValueError
        If the cap is not a positive number, or the folder is missing.
    LedgerError
        From every method, if the file is not a ledger, or cannot be read or written.

    Notes
    -----
    **Privacy.** With a cap, everything a data set has ever been reported for is ``cap``-local
    differentially private: the sum of the exact losses, rounded once, never exceeds it. The ledger
    holds settings, times and replies as they left, and nothing else that was computed from data.

    Several processes may use one file. A reply of more than 10^9 bytes does not fit into it, and is
    withheld.
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
        """Raise :class:`LocalBudgetExhausted` if `event` does not fit under the caps any more."""
        with self._open() as database:
            self._check(database, request, event, cap, admit)

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

        Returns
        -------
        bytes or None
            The reply to send in place of this one, if the message was answered in the meantime.

        Raises
        ------
        LocalBudgetExhausted
            If it does not fit under the cap. Nothing has been charged.
        ValueError
            If a loss is not a positive number.
        """
        for name in ("epsilon_direction", "epsilon_magnitude"):
            _validate.number(name, getattr(event, name), above=0.0)
        with self._open(create=True) as database, _transaction(database):
            if (earlier := self._stored(database, request)) is not None:
                return earlier
            self._check(database, request, event, cap, admit)
            report = database.execute(
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
            database.execute(
                "DELETE FROM replies WHERE report IN (SELECT id FROM reports WHERE data_set = ?)",
                (request.data_set,),
            )
            database.execute(
                "INSERT INTO replies (report, reply) VALUES (?, zeroblob(?))",
                (report, sum(map(len, reply))),
            )
            # Part by part: a bound parameter would be copied whole.
            with database.blobopen("replies", "reply", report or 0) as blob:
                for part in reply:
                    blob.write(part)
        return None

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
        cap = min(
            (each for each in (cap, self.total_epsilon_cap) if each is not None), default=None
        )
        if cap is None:
            return
        if not _total(database, request.data_set, event) <= cap:
            spent = _total(database, request.data_set)
            raise LocalBudgetExhausted(
                f"one more report would exceed the total epsilon cap {cap:g} of data set "
                f"{request.data_set!r}: {spent:.6g} is spent, a report costs {event.epsilon:.6g}"
            )

    def _stored(self, database: sqlite3.Connection, request: Request) -> bytes | None:
        row = database.execute(
            "SELECT id, reply FROM reports LEFT JOIN replies ON report = id"
            " WHERE data_set = ? AND run_id = ? AND message_id = ?",
            (request.data_set, request.run_id, request.message_id),
        ).fetchone()
        if row is None:
            return None
        reply: bytes | None = row[1]
        if reply is None:
            raise LedgerError(
                f"message {request.message_id} was answered before, and its reply is no longer kept"
            )
        return reply

    @contextlib.contextmanager
    def _open(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection of this moment: connections survive neither forks nor threads."""
        path: Path | str = self.path
        try:
            if create:
                # With these rights from the start, whatever happens next.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
            elif not self.path.exists() or self.path.stat().st_size == 0:
                path = ":memory:"  # nothing was charged, and reading makes no file
            with contextlib.closing(
                sqlite3.connect(path, timeout=60.0, isolation_level=None)
            ) as database:
                # The folder is synced too, so that the journal's removal is not undone.
                database.execute("PRAGMA synchronous = EXTRA")
                self._prepare(database)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"the ledger {self.path} failed: {error}") from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if application == _APPLICATION:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                raise LedgerError(
                    f"the ledger {self.path} has schema {version}; this release reads "
                    f"{SCHEMA_VERSION}: install the release that wrote it"
                )
            return
        with _transaction(database):
            (application,) = database.execute("PRAGMA application_id").fetchone()
            if application == _APPLICATION:
                return  # another process was first
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application or tables:
                raise LedgerError(f"{self.path} is not a ledger, but another database")
            for statement in _TABLES.strip().split(";\n"):
                database.execute(statement)
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
