"""Tokenized corpora on disk."""

import logging
import multiprocessing
import os
import pickle
import time

import numpy as np
import pytest

from simulations.data import files
from simulations.data.text.token_cache import cached, file_identity
from tests.simulations.data.text.corpora import corpus_of, read, sized

CORPUS = corpus_of(ann="a b. c", bob="b \u00e9\U0001f600 \u2028x")
IDENTITY = {"nltk": "3.9", "files": [("a.txt", 5, 7)]}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "FETCHED", tmp_path / "fetched")
    return tmp_path / "fetched" / "tokens"


class Builder:
    """Counts how often it builds."""

    def __init__(self, corpus=CORPUS):
        self.corpus, self.times = corpus, 0

    def __call__(self):
        self.times += 1
        return self.corpus


def load(builder, name="small", **changes):
    return cached(name, {**IDENTITY, **changes}, builder)


def stored(folder):
    [path] = folder.glob("*.npz")
    return path


def test_it_is_built_once_and_read_as_it_was():
    builder = Builder()
    first, second = load(builder), load(builder)
    assert builder.times == 1
    assert first is CORPUS
    assert (second.name, second.users, second.words) == (CORPUS.name, CORPUS.users, CORPUS.words)
    assert read(second) == read(CORPUS)
    assert second.tokens.dtype == np.int32


@pytest.mark.parametrize(
    "changes", [{"nltk": "3.10"}, {"files": [("a.txt", 5, 8)]}, {"more": None}, {"name": "other"}]
)
def test_other_text_is_another_corpus(changes):
    first, second = Builder(), Builder(corpus_of(eve="z"))
    load(first)
    assert load(second, **changes).users == ("eve",)
    assert load(first).users == ("ann", "bob")
    assert (first.times, second.times) == (1, 1)


def test_a_million_words_are_read_in_no_time():
    load(Builder(sized(*[1000] * 1000)))
    start = time.perf_counter()
    assert len(load(Builder())) == 1_000_000
    assert time.perf_counter() - start < 5.0  # 1.2 s; tokenizing takes 20 and more


def test_the_identity_of_a_file_is_path_size_and_time(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("abc")
    os.utime(path, ns=(1, 2))
    before = file_identity([path])
    assert before == [(str(path), 3, 2)]
    os.utime(path, ns=(1, 3))
    assert file_identity([path]) != before


# ------------------------------------------------------------------ files that cannot be trusted
def truncate(data):
    return data[:-100]


def flip(data):
    place = data.index(CORPUS.tokens.tobytes())
    return data[:place] + b"\x02" + data[place + 1 :]


@pytest.mark.parametrize(
    "spoil",
    [truncate, flip, lambda data: b"", lambda data: b"PK\x03\x04" + data[50:], lambda data: b"?"],
    ids=["truncated", "a bit", "empty", "header", "other"],
)
def test_a_broken_file_is_built_anew(spoil, folder, caplog):
    load(Builder())
    path = stored(folder)
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    builder = Builder()
    with caplog.at_level(logging.WARNING, "flwr"):
        assert read(load(builder)) == read(CORPUS)
    assert builder.times == 1
    assert f"{path} is not used" in caplog.text
    assert read(load(builder)) == read(CORPUS)
    assert builder.times == 1


def spoil_arrays(path, **changes):
    with np.load(path) as arrays:
        kept = dict(arrays)
    np.savez(path, **(kept | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": np.array([0, 1, 2, 1, 99], np.int32)},
        {"user_ends": np.array([1, 2])},
        {"users": np.frombuffer(b'["ann"]', np.uint8)},
        {"key": np.frombuffer(b'"other"', np.uint8)},
    ],
    ids=str,
)
def test_a_file_whose_parts_do_not_fit_is_built_anew(changes, folder):
    load(Builder())
    spoil_arrays(stored(folder), **changes)
    builder = Builder()
    assert read(load(builder)) == read(CORPUS)
    assert builder.times == 1


class Trap:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("bare", [False, True])
def test_no_pickle_is_ever_loaded(bare, folder, tmp_path):
    load(Builder())
    path, trap = stored(folder), tmp_path / "sprung"
    if bare:
        path.write_bytes(pickle.dumps(Trap(trap)))
    else:
        spoil_arrays(path, users=np.array([Trap(trap)], object))
    builder = Builder()
    load(builder)
    assert builder.times == 1
    assert not trap.exists()


# ------------------------------------------------------------------ places and processes
def test_where_nothing_can_be_kept_it_is_built_each_time(tmp_path, caplog):
    (tmp_path / "fetched").touch()
    builder = Builder()
    with caplog.at_level(logging.WARNING, "flwr"):
        load(builder)
        load(builder)
    assert builder.times == 2
    assert "tokens are not kept" in caplog.text


def test_a_full_disk_does_not_end_the_run(monkeypatch, folder, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simulations.data.text.token_cache.write_whole", full)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert load(Builder()) is CORPUS
    assert "tokens could not be kept" in caplog.text


def test_an_error_of_the_text_is_raised(folder):
    def broken():
        raise FileNotFoundError("a.txt is missing")

    with pytest.raises(FileNotFoundError, match=r"a\.txt is missing"):
        load(broken)
    assert load(Builder()) is CORPUS


def _build_slowly(fetched, results):
    files.FETCHED = fetched
    built = []

    def build():
        built.append(1)
        time.sleep(0.3)
        return CORPUS

    results.put((len(built), load(build).users, len(built)))


def test_of_several_processes_one_builds(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    arguments = (tmp_path / "fetched", results)
    processes = [context.Process(target=_build_slowly, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(30)
    assert all(users == CORPUS.users for _, users, _ in answers)
    assert sum(built for _, _, built in answers) == 1
