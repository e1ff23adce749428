"""Check which versions can be installed, and that the tests pass with the oldest of them.

    python tests/check_versions.py                  # what every extra resolves to, minutes
    python tests/check_versions.py --test oldest    # or newest: the tests there, ten minutes
    python tests/check_versions.py --test all       # on every Python, an hour or two

Asks the package index, and so is no part of the tests. Wheels only: nobody should need a compiler.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = [sys.executable, "-m", "uv"]  # comes with Flower

PYTHONS = ["3.11", "3.12", "3.13"]  # as pyproject.toml and docs/deployment.md have them
# The oldest versions that pyproject.toml allows, and the newest that there are.
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
ENDS = {
    "oldest": [(PYTHONS[0], "oldest")],
    "newest": [(PYTHONS[-1], "newest")],
    "all": list(product(PYTHONS, RESOLUTIONS)),
}
# What a device runs on, as docs/deployment.md has it; there, too, what is missing elsewhere.
DEVICES = [
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
]
SHOWN = ["flwr", "numpy", "cryptography", "scipy", "torch", "ray"]
TESTED = ["tests/flwr_sdp", "tests/clients", "tests/strategies"]


def resolve(python: str, resolution: str, extra: str, platform: str) -> dict[str, str]:
    """Return the version of every package that an extra installs; empty if there is no way to.

    The extra "" is what a device installs.
    """
    command = [*UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--only-binary", ":all:", "--python-version", python]
    command += ["--resolution", resolution, "--python-platform", platform]
    command += ["--extra", extra] if extra else []
    done = subprocess.run([*command, "pyproject.toml"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        return {}
    pins = (line.partition(" ;")[0].split("==") for line in done.stdout.splitlines())
    return dict(pins)


def check_resolution() -> bool:
    """Print a line for every Python, platform, extra and end of the range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cases = [("", platform) for platform in DEVICES]
    cases += [(extra, DEVICES[0]) for extra in project["optional-dependencies"]]
    passed = True
    for extra, platform in cases:
        for python in PYTHONS:
            for name, resolution in RESOLUTIONS.items():
                found = resolve(python, resolution, extra, platform)
                passed &= bool(found)
                shown = " ".join(f"{each} {found[each]}" for each in SHOWN if each in found)
                label = f"[{extra}]" if extra else "device"
                print(f"{label:12} {platform:22} {python} {name} {shown or 'IMPOSSIBLE'}")
    return passed


def check_tests(ends: list[tuple[str, str]]) -> bool:
    """Run the tests of the three packages in new environments, without torch."""
    passed = True
    for python, name in ends:
        with tempfile.TemporaryDirectory() as folder:
            executable = str(Path(folder, "bin", "python"))
            install = [*UV, "pip", "install", "--quiet", "--python", executable]
            install += ["--only-binary", ":all:", "--resolution", RESOLUTIONS[name]]
            steps = [
                [*UV, "venv", "--quiet", "--python", python, folder],
                # Not [test]: the stubs for mypy ask for a newer scipy than [server] does.
                [*install, "--editable", ".[server]", "pytest>=8.2", "hypothesis>=6.100"],
                [executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTED],
            ]
            done = all(subprocess.run(step, cwd=ROOT).returncode == 0 for step in steps)
        passed &= done
        print(f"tests with Python {python}, {name}: {'passed' if done else 'FAILED'}")
    return passed


def main() -> int:
    """Check what is asked for; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--test", choices=ENDS, help="run the tests, where")
    where = parser.parse_args().test
    return int(not (check_tests(ENDS[where]) if where else check_resolution()))


if __name__ == "__main__":
    sys.exit(main())
