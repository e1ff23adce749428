"""Start simulations, follow them, and leave their results in a folder."""

from __future__ import annotations

from collections.abc import Mapping
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
from flwr_sdp.cli.results.metrics import last_known, read_rows
from flwr_sdp.cli.results.table import RESULTS, result_keys, write_results
from flwr_sdp.cli.runs.grid import Run, is_grid, runs_of
from flwr_sdp.cli.runs.resume import folder_to_resume, is_complete, take_up
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
) -> int:
    """Run what a run file and the options say, and return the exit status.

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
        return run_stream(content, options, app_dir=root, parent=parent)
    simulation = Simulation.prepare(
        content,
        options=options,
        engine=engine,
        app_dir=root,
        parent=parent,
        resources=resources,
        with_baseline=with_baseline,
        resume=resume,
    )
    return simulation.run()


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
    ) -> Simulation:
        """Check the call and create the folder of the run, or take up the one to resume.

        Raises
        ------
        CommandError
            If something is missing, or names a key or a value that the app does not take.
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
        run_dir = new_folder(parent) if resume is None else resume
        (run_dir / "config.toml").write_text(tomli_w.dumps(file.to_toml()), encoding="utf-8")
        return cls(
            app_dir=app_dir,
            file=file,
            runs=tuple(runs_of(file, run_dir, with_baseline=with_baseline)),
            run_dir=run_dir,
            resources=resources,
            resume=resume is not None,
            warnings=tuple(warnings),
        )

    def run(self) -> int:
        """Run what is not done yet, one after another, and return the exit status."""
        console = Console()
        console.print(f"[bold]flwr-sdp simulate[/bold]  results in {shown(self.run_dir)}")
        for warning in self.warnings:
            text = f"warning: {warning}"
            console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
        grid = is_grid(self.file)
        done = {
            number: run
            for number, run in enumerate(self.runs)
            if grid and self.resume and is_complete(run)
        }
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
                return 1
        if grid:
            self._show_grid(console)
        else:
            self._show_run(console)
        return 0

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

    def _show_run(self, console: Console) -> None:
        from flwr_sdp.cli.results.run_figure import draw_run

        picture = draw_run(self.run_dir)
        self._show_report(console)
        for run in self.runs:
            accuracy = last_known(read_rows(run.metrics), "accuracy")
            if accuracy is not None:
                console.print(f"{run.kind:8} accuracy {accuracy:.4f}")
        if picture is not None:
            console.print(f"picture  {shown(picture)}")

    def _show_grid(self, console: Console) -> None:
        from flwr_sdp.cli.commands.plot import draw
        from flwr_sdp.cli.results.summary import summary_table

        self._show_report(console)
        try:
            console.print(summary_table(self.run_dir))
            pictures = draw([self.run_dir])
        except CommandError as error:  # an app that measures no accuracy
            console.print(f"no figures: {error}", markup=False)
            return
        for picture in pictures:
            console.print(f"picture  {shown(picture)}", highlight=False, soft_wrap=True)

    def _show_report(self, console: Console) -> None:
        """Show the privacy report of the first run; of several, say which: each has its own."""
        run = self.runs[0]
        console.print()
        if run.privacy_report.is_file():
            report = run.privacy_report.read_text(encoding="utf-8").rstrip("\n")
            if is_grid(self.file):
                report = f"{run.label}, whose guarantee is its own:\n{report}"
            console.print(report, highlight=False, markup=False, soft_wrap=True)


def _write_report(run: Run) -> None:
    """Write the privacy report of a run beside its results."""
    from flwr_sdp.cli.results.summary import extract_report

    report = extract_report(run.log.read_text(encoding="utf-8"))
    if report:
        run.privacy_report.write_text(report + "\n", encoding="utf-8")
