"""What a run puts on disk, in the order that loses no charge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.serverapp import GaussianPrivacyEvent

from flwr_sdp.strategies.checkpoint import CheckpointError, Checkpoints, Snapshot
from flwr_sdp.strategies.folder_lock import FolderLock
from flwr_sdp.strategies.ledger import Ledger

TakeSnapshot = Callable[[Ledger], Snapshot]
"""Returns where the run stands, with the ledger it is given."""


class Journal:
    """The ledger and the checkpoints of one run. Without a folder for them, it does nothing.

    A charge is on disk before anyone is asked, a result before anyone sees it. The folder is
    locked from the first look at it until :meth:`release`, and nothing is written over a ledger
    that is not the one written last.
    """

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self.checkpoints = checkpoints
        self._ledger: Ledger | None = None
        self._written: bytes | None = None  # what is in the ledger's file
        self._lock: FolderLock | None = None
        self._in_run = False

    @property
    def rounds_done(self) -> int:
        """Rounds whose result has been saved."""
        return 0 if self._ledger is None else self._ledger.completed_round

    @contextmanager
    def run(self) -> Iterator[None]:
        """Keep everybody off the folder while a run is under way, and let them have it then.

        Elsewhere, in a loop of one's own, the lock goes to the strategy of this process that asks
        for it last.
        """
        self._in_run = True
        try:
            yield
        finally:
            self._in_run = False
            self.release()

    def release(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.release()

    def require_unused(self) -> None:
        """Raise :class:`CheckpointError` if the folder holds another run."""
        if self.checkpoints is None:
            return
        self._hold(self.checkpoints)
        if self._ledger is None:
            self.checkpoints.require_unused()

    def _hold(self, checkpoints: Checkpoints) -> None:
        if self._lock is None or not self._lock.is_held:  # a forked child does not hold it
            checkpoints.directory.mkdir(parents=True, exist_ok=True)
            self._lock = checkpoints.lock()
        self._lock.in_run = self._in_run

    def open(
        self,
        server_round: int,
        settings: Callable[[], dict[str, Any]],
        charged_elsewhere: int,
        take_snapshot: TakeSnapshot,
    ) -> None:
        """Begin with the first round, and check that every other one is the next.

        Raises
        ------
        CheckpointError
            If the folder is in use, or holds another run.
        ValueError
            If releases were charged that the ledger would not have, or rounds are left out.
        """
        if self.checkpoints is None:
            return
        self._hold(self.checkpoints)
        if self._ledger is None:
            if charged_elsewhere:
                raise ValueError(
                    "accountant must be new when checkpoints are written, or the ledger would not "
                    f"have all its charges; got one with {charged_elsewhere} releases"
                )
            ledger = Ledger(settings=settings())
            self._written = self.checkpoints.begin(take_snapshot(ledger))
            self._ledger = ledger
        if server_round != self._ledger.completed_round + 1:
            raise ValueError(
                f"server_round must be {self._ledger.completed_round + 1}, the next after the last "
                f"checkpoint; got {server_round} (strategy.resume numbers the rounds)"
            )

    def require_unchanged(self) -> None:
        """Raise :class:`CheckpointError` if somebody else has gone on with the run."""
        if self.checkpoints is not None and self._ledger is not None:
            self.checkpoints.require_ledger(self._written)

    def charge(self, server_round: int, event: GaussianPrivacyEvent | None) -> None:
        """Put the charge of a round on disk; only then may anyone be asked."""
        if self.checkpoints is None or self._ledger is None:
            return
        ledger = self._ledger.charged(server_round, event)
        self._written = self.checkpoints.write_ledger(ledger, self._written)
        self._ledger = ledger

    def require_charge(self, server_round: int) -> None:
        """Raise ``ValueError`` if a round has not been charged."""
        ledger = self._ledger
        if self.checkpoints is not None and (ledger is None or not ledger.covers(server_round)):
            raise ValueError(
                f"server_round must have been configured, and so charged, before its replies are "
                f"aggregated, and once for each time; got {server_round}"
            )

    def save(self, server_round: int, take_snapshot: TakeSnapshot) -> None:
        """Put the result of a round on disk; only then may anyone see it."""
        if self.checkpoints is None or self._ledger is None:
            return
        ledger = self._ledger.completed(server_round)
        self.checkpoints.save(take_snapshot(ledger), self._written)
        self._written = self.checkpoints.write_ledger(ledger, self._written)
        self._ledger = ledger

    def save_again(self, server_round: int, take_snapshot: TakeSnapshot) -> None:
        """Put on disk what the evaluation of the last round has changed."""
        if self.checkpoints is not None and self._ledger is not None:
            if server_round == self._ledger.completed_round:
                self.checkpoints.save(take_snapshot(self._ledger), self._written)

    def load(self) -> tuple[Ledger, Snapshot]:
        """Return what is on disk: the ledger, and the last checkpoint.

        Raises
        ------
        CheckpointError
            If the folder is in use, or as :meth:`Checkpoints.load` does.
        ValueError
            If there is no folder.
        """
        if self.checkpoints is None:
            raise ValueError("checkpoints must be given to resume a run; got None")
        if self.checkpoints.directory.is_dir():
            self._hold(self.checkpoints)
        self._written = self.checkpoints.ledger_file()
        return self.checkpoints.load()

    def go_on(self, ledger: Ledger, done: int) -> tuple[Ledger, bool]:
        """Go on after round `done`; return the ledger, and whether the next round is paid for.

        The charge of a round that was under way is that of its repetition.
        """
        is_paid = ledger.covers(done + 1)
        self._ledger = ledger if is_paid else ledger.rewound(done)
        return self._ledger, is_paid


def is_same(ours: Any, theirs: Any) -> bool:
    """Return whether two settings are the same, in which NaN is NaN."""
    return bool(ours == theirs) or _plain(ours) == _plain(theirs)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return "nan" if value != value else value


def require_same_settings(here: dict[str, Any], there: dict[str, Any]) -> None:
    """Raise :class:`CheckpointError` naming the first setting that differs."""
    for field in sorted({*here, *there}):
        ours, theirs = here.get(field), there.get(field)
        if is_same(ours, theirs):
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            names = sorted({*ours, *theirs})
            name = next(k for k in names if not is_same(ours.get(k), theirs.get(k)))
            field, ours, theirs = f"{field}: {name}", ours.get(name), theirs.get(name)
        raise CheckpointError(
            f"{field} must be as in the run that is resumed, {theirs!r}; got {ours!r}: resume with "
            "the same settings, or start a new run in another directory"
        )
