"""The ``flwr-sdp`` command."""

from __future__ import annotations

import re
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run the command line; errors are one line with the fix, and the exit status is true."""
    # Imported here, so that the library never pays for the command line.
    import click

    from flwr_sdp.cli.app import app
    from flwr_sdp.cli.errors import CommandError, not_installed

    # Ended by the system or a closed terminal, clean up as at an interrupt.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit_on_signal)
    try:
        sys.exit(app(prog_name="flwr-sdp", standalone_mode=False) or 0)
    except CommandError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        # typer and click both suggest a command.
        message = re.sub(r"( Did you mean .*\?)\1$", r"\1", error.format_message().rstrip("."))
        command = error.ctx.command_path if error.ctx else "flwr-sdp"
        _fail(f"{message}: see {command} --help", error.exit_code)
    except click.Abort:
        _fail("stopped", 130)
    except ModuleNotFoundError as error:
        missing = not_installed(error.name)
        if missing is None:
            raise
        _fail(str(missing), missing.exit_code)


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"flwr-sdp: {message}", file=sys.stderr)
    sys.exit(exit_code)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
