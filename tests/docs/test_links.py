"""What the README and the guides point at is there: files, headings, tests."""

import re
import string
from functools import cache

import pytest

from tests.docs.pages import PAGES, ROOT, prose_of

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FOLDERS = ("clients", "docs", "flwr_sdp", "simulations", "strategies", "tests")
_PATH = re.compile(rf"(?:{'|'.join(_FOLDERS)})/[\w./-]*[\w/]")
_TEST = re.compile(r"test_\w+")


def each_page():
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def anchors(page):
    """Return the anchors of a page's headings, as forges and MyST make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose_of(page), flags=re.MULTILINE):
        text = re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        kept = "".join(c for c in text if c in "-_ " or c not in string.punctuation)
        found.add(kept.replace(" ", "-"))
    return found


def broken(page, text):
    """Return the links of a page's text that lead nowhere."""
    missing = []
    for link in _LINK.findall(text):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or not target.is_relative_to(ROOT):
            missing.append(link)
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            missing.append(link)
    return missing


@each_page()
def test_links_lead_somewhere(page):
    assert not broken(page, prose_of(page))


@each_page()
def test_files_that_are_named_exist(page):
    for code in _CODE.findall(prose_of(page)):
        if _PATH.fullmatch(code):
            assert (ROOT / code).exists(), code


@cache
def names_of_tests():
    """Return the names of all tests."""
    return {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *def (test_\w+)", file.read_text(), flags=re.MULTILINE)
    }


@each_page()
def test_tests_that_are_named_exist(page):
    for code in _CODE.findall(prose_of(page)):
        if _TEST.fullmatch(code):
            assert code in names_of_tests()


def test_every_guide_is_in_the_contents():
    """A page that no table of contents has is a page that nobody finds."""
    index = (ROOT / "docs" / "index.md").read_text()
    listed = set(re.findall(r"^[\w/-]+$", index, flags=re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in PAGES[1:]}
    assert listed == pages - {"index"}


def test_a_broken_link_is_noticed():
    page = ROOT / "docs" / "server.md"
    assert (
        broken(page, "[a](server.md#memory) [b](#memory) [c](../README.md) [d](https://e.org)")
        == []
    )
    text = "[a](server.md#no-such-heading) [b](no-such-page.md) [c](../../outside.md)"
    assert len(broken(page, text)) == 3
