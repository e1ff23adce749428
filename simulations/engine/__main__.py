"""Training in this process, without Ray: ``python -m simulations.engine CONFIG.json``.

``python -m simulations.engine --check CONFIGS.json`` trains nothing: it reads the settings of every
run config in a list, and loads the data they name, so that what is wrong is said within seconds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from flwr_sdp.clients.testing import enter_run
from simulations import client_app
from simulations.engine.local import LocalGrid
from simulations.server_app import check_run, run_training
from simulations.settings import Settings
from simulations.tasks import load_task


def main() -> None:
    """Run, or check, what a JSON file says."""
    parser = argparse.ArgumentParser(prog="python -m simulations.engine")
    parser.add_argument("config", type=Path, help="the whole run config, or a list of them")
    parser.add_argument("--check", action="store_true", help="read settings and data, and stop")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text(encoding="utf-8"))
    if arguments.check:
        for each in config:
            settings = Settings.from_run_config(each)
            # Files are the same for every seed: those of one are read, and no more.
            task = load_task(settings.task, replace(settings.task_settings, seed=0))
            check_run(settings, task.initial_model())
        return
    enter_run()
    settings = Settings.from_run_config(config)
    run_training(LocalGrid(client_app.app, settings.num_nodes, config), settings)


if __name__ == "__main__":
    main()
