"""From text to sentences of words, by NLTK.

"We use the Natural Language Toolkit (NLTK) tokenization procedure to tokenize each sentence and
word" (Bhowmick et al., arXiv:1812.00984v2, section "Pretrained models").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from simulations import extras

Tokenizer = Callable[[str], Iterator[list[str]]]
"""From a text to its sentences, each at least one word; punctuation marks are words."""

ABBREVIATIONS = frozenset(
    "a.m approx apr aug ave capt cf co col corp dec dept dr e.g ed esq etc feb fig gen gov i.e inc "
    "jan jr lt ltd mr mrs ms mt nov oct p.m ph.d pp prof rep rev sen sept sgt sr st u.k u.s vol "
    "vs".split()
)
"""Words whose period does not end a sentence."""

_NEEDED_BY = "language data needs"
_PARAGRAPHS = re.compile(r"\n\s*\n")
_APOSTROPHES = str.maketrans("\u2018\u2019", "''")


def load_tokenizer() -> Tokenizer:
    """Return NLTK's tokenizer, without the models that it would download.

    Words are those of ``NLTKWordTokenizer``, NLTK's default. Sentences are those of the Punkt
    tokenizer: NLTK downloads what Punkt learnt from English newspapers, and this one knows the
    common `ABBREVIATIONS` in place of that. What it loses is rare: a sentence is cut behind
    another abbreviation, and names that newspapers often have behind initials are not known.

    All words come in lower case, as in the usual benchmarks of next-word prediction. Whether a
    word begins a sentence, or a line of verse, says nothing about which word it is, and would take
    a second place in the vocabulary. A blank line ends a sentence.

    Raises
    ------
    ImportError
        If NLTK is not installed.
    """
    nltk = extras.load("nltk.tokenize", _NEEDED_BY)
    punkt = extras.load("nltk.tokenize.punkt", _NEEDED_BY)
    parameters = punkt.PunktParameters()
    parameters.abbrev_types.update(ABBREVIATIONS)
    split_sentences = punkt.PunktSentenceTokenizer(parameters).tokenize
    split_words = nltk.NLTKWordTokenizer().tokenize

    def tokenize(text: str) -> Iterator[list[str]]:
        # NLTK takes contractions apart at the plain apostrophe alone.
        for paragraph in _PARAGRAPHS.split(text.translate(_APOSTROPHES)):
            for sentence in split_sentences(paragraph):
                words = [word.lower() for word in split_words(sentence)]
                if words:
                    yield words

    return tokenize


def nltk_version() -> str:
    """Return which NLTK is installed: another one may find other words.

    Raises
    ------
    ImportError
        If none is.
    """
    return extras.version("nltk", _NEEDED_BY)
