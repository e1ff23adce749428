"""A copy of the repository to build in, so that building leaves nothing behind."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_work_tree(folder):
    """Copy every file that git tracks or would add, as it is now, and return where to."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    target = folder / "flwr-sdp"
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():  # not so for one that was removed and is still tracked
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target
