"""Sentences as a language model takes them."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simulations.data.text.sentences import PADDING, Sentences
from simulations.data.text.vocabulary import BEGINNING, END, UNKNOWN, Vocabulary
from tests.simulations.data.text.corpora import corpus_of, read, sized
from tests.statistics_helpers import PROPERTY

CORPUS = corpus_of(ann="a b c. a", bob="x. b a c b a")
VOCABULARY = Vocabulary(("<s>", "</s>", "<unk>", "a", "b", "c"))
A, B, C = 3, 4, 5


def examples(*indices, length=10):
    sentences = Sentences(corpus=CORPUS, vocabulary=VOCABULARY, length=length)
    inputs, targets = sentences.examples(np.array(indices, np.intp))
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.shape == targets.shape
    return inputs.tolist(), targets.tolist()


def test_a_sentence_is_read_from_its_beginning_to_its_end():
    assert examples(0) == ([[BEGINNING, A, B, C]], [[A, B, C, END]])
    assert examples(2) == ([[BEGINNING, UNKNOWN]], [[UNKNOWN, END]])


def test_they_are_as_long_as_the_longest_that_is_asked_for():
    inputs, targets = examples(1, 0)
    assert inputs == [[BEGINNING, A, END, END], [BEGINNING, A, B, C]]
    assert targets == [[A, END, PADDING, PADDING], [A, B, C, END]]


def test_what_is_too_long_is_cut_and_has_no_end():
    inputs, targets = examples(3, 1, length=3)
    assert inputs == [[BEGINNING, B, A], [BEGINNING, A, END]]
    assert targets == [[B, A, C], [A, END, PADDING]]
    assert examples(0, length=3)[1] == [[A, B, C]]
    assert examples(0, length=4)[1] == [[A, B, C, END]]
    assert examples(0, 3, length=1) == ([[BEGINNING], [BEGINNING]], [[A], [B]])


def test_none_and_the_same_twice():
    assert examples() == ([], [])
    assert examples(2, 2)[1] == [[UNKNOWN, END]] * 2


@PROPERTY
@given(
    st.lists(st.lists(st.sampled_from("abcx"), min_size=1, max_size=6), min_size=1, max_size=8),
    st.integers(1, 8),
)
def test_every_sentence_is_what_was_written(written, length):
    corpus = corpus_of(ann=". ".join(" ".join(words) for words in written))
    sentences = Sentences(corpus=corpus, vocabulary=VOCABULARY, length=length)
    assert len(sentences) == len(written)
    inputs, targets = sentences.examples(np.arange(len(written)))
    assert inputs.shape[1] == min(length, max(map(len, written)) + 1)
    for words, row, target in zip(read(corpus)["ann"], inputs, targets, strict=True):
        ids = [{"a": A, "b": B, "c": C}.get(word, UNKNOWN) for word in words]
        count = min(len(ids) + 1, length)
        assert target[:count].tolist() == [*ids, END][:length]
        assert row[:count].tolist() == [BEGINNING, *ids][:length]
        assert (target[count:] == PADDING).all()
        assert ((row >= 0) & (row < len(VOCABULARY))).all()


@pytest.mark.parametrize("index", [-1, 4])
def test_a_sentence_that_is_not_there(index):
    with pytest.raises(IndexError, match="there are sentences 0 to 3; got"):
        examples(0, index)


@pytest.mark.parametrize("length", [0, -1, 2.0, True])
def test_a_length_out_of_range(length):
    with pytest.raises(ValueError, match="sequence-length must be an integer >= 1; got"):
        examples(0, length=length)


def test_padding_is_what_torch_leaves_out():
    scores = torch.zeros(3, 5)
    targets = torch.tensor([1, PADDING, PADDING])
    loss = torch.nn.functional.cross_entropy(scores, targets)
    assert float(loss) == pytest.approx(np.log(5))


def test_many_sentences_take_no_loop():
    """A loop over the 300,000 takes a second and more."""
    corpus = sized(300_000)
    sentences = Sentences(corpus=corpus, vocabulary=VOCABULARY, length=8)
    start = time.perf_counter()
    inputs, _ = sentences.examples(np.arange(300_000))
    assert time.perf_counter() - start < 0.5
    assert inputs.shape == (300_000, 2)
