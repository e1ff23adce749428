"""Type-check the package as a wheel would install it, and the app beside it.

mypy does not see through the mapping of an editable install (``strategies/`` is
``flwr_sdp.strategies``), so the packages are laid out as in the wheel, and checked there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    with tempfile.TemporaryDirectory() as folder:
        for package, source in setuptools["package-dir"].items():
            target = Path(folder, *package.split("."))
            shutil.copytree(ROOT / source, target, dirs_exist_ok=True)
        shutil.copytree(ROOT / "simulations", Path(folder, "simulations"))
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
        command += ["--cache-dir", str(ROOT / ".mypy_cache"), "-p", "flwr_sdp", "-p", "simulations"]
        return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
