"""The words a model knows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.data.text.vocabulary import BEGINNING, END, SPECIAL, UNKNOWN, Vocabulary
from tests.simulations.data.text.corpora import corpus_of
from tests.statistics_helpers import PROPERTY

PUBLIC = corpus_of(ann="the cat the dog the cat", bob="a bird a fish the")


def test_special_tokens_come_first_then_the_most_frequent_words_then_the_alphabet():
    vocabulary = Vocabulary.from_corpus(PUBLIC, 5)
    assert vocabulary.tokens == ("<s>", "</s>", "<unk>", "the", "a", "cat", "bird", "dog")
    assert len(vocabulary) == 8
    assert [SPECIAL[i] for i in (BEGINNING, END, UNKNOWN)] == ["<s>", "</s>", "<unk>"]


def test_the_order_of_the_text_does_not_matter():
    other = corpus_of(bob="fish a the bird a", ann="cat cat dog the the the")
    assert Vocabulary.from_corpus(other, 4) == Vocabulary.from_corpus(PUBLIC, 4)


def test_words_that_are_not_used_are_no_words():
    bob = PUBLIC.of_users(np.array([1]))
    assert set(Vocabulary.from_corpus(bob, 4).tokens[3:]) == {"a", "bird", "fish", "the"}
    with pytest.raises(ValueError, match="vocabulary-size must be an integer >= 1 and <= 4; got 5"):
        Vocabulary.from_corpus(bob, 5)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, 7])
def test_sizes_out_of_range(size):
    with pytest.raises(ValueError, match="vocabulary-size must be an integer >= 1 and <= 6; got"):
        Vocabulary.from_corpus(PUBLIC, size)


def test_tokens_become_ids_and_the_unknown_is_unknown():
    vocabulary = Vocabulary.from_corpus(PUBLIC, 2)
    ids = vocabulary.encode(corpus_of(eve="a dragon saw the <s> </s>"))
    assert ids.tolist() == [4, UNKNOWN, UNKNOWN, 3, UNKNOWN, UNKNOWN]
    assert ids.dtype == np.int32


def test_written_special_tokens_take_no_place():
    corpus = corpus_of(eve="<s> <s> <unk> </s> a")
    assert Vocabulary.from_corpus(corpus, 1).tokens == (*SPECIAL, "a")


# ------------------------------------------------------------------ files
def test_the_file_can_be_read(tmp_path):
    path = tmp_path / "vocabulary.txt"
    Vocabulary.from_corpus(PUBLIC, 3).save(path)
    assert path.read_text("utf-8") == "<s>\n</s>\n<unk>\nthe\na\ncat\n"
    assert list(tmp_path.iterdir()) == [path]


@PROPERTY
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1),
        unique=True,
    )
)
def test_what_is_saved_is_loaded(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt"
    vocabulary = Vocabulary((*SPECIAL, *(word for word in words if word not in SPECIAL)))
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "tokens must begin with <s>, </s>, <unk>"),
        (b"<s>\n<unk>\n</s>\na\n", "tokens must begin with <s>, </s>, <unk>"),
        (b"<s>\n</s>\n<unk>\na\na\n", "tokens must be different; got one of them 2 times"),
        (b"<s>\n</s>\n<unk>\na b\n", "tokens must be words without spaces; number 4 is none"),
        (b"<s>\n</s>\n<unk>\n\na\n", "tokens must be words without spaces; number 4 is none"),
        (b"<s>\r\n</s>\r\n<unk>\r\n", "tokens must begin with"),
        (b"<s>\n</s>\n<unk>\na\nb", "the last line does not end"),
        (b"<s>\n</s>\n<unk>\n\xff\n", "it is not UTF-8"),
    ],
)
def test_other_files_are_refused_by_name(data, message, tmp_path):
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as raised:
        Vocabulary.load(path)
    assert str(raised.value).startswith(f"{path} is not a vocabulary")


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt"):
        Vocabulary.load(tmp_path / "nowhere.txt")
