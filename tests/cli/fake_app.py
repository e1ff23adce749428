"""An app of a few keys, and an engine that writes what an app would, at once."""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path

from flwr_sdp.strategies import LocalGuarantee, PrivacyReport

KEYS = {
    "task": "toy",
    "num-clients": 10,
    "num-server-rounds": 2,
    "seed": 0,
    "baseline": False,
    "output-dir": "",
    "resume": False,
    "data-dir": "",
    "fail-fast": True,
    "evaluate-every": 1,
    "round-timeout": 60.0,
    "local-steps": 5,
    "average-from": 0,
    "sdp-epsilon-direction": 50.0,
    "sdp-epsilon-magnitude": 10.0,
    "sdp-rule": "tight",
    "sdp-max-epsilon": 0.0,
    "projected-population": 0,
}


def write_app(folder, **keys):
    """Write an app with the keys above and these, and return its run file."""
    import tomli_w

    config = {key: value for key, value in {**KEYS, **keys}.items() if value is not None}
    app = {"tool": {"flwr": {"app": {"config": config}}}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(app))
    (folder / "toy.toml").write_text('task = "toy"\n')
    return folder / "toy.toml"


def report(run):
    """Return the report that the toy leaves: what one point claims, and no other does."""
    local = LocalGuarantee(
        epsilon_direction=run.config["sdp-epsilon-direction"], epsilon_magnitude=10.0
    )
    return PrivacyReport(
        rounds=2,
        max_reports_per_client=2,
        local=None if run.baseline else local,
        central=None,
        exceptions=("a toy",),
    )


def accuracy(run, number):
    """Return what the toy reaches in a round, by its settings."""
    config = run.config
    reached = 0.9 if run.baseline else 0.9 - 5.0 / config["sdp-epsilon-direction"]
    return reached + 0.01 * config["seed"] + 0.001 * number - 0.1 * (config["local-steps"] == 1)


@dataclass
class Log:
    """What the engine was asked for."""

    started: list = field(default_factory=list)
    resumed: list = field(default_factory=list)
    entered: int = 0
    left: int = 0
    fail_at: str | None = None
    interrupt_at: str | None = None
    stopped: int = 0
    warnings: list = field(default_factory=list)


def fake_engine(log):
    """Return an engine class that notes down in `log`."""

    class Job:
        def __init__(self, run, failed, interrupted):
            self.lines = io.StringIO(
                "Traceback (most recent call last):\nKaboom\n" if failed else "\nend\n"
            )
            self._failed, self._interrupted = failed, interrupted

        def trouble(self):
            if self._interrupted:
                raise KeyboardInterrupt
            return "exit status 1" if self._failed else None

        def stop(self):
            log.stopped += 1

        def close(self):
            """Nothing to let go of."""

    class Engine:
        starting = "starting"

        def __init__(self, app_dir, run_dir, resources):
            self.app_dir = app_dir

        @staticmethod
        def check(app_dir):
            """Always there."""

        @staticmethod
        def foresee(facts, resources):
            return log.warnings

        def __enter__(self):
            log.entered += 1
            return self

        def __exit__(self, *_):
            log.left += 1

        def start(self, run, *, resume):
            name = str(Path(*run.folder.parts[-2:])) if "trial" in run.label else run.kind
            log.started.append((name, run.config["seed"]))
            if resume:
                log.resumed.append(name)
            failed = log.fail_at == name
            averaged = run.config["average-from"] > 0
            with run.metrics.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["round", "accuracy", "cdp-epsilon", "averaged-accuracy"])
                for number in range(run.config["num-server-rounds"] + 1):
                    writer.writerow(
                        [
                            number,
                            "" if number == 1 else accuracy(run, number),  # not evaluated
                            "" if run.baseline else 0.5 * number,
                            accuracy(run, number) + 0.01 if averaged else "",
                        ]
                    )
            if failed:
                (run.folder / "checkpoints").mkdir(exist_ok=True)
                (run.folder / "checkpoints" / "round-1").touch()
            elif log.interrupt_at != name:
                run.report.write_text(
                    json.dumps({**report(run).to_dict(), "data": "toy (stand-in)"})
                )
            return Job(run, failed, log.interrupt_at == name)

    return Engine
