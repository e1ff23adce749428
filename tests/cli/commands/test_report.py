"""The command report: what runs have left, one whole, several side by side."""

import json

import pytest
from typer.testing import CliRunner

from flwr_sdp.cli.app import app
from flwr_sdp.cli.errors import CommandError
from flwr_sdp.strategies import CentralGuarantee, LocalGuarantee, PrivacyReport


def report(epsilon=50.0, *, central=True, delta=1e-6):
    return PrivacyReport(
        rounds=3,
        max_reports_per_client=3,
        local=LocalGuarantee(epsilon_direction=epsilon, epsilon_magnitude=10.0),
        central=CentralGuarantee(
            epsilon=1.23456,
            delta=delta,
            releases=3,
            accountant="pld",
            noise_multiplier=1.0,
            clip_norm=2.0,
            sampling_rate=0.01,
            population=10_000,
        )
        if central
        else None,
        exceptions=("a note",),
        dim=1000,
    )


def write(folder, made):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    path.write_text(json.dumps({**made.to_dict(), "task": "toy"}))
    return path


def run(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_report_of_a_run_is_the_one_it_ended_with(tmp_path):
    made = report()
    path = write(tmp_path / "run", made)
    assert run(tmp_path / "run") == run(path) == made.to_text() + "\n"


def test_json_is_what_the_run_left(tmp_path):
    made = report()
    path = write(tmp_path, made)
    (entry,) = json.loads(run(tmp_path, "--json"))["reports"]
    assert entry == {"file": str(path), "task": "toy", **made.to_dict()}


def test_json_of_a_report_of_before_has_the_warning_of_its_delta(tmp_path):
    path = write(tmp_path, report(delta=0.01))
    content = json.loads(path.read_text())
    del content["central"]["warning"], content["central"]["expected_cohort"]
    path.write_text(json.dumps(content))
    (entry,) = json.loads(run(tmp_path, "--json"))["reports"]
    assert "published outright" in entry["central"]["warning"]
    assert entry["task"] == "toy"


def test_several_stand_side_by_side_each_for_its_own_run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "sweep" / "a" / "trial-0", report(500.0))
    write(tmp_path / "sweep" / "b" / "trial-0", report(50.0, central=False))
    write(tmp_path / "sweep" / "c" / "trial-0", report(50.0, delta=1e-4))
    rows = [line.split() for line in run("sweep", "sweep/a").splitlines()]
    assert ["sweep/a/trial-0", "510", "1530", "1.235", "1e-06", "1"] in rows
    assert ["sweep/b/trial-0", "60", "180", "none", "1"] in rows
    (wide,) = [row for row in rows if row[:1] == ["sweep/c/trial-0"]]
    assert wide[3:-1] == ["1.235", "0.0001", "(>=", "1/N!)"]
    assert sum(row[:1] == ["sweep/a/trial-0"] for row in rows) == 1  # named twice, shown once
    assert len(json.loads(run("sweep", "--json"))["reports"]) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no report\.json in .*: pass the folder of a run that ended, or a report"),
        ("{", r"report\.json is not JSON: "),
        ("[]", r"report\.json holds no privacy report: it is not a JSON object"),
        ('{"schema": 7}', r"holds no privacy report: schema must be 1 .* got 7"),
        ('{"schema": 1, "local": null}', r"not a whole privacy report: 'projection'"),
    ],
)
def test_what_is_no_report_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(CommandError, match=message):
        run(tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CommandError, match="nowhere is not there"):
        run(tmp_path / "nowhere")
