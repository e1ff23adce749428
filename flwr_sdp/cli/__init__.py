"""The ``flwr-sdp`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; errors are one line with the fix, and the exit status is true."""
    # Imported here, so that the library never pays for the command line.
    from flwr_sdp.cli.app import app
    from flwr_sdp.cli.errors import CommandError

    try:
        app()
    except CommandError as error:
        print(f"flwr-sdp: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
