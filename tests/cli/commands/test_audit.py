"""The command audit: finds the app, follows the audit, and returns its status."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMMAND = Path(sys.executable).parent / "flwr-sdp"
CONF = ROOT / "simulations" / "conf" / "audit"

pytest.importorskip("torch", reason="needs flwr-sdp[simulation]")


def audit(*arguments):
    return subprocess.run(
        [COMMAND, "audit", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_audit_is_run_in_the_app_around_the_run_file(tmp_path):
    done = audit(CONF / "smoke.toml", "--output", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "audit" / "smoke").iterdir()
    assert json.loads(done.stdout) == json.loads((folder / "audit.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == [
        "audit.csv",
        "audit.json",
        "reconstruction.png",
    ]
    assert "gradient inversion" in done.stderr  # its progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.toml"], "flwr-sdp: cannot read missing.toml: No such file"),
        ([CONF / "smoke.toml", "--app", ROOT / "docs"], "flwr-sdp: no Flower app at"),
        (
            [CONF / "smoke.toml", "--app", ROOT / "docs" / "examples" / "logistic"],
            "logistic has no simulations.audit",
        ),
        ([ROOT / "simulations" / "conf" / "digits.toml"], "audit: words.batch-size is missing"),
    ],
)
def test_mistakes_are_one_line_with_exit_status_2(arguments, message, tmp_path):
    done = audit(*arguments, "--output", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_audit_ends_with_the_command(tmp_path):
    """Ended by the system, it leaves neither the audit nor an empty folder behind."""
    process = subprocess.Popen(
        [COMMAND, "audit", CONF / "digits.toml", "--output", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        process.wait()
        pytest.skip("needs /proc")
    deadline = time.monotonic() + 60
    while not (found := children.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert len(found) == 1
    assert not Path("/proc", found[0]).exists()
    assert list(tmp_path.iterdir()) == []
