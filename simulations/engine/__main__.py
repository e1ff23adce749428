"""Training in this process, without Ray: ``python -m simulations.engine CONFIG.json``.

``--check CONFIGS.json`` trains nothing: it reads the settings of every run config in a list, and
loads the data they name, so that what is wrong is said within seconds. ``--measure CONFIG.json``
has two clients train. Both print what they have found out as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flwr_sdp.clients.testing import enter_run
from simulations import client_app
from simulations.engine.check import check
from simulations.engine.local_grid import LocalGrid
from simulations.engine.measure import measure
from simulations.server_app import run_training
from simulations.settings import Settings


def main() -> None:
    """Run, check or measure what a JSON file says."""
    parser = argparse.ArgumentParser(prog="python -m simulations.engine")
    parser.add_argument("config", type=Path, help="the whole run config, or a list of them")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--check", action="store_true", help="read settings and data, and stop")
    kind.add_argument("--measure", action="store_true", help="have two clients train, and stop")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text(encoding="utf-8"))
    if arguments.check:
        print(json.dumps(check(config)))
    elif arguments.measure:
        print(json.dumps(measure(config)))
    else:
        enter_run()
        settings = Settings.from_run_config(config)
        run_training(LocalGrid(client_app.app, settings.num_nodes, config), settings)


if __name__ == "__main__":
    main()
