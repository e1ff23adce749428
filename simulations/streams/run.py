"""Run a study, and leave its tables and facts in a folder."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr_sdp import _validate
from simulations.config_reader import read_toml
from simulations.streams.logistic import Logistic
from simulations.streams.outcome import Outcome, write
from simulations.streams.processes import cores, run_jobs
from simulations.streams.sparse import Sparse
from simulations.streams.study import ENGINES, Study

_STUDIES: dict[str, Callable[[Mapping[str, Any]], Study]] = {
    "logistic": Logistic.from_config,
    "sparse": Sparse.from_config,
}


def read_study(config: Mapping[str, Any]) -> Study:
    """Return the study of a run file's content; raise ``ValueError`` naming what is wrong."""
    _validate.choice("engine", config.get("engine"), ENGINES)
    task = _validate.choice("task", config.get("task"), tuple(_STUDIES))
    return _STUDIES[task](config)


def run(study: Study, folder: Path, *, processes: int) -> list[Outcome]:
    """Run every part, print a line for each, and write the files."""
    start = time.perf_counter()
    jobs = study.jobs()
    found: dict[int, Outcome] = {}
    for place, outcome in run_jobs(jobs, processes):
        found[place] = outcome
        print(f"[{len(found)}/{len(jobs)}] {_line(outcome)}", flush=True)
    outcomes = [found[place] for place in range(len(jobs))]
    facts = study.facts() | {
        "seconds": round(time.perf_counter() - start, 1),
        "processes": processes,
    }
    write(folder, str(facts["task"]), outcomes, facts)
    print(f"wrote {folder} after {facts['seconds']:g} s", flush=True)
    return outcomes


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, 2 for a mistake in the call or the run file, or 1 if it failed."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.streams", description=sys.modules[__name__].__doc__
    )
    parser.add_argument("runfile", type=Path, metavar="RUN.toml", help="what to run")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIR", help="where to leave results")
    parser.add_argument(
        "--processes", type=int, default=None, metavar="N", help="default: one for each core"
    )
    parser.add_argument("--check", action="store_true", help="read the settings, and stop")
    call = parser.parse_args(arguments)
    try:
        processes = cores() if call.processes is None else call.processes
        _validate.integer("--processes", processes, minimum=1)
        study = read_study(read_toml(call.runfile))
        if not call.check:
            run(study, call.output, processes=processes)
    except (OSError, ValueError) as error:
        print(f"streams: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"streams: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _line(outcome: Outcome) -> str:
    level = "      inf" if math.isinf(outcome.epsilon) else f"{outcome.epsilon:9g}"
    return (
        f"{outcome.method:18} epsilon {level}   averaged: gap {outcome.gap.mean():.5f}, "
        f"error {outcome.error.mean():.4f}   {outcome.seconds:.1f} s"
    )
