"""Check that a device can be installed without a compiler, on every platform named here.

    python tests/check_wheels.py

Asks the package index, and so is no part of the tests. The requirements are those of the
environment it runs in, at the versions there, with the markers of the platform in question.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from importlib.metadata import distribution

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
MACOS = {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"}
WINDOWS = {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"}
# Names of platforms that wheels go by, newest first, as pip has them on such a machine.
PLATFORMS: dict[str, tuple[dict[str, str], list[str]]] = {
    "Linux x86-64": (
        LINUX | {"platform_machine": "x86_64"},
        ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"],
    ),
    "Linux aarch64": (
        LINUX | {"platform_machine": "aarch64"},
        ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"],
    ),
    "macOS arm64": (
        MACOS | {"platform_machine": "arm64"},
        [f"macosx_{version}_{kind}" for version in ("14_0", "12_0", "11_0", "10_12", "10_9")
         for kind in ("arm64", "universal2")],
    ),
    # macOS on Intel: there are no wheels of the cryptography that flwr 1.42 requires.
    "Windows x86-64": (WINDOWS | {"platform_machine": "AMD64"}, ["win_amd64"]),
}  # fmt: skip


def requirements(name: str, environment: dict[str, str], extras: frozenset[str]) -> set[str]:
    """Return everything that `name` needs in an environment, as pinned requirements."""
    found: set[str] = set()
    pending = [(name, extras)]
    seen = set()
    while pending:
        name, extras = pending.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            texts = distribution(name).requires or []
        except ModuleNotFoundError:  # needed there and not here, such as colorama
            continue
        for text in texts:
            requirement = Requirement(text)
            wanted = requirement.marker is None or any(
                requirement.marker.evaluate(environment | {"extra": extra})
                for extra in extras | {""}
            )
            if wanted:
                key = canonicalize_name(requirement.name)
                found.add(key)
                pending.append((key, frozenset(requirement.extras)))
    return found


def main() -> int:
    """Print a line a platform; 1 if a wheel is missing."""
    failed = False
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name, (facts, tags) in PLATFORMS.items():
        environment = {**default_environment(), **facts}
        pins = []
        for package in sorted(requirements("flwr-sdp", environment, frozenset())):
            try:
                pins.append(f"{package}=={distribution(package).version}")
            except ModuleNotFoundError:
                pins.append(package)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", "--dest", folder, "--only-binary=:all:"]
            command += ["--python-version", version, "--implementation", "cp", "--abi"]
            command += [f"cp{version.replace('.', '')}", "--abi", "abi3", "--abi", "none"]
            for tag in [*tags, "any"]:
                command += ["--platform", tag]
            done = subprocess.run([*command, *pins], capture_output=True, text=True)
        ok = done.returncode == 0
        failed |= not ok
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        print(f"{name:16} {len(pins)} wheels {'found' if ok else 'MISSING: ' + ' '.join(errors)}")
    return int(failed)


if __name__ == "__main__":
    print(f"on {platform.system()}, Python {platform.python_version()}")
    sys.exit(main())
