"""Read the log of a run: into a file, and to the screen from the first trouble on."""

from __future__ import annotations

import re
import threading
from collections import deque
from pathlib import Path
from typing import IO

from rich.console import Console

# A log line from which on the reader wants to see everything.
_TROUBLE = re.compile(r"no reply leaves this device|Traceback \(most recent|\bERROR\b")
_MAX_ECHOED_LINES = 120
_RAY_PREFIX = re.compile(r"^(\x1b\[\d+m)?\(ClientAppActor pid=\d+\)(\x1b\[0m)? ?")
_LAST_LINES = 10


class LogReader:
    """Copies the log of a run to a file, and to the screen from the first trouble on.

    Parameters
    ----------
    lines : file
        The log; it is closed at its end.
    path : Path
        The copy; of a resumed run, what is added is the rest.
    console : Console
        The screen.
    """

    def __init__(self, lines: IO[str], path: Path, console: Console) -> None:
        self._lines = lines
        self._path = path
        self._console = console
        self._echoed = 0
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the run goes on."""
        return self._thread.is_alive()

    def wait(self, timeout: float) -> None:
        """Wait for the end of the log, for `timeout` seconds at most."""
        self._thread.join(timeout)

    @property
    def last_line(self) -> str:
        """The newest line, empty before the first."""
        return self._last[-1] if self._last else ""

    def show_end(self) -> None:
        """Show the last lines, unless what was wrong is on the screen already."""
        if not self._echoed:
            for line in list(self._last):
                self._echo(line)

    def _read(self) -> None:
        with self._lines, self._path.open("a", encoding="utf-8") as file:
            for line in self._lines:
                file.write(line)
                file.flush()
                self._last.append(line)
                if self._echoed or _TROUBLE.search(line):
                    self._echo(line)

    def _echo(self, line: str) -> None:
        self._echoed += 1
        if self._echoed <= _MAX_ECHOED_LINES:
            text = _RAY_PREFIX.sub("", line.rstrip("\n"))
            self._console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
