"""The command that checks the comparison, and the table that it checks."""

import json
import sys
from pathlib import Path

import pytest

from tests.peers import compare
from tests.peers.claims import Claim, Finding, Peer
from tests.peers.pfl_research import PFL_RESEARCH
from tests.peers.projunit import PROJUNIT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"


def peer(*, theirs, ours):
    """Return an installed peer with one claim, which is so or not for either side."""
    claim = Claim(
        call="`f()`",
        outcome="1",
        right="2",
        theirs=lambda loaded: Finding(f"{loaded} 1", theirs),
        ours=lambda: Finding("two", ours),
    )
    return Peer(name="f", option="f", checkout=None, load=lambda _: "loaded", claims=(claim,))


def test_table_of_the_page_is_what_the_command_checks():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    stated = [
        f"| {peer.name} | {claim.call} | {claim.outcome} | {claim.right} |"
        for peer in compare.PEERS
        for claim in peer.claims
    ]
    assert rows[2:] == stated


def test_page_says_how_to_get_what_the_claims_are_about():
    for one in compare.PEERS:
        if one.checkout:
            assert one.checkout.commands(one.option) in PAGE.read_text()


def test_claims_without_a_checkout_are_not_run(monkeypatch, capsys):
    monkeypatch.setattr(compare, "PEERS", (PFL_RESEARCH,))
    assert compare.main([]) == 0
    *lines, versions = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PFL_RESEARCH.claims)
    for line in lines:
        assert line.startswith("not run: apple/pfl-research: ")
        assert line.endswith(PFL_RESEARCH.checkout.commands("pfl"))
    assert versions.startswith("python 3.")


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (True, True, "as stated"),
        (False, True, "not as stated"),
        (True, False, "not as stated"),
    ],
)
def test_verdict_and_exit_status(theirs, ours, verdict, monkeypatch, capsys):
    monkeypatch.setattr(compare, "PEERS", (peer(theirs=theirs, ours=ours),))
    assert compare.main([]) == (verdict != "as stated")
    line = capsys.readouterr().out.splitlines()[0]
    assert line == f"{verdict}: f: f() | loaded 1 | right: 2 | flwr-sdp: two"


def test_json_has_every_claim_and_the_versions(monkeypatch, capsys):
    monkeypatch.setattr(compare, "PEERS", (peer(theirs=True, ours=True), PFL_RESEARCH))
    assert compare.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["claims"][0] == {
        "code": "f",
        "call": "`f()`",
        "stated": "1",
        "right": "2",
        "found": "loaded 1",
        "flwr-sdp": "two",
        "verdict": "as stated",
    }
    assert [row["verdict"] for row in report["claims"][1:]] == ["not run"] * 2
    assert {"flwr", "flwr-sdp", "numpy"} <= set(report["versions"])


def test_a_mended_checkout_is_not_as_stated(tmp_path, monkeypatch, capsys):
    (tmp_path / "PrivUnitAlgs.py").write_text(
        "def priv_unit_G_get_p(epsilon, return_sigma=False):\n"
        "    return (0.99, 1.0) if return_sigma else 0.99\n"
        "def get_gamma_sigma(p, epsilon):\n"
        "    return 0.0, 1.0\n"
        "def PrivUnitG(x, eps, p, gamma, sigma):\n"
        "    return x\n"
        "def privatize_vector(x, eps, k, mech):\n"
        "    return x\n"
    )
    monkeypatch.setattr(compare, "PEERS", (PROJUNIT,))
    path = list(sys.path)
    try:
        assert compare.main(["--projunit", str(tmp_path)]) == 1
    finally:
        sys.modules.pop("PrivUnitAlgs", None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["not as stated"] * 2
    assert "no error" in lines[1]
    assert sys.path == path


def test_folder_that_is_no_such_checkout_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        compare.main(["--msrflute", str(tmp_path)])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert f"--msrflute: {tmp_path} has no extensions/privacy/__init__.py" in message
    assert "git clone https://github.com/microsoft/msrflute" in message
