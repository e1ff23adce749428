"""One run at a time in a folder."""

from __future__ import annotations

import logging
import os
import platform
import sys
import weakref
from contextlib import suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # Nobody else can read a locked byte: one far beyond the text that names the holder.
        os.lseek(descriptor, 2**20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_log = logging.getLogger("flwr")

LOCK = ".lock"
"""Name of the file, in the folder it locks."""


class FolderLock:
    """An exclusive hold on a folder, until it is released or collected, or the process ends.

    It is the system's lock on an open file, and ends with the process, however that ends. The
    file is removed with the release; one that was left behind means nothing. Neither a forked
    child holds what its parent does nor a program that is started.

    Parameters
    ----------
    directory : Path
        The folder; it must exist.

    Attributes
    ----------
    is_exclusive : bool
        Whether others are kept off: not where the file system has no locks, which is logged.
    in_run : bool
        Whether a run is under way that holds it; if not, :func:`release_idle` ends it.

    Raises
    ------
    BlockingIOError
        If somebody else holds it. The text says who.
    OSError
        If its file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK
        self.in_run = False
        self._descriptor, self.is_exclusive = _take(path)
        self._end = weakref.finalize(self, _give_back, path, self._descriptor)
        _locks.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process has it still."""
        return self._end.alive

    def release(self) -> None:
        """Let others in."""
        self._end()

    def is_of(self, directory: Path) -> bool:
        """Whether it is held, on this folder, by whatever path."""
        return self.is_held and _is_at(self._descriptor, directory / LOCK)

    def forget(self) -> None:
        """Leave it to the parent, in a child: closing a copy does not end the lock."""
        if self._end.detach() is not None:
            os.close(self._descriptor)


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def release_idle(directory: Path) -> None:
    """End what locks of this process are on a folder without a run under way.

    A strategy that is no longer used may be in a variable, or in the traceback of an error.
    """
    for lock in list(_locks):
        if not lock.in_run and lock.is_of(directory):
            lock.release()


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _take(path: Path) -> tuple[int, bool]:
    """Return an open file, and whether it is locked."""
    me = f"process {os.getpid()} on {platform.node()}"
    while True:
        descriptor = _open(path)
        try:
            _lock(descriptor)
            if _is_at(descriptor, path):  # or whoever held it has removed it in the meantime
                with suppress(OSError):
                    os.write(descriptor, me.ljust(100).encode())
                return descriptor, True
        except (BlockingIOError, PermissionError):  # NFS and Windows call it a missing right
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            other = "another strategy of this process" if holder == me else holder
            raise BlockingIOError(other or "another process") from None
        except OSError as error:
            _log.warning(
                "%s cannot be locked (%s): let no second process go on with its run; one that "
                "finds the ledger changed stops",
                path.parent,
                error.strerror,
            )
            return descriptor, False
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:  # another user's, left behind: it can be locked as well
        with suppress(OSError):
            return os.open(path, os.O_RDONLY)
        raise error from None


def _give_back(path: Path, descriptor: int) -> None:
    """End the lock; what has become of the disk is no matter of a run that is over."""
    is_ours = _is_at(descriptor, path)  # and not what somebody has put in its place
    with suppress(OSError):
        if is_ours and os.name == "posix":
            os.unlink(path)
    with suppress(OSError):
        os.close(descriptor)
        if is_ours and os.name != "posix":  # where no file is removed that anyone has open
            os.unlink(path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
