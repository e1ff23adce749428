"""Start a simulation, follow it, and leave its results in a folder."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import re
import subprocess
import threading
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w  # comes with flwr, as do typer and rich
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flwr_sdp._rounding import round_up
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import find_app, new_folder, read_toml
from flwr_sdp.cli.superlink import LocalSuperLink

_COMPLETED = "finished:completed"
# Set by the launcher itself; an app without them cannot be followed.
_OWN_KEYS = ("baseline", "output-dir")
_RESUME_KEY = "resume"
# What may differ from the run that is resumed; everything else would make it another run.
_MAY_CHANGE = ("num-server-rounds", "sdp-max-epsilon", "fail-fast", "checkpoint-keep")
# A log line from which on the reader wants to see everything.
_TROUBLE = re.compile(r"no reply leaves this device|Traceback \(most recent|\bERROR\b")
_MAX_ECHOED_LINES = 120
_RAY_PREFIX = re.compile(r"^(\x1b\[\d+m)?\(ClientAppActor pid=\d+\)(\x1b\[0m)? ?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One call of ``flwr-sdp simulate``: where the app is, what it runs, where results go."""

    app_dir: Path
    config: dict[str, Any]
    run_dir: Path
    num_cpus: int
    num_gpus: float
    resume: bool

    @classmethod
    def prepare(
        cls,
        config_file: Path,
        *,
        overrides: list[str],
        app_dir: Path | None,
        output: Path,
        num_cpus: int,
        num_gpus: float,
        resume: Path | None = None,
    ) -> Simulation:
        """Check the call and create the folder of the run, or take up the one to resume.

        Raises
        ------
        CommandError
            If something is missing, cannot be read, or names a key the app does not have.
        """
        if importlib.util.find_spec("ray") is None:
            raise CommandError("Ray is not installed: pip install 'flwr-sdp[simulation]'")
        changes = read_toml(config_file)
        for text in overrides:
            changes.update(_parse_override(text))
        root = find_app(config_file, app_dir)
        defaults = read_toml(root / "pyproject.toml")["tool"]["flwr"]["app"].get("config", {})
        missing = [key for key in _OWN_KEYS if key not in defaults]
        if missing:
            raise CommandError(
                f"the app at {root} has no {missing[0]!r} in [tool.flwr.app.config]: the launcher "
                "sets baseline and output-dir, and follows output-dir/metrics.csv"
            )
        if resume is not None and _RESUME_KEY not in defaults:
            raise CommandError(
                f"the app at {root} has no {_RESUME_KEY!r} in [tool.flwr.app.config]: it cannot be "
                "resumed"
            )
        taken = sorted(set(changes) & {*_OWN_KEYS, _RESUME_KEY})
        if taken:
            raise CommandError(
                f"{taken[0]} is set by the launcher: leave it out (--no-baseline, --resume)"
            )
        unknown = sorted(set(changes) - set(defaults))
        if unknown:
            raise CommandError(
                f"unknown key {unknown[0]!r}: the app at {root} has {', '.join(sorted(defaults))}"
            )
        for value in changes.values():
            _toml_value(value)  # before anything is created
        config = {**defaults, **changes}
        settings = {k: v for k, v in config.items() if k not in {*_OWN_KEYS, _RESUME_KEY}}
        if resume is None:
            run_dir = new_folder(output.resolve() / config_file.stem)
        else:
            run_dir = _folder_to_resume(resume.resolve(), settings)
        simulation = cls(
            app_dir=root,
            config=config,
            run_dir=run_dir,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resume=resume is not None,
        )
        (run_dir / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
        return simulation

    def run(self, *, with_baseline: bool) -> int:
        """Run it, with the baseline after it if asked, and return the exit status."""
        console = Console()
        console.print(f"[bold]flwr-sdp simulate[/bold]  results in {self._shown(self.run_dir)}")
        with LocalSuperLink(self.run_dir / "superlink.log") as superlink:
            for baseline in (False, True) if with_baseline else (False,):
                if not self._follow(superlink, console, baseline=baseline):
                    return 1
        self._show_results(console)
        return 0

    def _follow(self, superlink: LocalSuperLink, console: Console, *, baseline: bool) -> bool:
        """Submit one run and follow it to its end; return whether it completed."""
        name = "baseline" if baseline else "private"
        config = {**self.config, "baseline": baseline, "output-dir": str(self.run_dir)}
        if self.resume:
            config[_RESUME_KEY] = not baseline
        answer = superlink.flwr(
            "run",
            str(self.app_dir),
            "--run-config",
            " ".join(f"{key}={_toml_value(value)}" for key, value in config.items()),
            "--federation-config",
            f"num-supernodes={config.get('num-clients', 2)} "
            f"client-resources-num-cpus={self.num_cpus} "
            f"client-resources-num-gpus={self.num_gpus}",
        )
        run_id = str(answer["run-id"])
        stream = superlink.stream_log(run_id)
        reader = _LogReader(stream, self.run_dir / f"{name}.log", console)
        metrics = self.run_dir / ("baseline-metrics.csv" if baseline else "metrics.csv")
        try:
            with Progress(
                TextColumn("{task.description:8}"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                console=console,
            ) as progress:
                bar = progress.add_task(
                    name, total=config.get("num-server-rounds"), status="starting Ray"
                )
                while reader.is_running:
                    _advance(progress, bar, metrics)
                    reader.wait(0.2)
                _advance(progress, bar, metrics)
            status, details = superlink.wait_for_end(run_id)
        except KeyboardInterrupt:
            with suppress(CommandError):
                superlink.stop_run(run_id)
            raise CommandError(f"stopped: what there is lies in {self.run_dir}", 130) from None
        finally:
            stream.terminate()
        if status != _COMPLETED:
            console.print(
                f"[red]the {name} run ended as {status}[/red] {escape(details)}\n"
                f"the whole log: {self._shown(reader.path)}",
                highlight=False,
                soft_wrap=True,
            )
            return False
        return True

    def _show_results(self, console: Console) -> None:
        from flwr_sdp.cli.plot import plot_accuracy

        picture = plot_accuracy(self.run_dir)
        report = _extract_report((self.run_dir / "private.log").read_text(encoding="utf-8"))
        console.print()
        if report:
            console.print(report, highlight=False, markup=False, soft_wrap=True)
            (self.run_dir / "report.txt").write_text(report + "\n", encoding="utf-8")
        for file, name in (("metrics.csv", "private"), ("baseline-metrics.csv", "baseline")):
            rows = _read_rows(self.run_dir / file)
            if rows:
                console.print(f"{name:8} accuracy {float(rows[-1]['accuracy']):.4f}")
        if picture is not None:
            console.print(f"picture  {self._shown(picture)}")

    @staticmethod
    def _shown(path: Path) -> str:
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)


class _LogReader:
    """Copies the log of a run to a file, and to the screen from the first trouble on."""

    def __init__(self, stream: subprocess.Popen[str], path: Path, console: Console) -> None:
        self.path = path
        self._stream = stream
        self._console = console
        self._echoed = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the run goes on."""
        return self._thread.is_alive()

    def wait(self, timeout: float) -> None:
        """Wait for the end of the run, for `timeout` seconds at most."""
        self._thread.join(timeout)

    def _read(self) -> None:
        assert self._stream.stdout is not None  # noqa: S101 - it was opened with a pipe
        with self.path.open("a", encoding="utf-8") as file:  # of a resumed run, it is the rest
            for line in self._stream.stdout:
                file.write(line)
                file.flush()
                if self._echoed or _TROUBLE.search(line):
                    self._echo(line)
        self._stream.wait()

    def _echo(self, line: str) -> None:
        self._echoed += 1
        if self._echoed <= _MAX_ECHOED_LINES:
            text = _RAY_PREFIX.sub("", line.rstrip("\n"))
            self._console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)


def _advance(progress: Progress, bar: Any, metrics: Path) -> None:
    rows = _read_rows(metrics)
    if not rows:
        return
    last = rows[-1]
    status = f"round {last['round']}  accuracy {float(last['accuracy']):.3f}"
    if last.get("cdp-epsilon"):
        status += f"  central epsilon {round_up(float(last['cdp-epsilon']), 4)}"
    progress.update(bar, completed=int(last["round"]), status=status)


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Return the complete rows of a CSV file that another process is writing."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def _extract_report(log: str) -> str:
    """Return the privacy report as the server logged it."""
    start = log.rfind("Privacy report")
    if start < 0:
        return ""
    lines = log[start:].splitlines()
    report = [lines[0]]
    for line in lines[1:]:
        if not line.startswith("  "):
            break
        report.append(line)
    return "\n".join(report)


def _folder_to_resume(run_dir: Path, settings: dict[str, Any]) -> Path:
    """Return the folder of the run to resume, if it is one and was run with these settings."""
    if not (run_dir / "checkpoints").is_dir():
        raise CommandError(f"{run_dir} has no checkpoints: pass the folder that a run printed")
    before = read_toml(run_dir / "config.toml")
    for key in sorted({*settings, *before} - {*_MAY_CHANGE}):
        if settings.get(key) != before.get(key):
            raise CommandError(
                f"{key} was {before.get(key)!r} in the run in {run_dir}, and is "
                f"{settings.get(key)!r} here: a run is resumed with its own settings"
            )
    return run_dir


def _parse_override(text: str) -> dict[str, Any]:
    key, sign, value = text.partition("=")
    if not (sign and key.strip()):
        raise CommandError(f"--set wants KEY=VALUE; got {text!r}")
    try:
        return {key.strip(): tomllib.loads(f"value = {value}")["value"]}
    except tomllib.TOMLDecodeError:
        return {key.strip(): value.strip()}  # a bare word is a string


def _toml_value(value: Any) -> str:
    """Return `value` as Flower's ``key=value`` run config wants it, in quotes of either kind."""
    if isinstance(value, str):
        if "'" not in value:
            return f"'{value}'"
        if '"' not in value and "\\" not in value:
            return f'"{value}"'
        raise CommandError(f"a value cannot hold both kinds of quotes, or ' and \\; got {value!r}")
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    raise CommandError(f"a value must be text, a finite number, true or false; got {value!r}")
