"""Sentences of users, in flat arrays."""

import time
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.data.text.corpus import Corpus
from tests.simulations.data.text.corpora import corpus_of, read, sized, split
from tests.statistics_helpers import PROPERTY

SMALL = corpus_of(ann="a b c. a", bob="c d. d. d", cid="e")

WORDS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)
USERS = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=6)


def text_of(sentences):
    return ". ".join(" ".join(words) for words in sentences)


def test_what_users_wrote_can_be_read_again():
    assert read(SMALL) == {
        "ann": [["a", "b", "c"], ["a"]],
        "bob": [["c", "d"], ["d"], ["d"]],
        "cid": [["e"]],
    }
    assert len(SMALL) == 6
    assert (SMALL.tokens.dtype, SMALL.sentence_ends.dtype) == (np.int32, np.int64)


@PROPERTY
@given(USERS, st.randoms(use_true_random=False))
def test_some_users_wrote_what_they_wrote(users, random):
    corpus = corpus_of(**{f"u{n}": text_of(wrote) for n, wrote in enumerate(users)})
    chosen = random.sample(range(len(users)), random.randint(1, len(users)))
    part = corpus.of_users(np.array(chosen))
    assert read(part) == {f"u{n}": users[n] for n in chosen}
    assert part.users == tuple(f"u{n}" for n in chosen)


def test_words_are_counted():
    counts = dict(zip(SMALL.words, SMALL.word_counts().tolist(), strict=True))
    assert counts == {"a": 2, "b": 1, "c": 2, "d": 3, "e": 1}
    bob = SMALL.of_users(np.array([1]))
    counts = dict(zip(bob.words, bob.word_counts().tolist(), strict=True))
    assert counts == {"a": 0, "b": 0, "c": 1, "d": 3, "e": 0}


def test_texts_of_a_user_are_one_behind_the_other_and_users_without_words_are_left_out():
    texts = [("ann", ["a. b", "", "c"]), ("bob", []), ("cid", [" . "]), ("dan", ["d"])]
    corpus = Corpus.from_texts("small", iter(texts), split)
    assert read(corpus) == {"ann": [["a"], ["b"], ["c"]], "dan": [["d"]]}


def test_no_text_at_all_is_an_error():
    with pytest.raises(ValueError, match="there is no text in data = 'small'"):
        Corpus.from_texts("small", [("ann", [""])], split)


@pytest.mark.parametrize("user", [-1, 3, True, 1.0])
def test_sentences_of_a_user_who_is_not_there(user):
    with pytest.raises(ValueError, match="user must be an integer >= 0 and <= 2; got"):
        SMALL.sentences(user)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([-1], "users must be indices >= 0 and <= 2; got -1"),
        ([0, 3], "users must be indices >= 0 and <= 2; got 3"),
        ([1, 1], "users must be different; 1 of 2 come again"),
        ([], "users must be texts, at least one"),
    ],
)
def test_users_who_are_not_there_or_come_twice(users, message):
    with pytest.raises(ValueError, match=message):
        SMALL.of_users(np.array(users, np.intp))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": ("ann", "bob", "ann")}, "users must be different; 1 of 3"),
        ({"users": ("ann", "bob", "")}, "users must be texts, at least one, none empty"),
        ({"users": ("ann", "bob")}, "user_ends must have an entry for each of 2 users; got 3"),
        ({"words": ("a", "b", "c", "d", "d")}, "words must be different; 1 of 5"),
        ({"words": ("a", "b", "c", "d", 5)}, "words must be texts"),
        ({"words": ("a", "b")}, "tokens must be indices of 2 words$"),
        ({"tokens": SMALL.tokens - 1}, "tokens must be indices of 5 words$"),
        ({"tokens": SMALL.tokens.astype(np.int64)}, "tokens must be a row of int32; got"),
        ({"tokens": SMALL.tokens[:-1]}, "sentence_ends must rise from 1 or more to 8, the number"),
        ({"sentence_ends": SMALL.sentence_ends[None]}, "sentence_ends must be a row of int64"),
        ({"sentence_ends": np.array([0, 4, 6, 7, 8, 9])}, "sentence_ends must rise"),
        ({"sentence_ends": np.array([3, 3, 6, 7, 8, 9])}, "sentence_ends must rise"),
        ({"user_ends": np.array([2, 5, 5])}, "user_ends must rise from 1 or more to 6"),
        ({"user_ends": np.array([2, 5, 7])}, "user_ends must rise from 1 or more to 6"),
        ({"user_ends": np.array([], np.int64)}, "user_ends must rise"),
    ],
)
def test_parts_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_it_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        SMALL.name = "other"


def test_a_part_of_many_users_takes_no_loop_over_sentences():
    """A loop over the 150,000 sentences takes a second and more."""
    corpus = sized(*[1000] * 300)
    start = time.perf_counter()
    part = corpus.of_users(np.arange(0, 300, 2))
    assert time.perf_counter() - start < 0.5
    assert len(part) == 150_000
    np.testing.assert_array_equal(part.tokens[:1001], [*range(1000), 2000])
