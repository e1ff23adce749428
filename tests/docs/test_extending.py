"""The task of the guide to extending, put where the guide says, trains."""

import csv
import shutil
import subprocess
import sys

from tests.docs.commands import commands
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "extending.md"


def test_the_new_task_trains(tmp_path):
    blocks = blocks_of(PAGE)
    shutil.copytree(
        ROOT / "simulations", tmp_path / "simulations", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for block in blocks:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    ((_, *command),) = [
        words for block in blocks if block.kind == "sh" for words in commands(block.text)
    ]
    program = [sys.executable, "-c", "from flwr_sdp.cli import main; main()"]
    done = subprocess.run(
        [*program, *command, "--no-baseline"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = tmp_path.glob("runs/tumours/*/results.csv")
    with results.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(11))
    assert float(rows[0]["accuracy"]) == 0.0  # the model of zeros is on no side
    assert float(rows[-1]["accuracy"]) > 0.8  # 37% of the cases are malignant
