"""``python -m simulations.pretraining FILE.toml OUTPUT``: pretrain, and leave the weights there."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulations.pretraining.settings import PretrainSettings
from simulations.tasks import task_module


def main() -> None:
    """Do what a file says."""
    parser = argparse.ArgumentParser(prog="python -m simulations.pretraining")
    parser.add_argument("file", type=Path, help="what to do (TOML)")
    parser.add_argument("output", type=Path, help="folder of the weights")
    parser.add_argument("--check", action="store_true", help="read the settings, and stop")
    arguments = parser.parse_args()
    settings = PretrainSettings.from_file(arguments.file)
    module = task_module(settings.task)
    if not hasattr(module, "pretrain"):
        raise ValueError(f"task must be one that is pretrained; {settings.task!r} is not")
    if not arguments.check:
        module.pretrain(settings, arguments.output)


if __name__ == "__main__":
    main()
