"""Start simulations, follow them, and leave their results in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w  # comes with flwr, as do typer and rich
from rich.console import Console

from flwr_sdp.cli.commands.simulate_streams import run_stream
from flwr_sdp.cli.engines.app_check import check_with_app
from flwr_sdp.cli.engines.engine import Engine, Resources
from flwr_sdp.cli.engines.follow import follow
from flwr_sdp.cli.engines.local_engine import LocalEngine
from flwr_sdp.cli.engines.ray_engine import RayEngine
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import find_app, new_folder, read_toml, results_name, shown
from flwr_sdp.cli.results.metrics import last_known, last_row, read_rows
from flwr_sdp.cli.results.reports import read_report
from flwr_sdp.cli.results.table import RESULTS, result_keys, write_results
from flwr_sdp.cli.runs.grid import Run, is_grid, runs_of
from flwr_sdp.cli.runs.resume import folder_to_resume, is_complete, require_over, take_up
from flwr_sdp.cli.runs.run_file import (
    RESUME_KEY,
    STREAM,
    Options,
    RunFile,
    app_defaults,
    read_engine,
    read_run_file,
)

ENGINES: dict[str, type[Engine]] = {"ray": RayEngine, "local": LocalEngine}


def simulate(
    config_file: Path,
    *,
    options: Options,
    app_dir: Path | None,
    output: Path,
    resources: Resources,
    with_baseline: bool,
    resume: Path | None,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Run what a run file and the options say, and return the exit status.

    A dry run stops when all is checked, and says what would be run. With `as_json` standard output
    has one JSON object at the end, and all else goes to standard error.

    Raises
    ------
    CommandError
        If something is missing, cannot be read, or cannot be given to the app.
    """
    content = read_toml(config_file)
    root = find_app(config_file, app_dir)
    parent = output.resolve() / results_name(config_file)
    engine = read_engine(content, options, [*ENGINES, STREAM])
    if engine == STREAM:
        if resume is not None or not with_baseline:
            raise CommandError("a stream has neither --resume nor --no-baseline: leave them out")
        return run_stream(
            content, options, app_dir=root, parent=parent, dry_run=dry_run, as_json=as_json
        )
    simulation = Simulation.prepare(
        content,
        options=options,
        engine=engine,
        app_dir=root,
        parent=parent,
        resources=resources,
        with_baseline=with_baseline,
        resume=resume,
        dry_run=dry_run,
    )
    return (simulation.describe if dry_run else simulation.run)(as_json=as_json)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One call of ``flwr-sdp simulate``: where the app is, what it runs, where results go."""

    app_dir: Path
    file: RunFile
    runs: tuple[Run, ...]
    run_dir: Path
    resources: Resources
    resume: bool
    warnings: tuple[str, ...] = ()

    @classmethod
    def prepare(
        cls,
        content: Mapping[str, Any],
        *,
        options: Options,
        engine: str,
        app_dir: Path,
        parent: Path,
        resources: Resources,
        with_baseline: bool,
        resume: Path | None,
        dry_run: bool = False,
    ) -> Simulation:
        """Check the call and create the folder of the run, or take up the one to resume.

        A dry run writes nothing.

        Raises
        ------
        CommandError
            If something is missing, names a key or a value that the app does not take, or the run
            to resume is not over.
        """
        ENGINES[engine].check(app_dir)
        defaults = app_defaults(app_dir)
        if resume is not None and RESUME_KEY not in defaults:
            raise CommandError(
                f"the app at {app_dir} has no {RESUME_KEY!r} in [tool.flwr.app.config]: it cannot "
                "be resumed"
            )
        file = read_run_file(content, options, engine=engine, app_dir=app_dir, defaults=defaults)
        if resume is not None:
            resume = folder_to_resume(resume.resolve(), file)
        facts = check_with_app(runs_of(file, parent, with_baseline=with_baseline), app_dir)
        warnings = ENGINES[engine].foresee(facts, resources)
        run_dir = resume or (parent if dry_run else new_folder(parent))
        runs = tuple(runs_of(file, run_dir, with_baseline=with_baseline))
        if not dry_run:
            require_over(runs)
            (run_dir / "config.toml").write_text(tomli_w.dumps(file.to_toml()), encoding="utf-8")
        return cls(
            app_dir=app_dir,
            file=file,
            runs=runs,
            run_dir=run_dir,
            resources=resources,
            resume=resume is not None,
            warnings=tuple(warnings),
        )

    def describe(self, *, as_json: bool = False) -> int:
        """Say what would be run, and return the exit status."""
        console, done = Console(stderr=as_json, highlight=False), self._done()
        console.print(
            f"[bold]flwr-sdp simulate[/bold]  {len(self.runs) - len(done)} runs on "
            f"{self.file.engine}, results in a folder of {shown(self.run_dir)}"
        )
        self._warn(console)
        for number, run in enumerate(self.runs):
            state = "done" if number in done else f"seed {run.config.get('seed', '-')}"
            console.print(f"  {run.label}: {state}", markup=False, soft_wrap=True)
        if as_json:
            runs = [
                {**_run_facts(run), "done": number in done, "config": run.config}
                for number, run in enumerate(self.runs)
            ]
            facts = {"engine": self.file.engine, "runs": runs, "warnings": self.warnings}
            print(json.dumps(facts, indent=2, default=str))
        return 0

    def run(self, *, as_json: bool = False) -> int:
        """Run what is not done yet, one after another, and return the exit status."""
        console = Console(stderr=as_json)
        console.print(f"[bold]flwr-sdp simulate[/bold]  results in {shown(self.run_dir)}")
        self._warn(console)
        grid = is_grid(self.file)
        done = self._done()
        if done:
            console.print(f"{len(done)} of {len(self.runs)} runs are done already")
        self._write_results(done)
        if len(done) < len(self.runs):
            try:
                completed = self._run_rest(done, console)
            except KeyboardInterrupt:
                hint = ", --resume goes on with it" if grid else ""
                raise CommandError(
                    f"stopped: what there is lies in {self.run_dir}{hint}", 130
                ) from None
            if not completed:
                if grid:
                    console.print(
                        f"{len(done)} of {len(self.runs)} runs are done: go on with --resume "
                        f"{shown(self.run_dir)}",
                        highlight=False,
                        soft_wrap=True,
                    )
                if as_json:
                    self._print_json(done, [])
                return 1
        pictures = self._show_grid(console) if grid else self._show_run(console)
        if as_json:
            self._print_json(done, pictures)
        return 0

    def _done(self) -> dict[int, Run]:
        """Return what is complete already: runs of a sweep that is taken up again."""
        if not (self.resume and is_grid(self.file)):
            return {}
        return {number: run for number, run in enumerate(self.runs) if is_complete(run)}

    def _warn(self, console: Console) -> None:
        for warning in self.warnings:
            text = f"warning: {warning}"
            console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _print_json(self, done: Mapping[int, Run], pictures: Sequence[Path]) -> None:
        facts = {
            "folder": self.run_dir,
            "completed": len(done) == len(self.runs),
            "runs": [
                {
                    **_run_facts(run),
                    "completed": number in done,
                    "last_round": last_row(run.metrics),
                }
                for number, run in enumerate(self.runs)
            ],
            "pictures": pictures,
            "warnings": self.warnings,
        }
        print(json.dumps(facts, indent=2, default=str))

    def _run_rest(self, done: dict[int, Run], console: Console) -> bool:
        """Run what is not in `done`, and add it there; return whether all of it completed."""
        engine_type = ENGINES[self.file.engine]
        with engine_type(self.app_dir, self.run_dir, self.resources) as engine:
            for number, run in enumerate(self.runs):
                if number in done:
                    continue
                if not self._follow(engine, run, number, console):
                    return False
                done[number] = run
                self._write_results(done)
        return True

    def _follow(self, engine: Engine, run: Run, number: int, console: Console) -> bool:
        """Start one run and follow it to its end; return whether it completed."""
        label = run.label
        if is_grid(self.file):
            label = f"{number + 1}/{len(self.runs)} {label}"
            resume = take_up(run) and self.resume
        else:
            resume = self.resume and not run.baseline
        completed = follow(
            engine.start(run, resume=resume),
            console,
            label=label,
            log=run.log,
            metrics=run.metrics,
            rounds=run.config.get("num-server-rounds"),
            starting=engine.starting,
        )
        if completed and not run.baseline:
            _write_report(run)
        return completed

    def _write_results(self, done: Mapping[int, Run]) -> None:
        if done:
            runs = [done[number] for number in sorted(done)]
            write_results(runs, result_keys(self.runs), self.run_dir / RESULTS)

    def _show_run(self, console: Console) -> list[Path]:
        from flwr_sdp.cli.results.run_figure import draw_run

        picture = draw_run(self.run_dir)
        self._show_report(console)
        for run in self.runs:
            accuracy = last_known(read_rows(run.metrics), "accuracy")
            if accuracy is not None:
                console.print(f"{run.kind:8} accuracy {accuracy:.4f}")
        if picture is None:
            return []
        console.print(f"picture  {shown(picture)}")
        return [picture]

    def _show_grid(self, console: Console) -> list[Path]:
        from flwr_sdp.cli.commands.plot import draw
        from flwr_sdp.cli.results.summary import summary_table

        self._show_report(console)
        try:
            console.print(summary_table(self.run_dir))
            pictures = draw([self.run_dir])
        except CommandError as error:  # an app that measures no accuracy
            console.print(f"no figures: {error}", markup=False)
            return []
        for picture in pictures:
            console.print(f"picture  {shown(picture)}", highlight=False, soft_wrap=True)
        return pictures

    def _show_report(self, console: Console) -> None:
        """Show the privacy report of the first run; of several, say which: each has its own."""
        run = self.runs[0]
        console.print()
        if run.privacy_report.is_file():
            report = run.privacy_report.read_text(encoding="utf-8").rstrip("\n")
            if is_grid(self.file):
                report = f"{run.label}, whose guarantee is its own:\n{report}"
            console.print(report, highlight=False, markup=False, soft_wrap=True)


def _run_facts(run: Run) -> dict[str, Any]:
    return {
        "label": run.label,
        "point": run.point,
        "trial": run.trial,
        "baseline": run.baseline,
        "folder": run.folder,
    }


def _write_report(run: Run) -> None:
    """Write the privacy report of a run for people, beside the app's own file."""
    try:
        report, _ = read_report(run.report)
    except CommandError:
        return  # an app that leaves none
    run.privacy_report.write_text(report.to_text() + "\n", encoding="utf-8")
