"""Where the app of a run file is, and where results go."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Any

from flwr_sdp.cli.errors import CommandError


def find_app(config_file: Path, app_dir: Path | None) -> Path:
    """Return the folder of the Flower app around a run file, or that in `app_dir`.

    Raises
    ------
    CommandError
        If there is none.
    """
    around = config_file.resolve().parents
    for folder in around if app_dir is None else [app_dir.resolve()]:
        pyproject = folder / "pyproject.toml"
        if pyproject.is_file() and "app" in read_toml(pyproject).get("tool", {}).get("flwr", {}):
            return folder
    where = f"around {config_file}" if app_dir is None else f"at {app_dir / 'pyproject.toml'}"
    raise CommandError(f"no Flower app {where}: pass the folder of one with --app")


def has_module(app_dir: Path, module: str) -> bool:
    """Return whether an app has a package that ``python -m`` runs."""
    return Path(app_dir, *module.split("."), "__main__.py").is_file()


def require_module(app_dir: Path, module: str) -> None:
    """Raise a CommandError if an app has no such package."""
    if not has_module(app_dir, module):
        raise CommandError(
            f"the app at {app_dir} has no {module}: pass the folder of one with --app"
        )


def results_name(config_file: Path) -> str:
    """Return what the folder of a run file's results is called: ``conf/a/b.toml`` gives ``a-b``."""
    folder = config_file.resolve().parent
    return f"{folder.name}-{config_file.stem}" if folder.parent.name == "conf" else config_file.stem


def new_folder(parent: Path) -> Path:
    """Create the folder of a run, named by the time."""
    run_dir = parent / time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 1000):
        try:
            run_dir.mkdir(parents=True)
            break
        except FileExistsError:
            run_dir = run_dir.with_name(f"{run_dir.name.split('_')[0]}_{attempt}")
    return run_dir


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    CommandError
        If it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not valid TOML: {error}") from None


def shown(path: Path) -> str:
    """Return a path as the screen shows it: relative to where the caller is, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
