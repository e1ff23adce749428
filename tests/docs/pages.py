"""The README and the guides, taken apart into their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<kind>[^`]*)$")
_RUN_BY = re.compile(r"<!-- run by (\S+) -->")
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes
    ----------
    page : str
        The file, from the root of the repository.
    line : int
        Of the fence, from 1.
    kind : str
        What is written behind the fence.
    text : str
        What is between the fences.
    run_by : str or None
        The test that the comment above the block names.
    follows : int or None
        The line of the block above, if there is nothing in between.
    """

    page: str
    line: int
    kind: str
    text: str
    run_by: str | None
    follows: int | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is, if its first line says so."""
        named = _FILE.match(self.text)
        return named and named[1]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    return list(_blocks(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))))


def prose_of(page: Path) -> str:
    """Return a page without its blocks; the lines keep their numbers."""
    lines = page.read_text(encoding="utf-8").split("\n")
    for block in blocks_of(page):
        count = block.text.count("\n") + 2
        lines[block.line - 1 : block.line - 1 + count] = [""] * count
    return "\n".join(lines)


def _blocks(text: str, page: str) -> Iterator[Block]:
    above, follows = "", None
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            if line.strip():
                above, follows = line, None
            continue
        inside: list[str] = []
        for _, inner in lines:
            if inner.strip() == opening["fence"]:
                break
            inside.append(inner.removeprefix(opening["indent"]) + "\n")
        else:
            raise ValueError(f"{page}:{number}: the block does not end")
        comment = _RUN_BY.search(above) if follows is None else None
        yield Block(
            page=page,
            line=number,
            kind=opening["kind"].strip(),
            text="".join(inside),
            run_by=comment and comment[1],
            follows=follows,
        )
        above, follows = "", number
