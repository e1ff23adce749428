"""Files of plain text, each of which stands for a user; for pretraining, as on Wikipedia."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from simulations.data.text.text_files import lines

WHAT = "a .txt file, or a folder of such"

_LINES = 1_000
"""Of a paragraph at most, so that a file without blank lines is never in memory whole."""


def is_text(path: Path) -> bool:
    """Return whether a file of a folder is one, by its name without compression."""
    return path.suffix == ".txt"


def read_files(paths: Iterable[Path]) -> Iterator[tuple[str, Iterator[str]]]:
    """Return each file's path and its paragraphs, which are read as they are asked for."""
    for path in paths:
        yield str(path), _paragraphs(path)


def _paragraphs(path: Path) -> Iterator[str]:
    paragraph: list[str] = []
    for _, line in lines(path):
        if line.strip():
            paragraph.append(line)
        if paragraph and (not line.strip() or len(paragraph) == _LINES):
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)
