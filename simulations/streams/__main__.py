"""``python -m simulations.streams RUN.toml OUTPUT_DIR [--processes N]``."""

import signal
import sys

from simulations.streams.run import main

if __name__ == "__main__":
    # Ended from outside, it ends its processes as it does when interrupted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
