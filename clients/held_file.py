"""Files beside another one, each of one process until it is named for good."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from flwr_sdp._files import sync_folder

if sys.platform != "win32":
    import fcntl

_MARK = "-reply-"


class HeldFile:
    """A new file beside `main`, for its owner's eyes alone, that is gone when it is closed.

    Unless :meth:`keep` was called. If its process is killed before, :func:`sweep` removes it: an
    advisory lock tells the living from the dead. (Windows does not remove a file that is open.)
    """

    def __init__(self, main: Path, size: int = 0) -> None:
        self._kept = False
        while True:
            self.path = main.with_name(f"{main.name}{_MARK}{os.urandom(8).hex()}")
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            self._file = open(os.open(self.path, flags, 0o600), "wb")
            try:
                _lock(self._file.fileno(), wait=True)
                self._reserve(size)
            except BaseException:
                self.__exit__(None, None, None)
                raise
            if self.path.exists():
                return
            self._file.close()  # another process swept it before it was locked

    def __enter__(self) -> HeldFile:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take is in a buffer still
            self._file.close()
        if not self._kept:
            self.path.unlink(missing_ok=True)

    def write(self, parts: Sequence[bytes]) -> int:
        """Write the whole of the file, wait until it and its name are on disk; return its size."""
        size = sum(map(len, parts))
        self._reserve(size)
        for part in parts:
            self._file.write(part)
        self._file.truncate(size)
        self._file.flush()
        os.fsync(self._file.fileno())
        sync_folder(self.path.parent)
        return size

    def keep(self) -> None:
        """Let the file stay when it is closed."""
        self._kept = True

    def _reserve(self, size: int) -> None:
        """Take room on the disk, or raise ``OSError``; nothing is written."""
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), 0, size)
        elif size > shutil.disk_usage(self.path.parent).free:
            raise OSError(f"no room for {size:,} bytes in {self.path.parent}")


def sweep(main: Path, named: Iterable[str]) -> None:
    """Remove the files beside `main` that have none of these names and no living process."""
    for path in main.parent.glob(f"{glob.escape(main.name)}{_MARK}*"):
        if path.name in named:
            continue
        with contextlib.suppress(OSError):
            if path.samefile(main):  # a ledger was being made: its locks end if it is closed here
                path.unlink()
                continue
            with path.open("rb") as file:
                _lock(file.fileno(), wait=False)
                if os.name == "posix":  # before the lock is gone
                    path.unlink()
            path.unlink(missing_ok=True)


def _lock(file: int, *, wait: bool) -> None:
    """Take the lock of a file, or raise ``BlockingIOError`` where another has it."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
