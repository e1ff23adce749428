"""A run file and the options beside it: which settings, which grid, how often, on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr_sdp.cli.errors import CommandError
from flwr_sdp.cli.folders import read_toml
from flwr_sdp.cli.runs.values import absolute_paths, parse_set, parse_sweep, typed

STREAM = "stream"
# Set by the launcher itself; an app without the first two cannot be followed.
OWN_KEYS = ("baseline", "output-dir")
RESUME_KEY = "resume"
OF_THE_LAUNCHER = ("trials", "engine", "sweep")
_SEED = "seed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the command line adds to a run file; None or nothing leaves it as it is there."""

    set_: Sequence[str] = ()
    sweep: Sequence[str] = ()
    trials: int | None = None
    engine: str | None = None
    seed: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return the keys that are set."""
        found = dict(parse_set(text) for text in self.set_)
        for key in OF_THE_LAUNCHER:
            if key in found:
                raise CommandError(f"{key} is no key of the app: use --{key} in place of --set")
        return found if self.seed is None else {**found, _SEED: self.seed}

    def swept(self) -> dict[str, list[Any]]:
        """Return the keys that are swept, with their values."""
        return dict(parse_sweep(text) for text in self.sweep)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFile:
    """What is to be run: every value checked against the app's run config.

    Attributes
    ----------
    config : dict
        The whole run config but for what the launcher sets.
    sweep : dict
        Keys of it with the values each is to take, at least two; the grid is their product.
    trials : int
        Runs of each point of the grid, on seeds that follow one another.
    engine : str
        What the runs are started on.
    """

    config: dict[str, Any]
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    trials: int = 1
    engine: str = "ray"

    def to_toml(self) -> dict[str, Any]:
        """Return the run file that says the same, with every default written out."""
        return {
            **self.config,
            **({"trials": self.trials} if self.trials != 1 else {}),
            **({"engine": self.engine} if self.engine != "ray" else {}),
            **({"sweep": self.sweep} if self.sweep else {}),
        }


def read_engine(content: Mapping[str, Any], options: Options, engines: Sequence[str]) -> str:
    """Return the engine that a run file or ``--engine`` names.

    Raises
    ------
    CommandError
        If it is none of `engines`, or a stream is asked to be something else.
    """
    in_file = content.get("engine", "ray")
    engine: Any = in_file if options.engine is None else options.engine
    if engine not in engines:
        raise CommandError(f"engine must be one of {', '.join(engines)}; got {engine!r}")
    if (engine == STREAM) != (in_file == STREAM):
        raise CommandError(
            f"engine is {in_file!r} in the run file, and cannot be {engine!r}: a stream and a "
            "federated run have run files of their own"
        )
    return str(engine)


def read_run_file(
    content: Mapping[str, Any],
    options: Options,
    *,
    engine: str,
    app_dir: Path,
    defaults: Mapping[str, Any],
) -> RunFile:
    """Return what a run file and the command line ask of an app with these `defaults`.

    Raises
    ------
    CommandError
        Naming the first key or value that the app cannot be given.
    """
    in_file = {key: value for key, value in content.items() if key not in OF_THE_LAUNCHER}
    set_ = options.settings()
    sweep = {**_sweep_of(content), **options.swept()}
    for key in sorted({*in_file, *set_, *sweep}):
        _check_key(key, app_dir, defaults)
    for key in set_:
        if key in sweep:
            raise CommandError(
                f"{key} is swept, and --set gives it one value: use --sweep {key}=VALUE"
            )
    if _SEED in sweep:
        raise CommandError("seed cannot be swept: --trials runs every point on several seeds")
    trials = _trials(content.get("trials", 1) if options.trials is None else options.trials)
    if trials > 1 and _SEED not in defaults:
        raise CommandError(f"the app at {app_dir} has no 'seed': several trials would be one")
    changes = {key: _value(key, value, defaults) for key, value in {**in_file, **set_}.items()}
    config = {key: value for key, value in defaults.items() if not _is_launchers(key)}
    swept = {key: _values(key, values, defaults) for key, values in sweep.items()}
    # One value is no sweep: in the config, whoever reads that sees what was run.
    fixed = {key: values[0] for key, values in swept.items() if len(values) == 1}
    return RunFile(
        config={**config, **changes, **fixed},
        sweep={key: values for key, values in swept.items() if key not in fixed},
        trials=trials,
        engine=engine,
    )


def app_defaults(app_dir: Path) -> dict[str, Any]:
    """Return the run config of an app, if the launcher can follow it.

    Raises
    ------
    CommandError
        If keys are missing that the launcher sets.
    """
    defaults: dict[str, Any] = read_toml(app_dir / "pyproject.toml")["tool"]["flwr"]["app"].get(
        "config", {}
    )
    for key in OWN_KEYS:
        if key not in defaults:
            raise CommandError(
                f"the app at {app_dir} has no {key!r} in [tool.flwr.app.config]: the launcher "
                "sets baseline and output-dir, and follows output-dir/metrics.csv"
            )
    return defaults


def _is_launchers(key: str) -> bool:
    return key in {*OWN_KEYS, RESUME_KEY}


def _check_key(key: str, app_dir: Path, defaults: Mapping[str, Any]) -> None:
    if _is_launchers(key):
        raise CommandError(f"{key} is set by the launcher: leave it out (--no-baseline, --resume)")
    if key not in defaults:
        raise CommandError(
            f"unknown key {key!r}: the app at {app_dir} has {', '.join(sorted(defaults))}"
        )


def _sweep_of(content: Mapping[str, Any]) -> dict[str, Any]:
    sweep = content.get("sweep", {})
    if not isinstance(sweep, dict):
        raise CommandError(f"sweep must be a table, [sweep], of keys with lists; got {sweep!r}")
    return sweep


def _trials(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CommandError(f"trials must be an integer of at least 1; got {value!r}")
    return value


def _value(key: str, value: Any, defaults: Mapping[str, Any]) -> Any:
    return absolute_paths({key: typed(key, value, defaults)})[key]


def _values(key: str, values: Any, defaults: Mapping[str, Any]) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise CommandError(
            f"sweep.{key} must be a list of values; got {values!r} (what is not swept stands above "
            "[sweep])"
        )
    checked = [_value(key, value, defaults) for value in values]
    for index, value in enumerate(checked):
        if value in checked[:index]:
            raise CommandError(f"sweep.{key} has the value {value!r} twice")
    return checked
