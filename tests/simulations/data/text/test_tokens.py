"""Sentences and words, by NLTK."""

import sys

import pytest

from simulations.data.text.tokens import load_tokenizer, nltk_version


def sentences(text):
    return list(load_tokenizer()(text))


def test_sentences_and_words_are_those_of_nltk_in_lower_case():
    assert sentences("The king isn't here. Who knows why?  I do!") == [
        ["the", "king", "is", "n't", "here", "."],
        ["who", "knows", "why", "?"],
        ["i", "do", "!"],
    ]


def test_an_abbreviation_does_not_end_a_sentence():
    assert sentences("I met Mr. Smith, i.e. Dr. Who.") == [
        ["i", "met", "mr.", "smith", ",", "i.e.", "dr.", "who", "."]
    ]
    assert len(sentences("I met a smith. Who knows him?")) == 2


def test_a_blank_line_ends_a_sentence_and_a_line_does_not():
    assert sentences("to be\nor not\n \nto be") == [["to", "be", "or", "not"], ["to", "be"]]


def test_typographic_apostrophes_are_apostrophes():
    assert sentences("don\u2019t") == sentences("don't") == [["do", "n't"]]


@pytest.mark.parametrize("text", ["", " \n\t\n ", "\u2003"])
def test_no_words_are_no_sentence(text):
    assert sentences(text) == []


def test_special_tokens_are_taken_apart():
    for token in ("<s>", "</s>", "<unk>"):
        assert token not in sentences(f"a {token} b")[0]


def test_words_have_no_spaces():
    text = "a\u00a0b c\u2028d e\x1cf g\u3000h i\x85j k\u200bl"
    for word in sentences(text)[0]:
        assert word.split() == [word]


def test_without_nltk_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    with pytest.raises(ImportError, match=r"needs nltk: pip install 'flwr-sdp\[tasks\]'"):
        load_tokenizer()


def test_without_nltk_its_version_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ImportError, match=r"needs nltk: pip install 'flwr-sdp\[tasks\]'"):
        nltk_version()
