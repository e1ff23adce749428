"""A whole audit, its files and its exit status."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from flwr_sdp import seeded_generator
from simulations.audit import run
from simulations.audit.findings import Finding
from simulations.audit.images import cosines, digits
from simulations.audit.picture import at_cosine

CONF = Path(__file__).resolve().parents[3] / "simulations" / "conf" / "audit"

HOLDS = Finding(
    attack="linear",
    target="digits",
    measure="cosine >= 0.9",
    epsilon_direction=math.inf,
    epsilon=math.inf,
    trials=10,
    measured=0.5,
    low=0.2,
    high=0.8,
    bound=0.2,
)
REFUTED = dataclasses.replace(HOLDS, bound=0.1, epsilon=3.0)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit") / "new"
    status = run.main([str(CONF / "smoke.toml"), "--output", str(folder)])
    return status, folder


def test_audit_leaves_three_files_and_every_claim_holds(audited):
    status, folder = audited
    assert status == 0
    assert {path.name for path in folder.iterdir()} == {
        "audit.csv",
        "audit.json",
        "reconstruction.png",
    }
    with (folder / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    attacks = {row["attack"] for row in rows}
    assert attacks == {
        "linear",
        "gradient inversion",
        "look-alike",
        "confined",
        "low frequencies",
        "words",
        "distinguishing",
    }
    for row in rows:
        assert row["holds"] == "true"
        assert float(row["low"]) <= float(row["measured"]) <= float(row["high"])
        assert float(row["low"]) <= float(row["bound"])
        if float(row["epsilon"]) == math.inf and row["target"] != "digits, others in the album":
            assert row["measured"] == "1.0"  # without privacy everything is recovered


def test_json_holds_the_same(audited):
    _, folder = audited
    content = json.loads((folder / "audit.json").read_text())
    with (folder / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert content["holds"] is True
    assert content["settings"]["linear_trials"] == 60
    for row, finding in zip(rows, content["findings"], strict=True):
        assert row["target"] == finding["target"]
        assert float(row["measured"]) == finding["measured"]
        assert (row["high"] == "inf") == (finding["high"] is None)


def test_picture_is_a_picture(audited):
    from matplotlib import image

    pixels = image.imread(audited[1] / "reconstruction.png")
    height, width = pixels.shape[:2]
    assert 900 < width < 1600
    assert 600 < height < 1600
    assert pixels[..., :3].min() < 0.1


def test_images_at_a_cosine_are_exactly_there():
    truth = digits(20, seeded_generator(0)).pixels
    for cosine in (0.0, 0.93, 1.0):
        np.testing.assert_allclose(
            cosines(at_cosine(truth, cosine, seed=1), truth), cosine, atol=1e-9
        )


@pytest.mark.parametrize(("findings", "status"), [([HOLDS], 0), ([HOLDS, REFUTED], 1)])
def test_exit_status_says_whether_every_claim_holds(
    findings, status, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(run, "run", lambda *_: findings)
    assert run.main([str(CONF / "smoke.toml"), "--output", str(tmp_path)]) == status
    shown = capsys.readouterr()
    assert ("REFUTED" in shown.out) == (status == 1)
    refutations = [line for line in shown.err.splitlines() if line.startswith("audit: refuted: ")]
    assert len(refutations) == status
    assert run.main([str(CONF / "smoke.toml"), "--output", str(tmp_path), "--json"]) == status
    assert json.loads(capsys.readouterr().out)["holds"] == (status == 0)


def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, capsys):
    runfile = tmp_path / "bad.toml"
    text = (CONF / "smoke.toml").read_text()
    runfile.write_text(text.replace('task = "digits"', 'task = "faces"'))
    assert run.main([str(runfile), "--output", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "audit: task must be one of 'digits'; got 'faces'\n"
    assert not (tmp_path / "out").exists()
