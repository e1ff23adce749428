"""The ``flwr-sdp`` command."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; errors are one line with the fix, and the exit status is true."""
    # Imported here, so that the library never pays for the command line.
    from flwr_sdp.cli.app import app
    from flwr_sdp.cli.errors import CommandError

    # Ended by the system or a closed terminal, clean up as at an interrupt.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit_on_signal)
    try:
        app()
    except CommandError as error:
        print(f"flwr-sdp: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
