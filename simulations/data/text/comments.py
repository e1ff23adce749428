"""Comments of Reddit, as pushshift's monthly dumps have them: a JSON object a line.

The paper refits on "all user comments on the website Reddit from November 2017" (Bhowmick et al.,
arXiv:1812.00984v2), the file ``RC_2017-11``.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from pathlib import Path

from simulations.data.text.text_files import lines
from simulations.data.text.user_sample import UserSample

WHAT = "the dump RC_2017-11, a file of JSON lines, or a folder of such"

_ENDINGS = (".json", ".jsonl", ".ndjson")
_NO_USERS = ("[deleted]", "AutoModerator")
_NO_BODIES = ("[deleted]", "[removed]")

# One after the other: quotations, code and rules; links; addresses; bullets and headings; marks
# that no backslash keeps; and the backslashes.
_MARKDOWN = (
    (re.compile(r"^[ \t]*>.*$|^(?: {4}|\t).*$|^[ \t]*(?:[-*_][ \t]*){3,}$", re.M), ""),
    (re.compile(r"!?\[([^]\n]*)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"\n]*\")?\)"), r"\1"),
    (re.compile(r"(?:https?://|www\.)\S+"), " "),
    (re.compile(r"^[ \t]*(?:#+|[-*+]|\d{1,2}[.)])[ \t]+", re.M), ""),
    (re.compile(r"(?<!\\)(?:\*+|~~|`+|(?<!\w)[_^]+|_+(?!\w))"), ""),
    (re.compile(r"\\(?=[^\w\s])"), ""),
)


def is_dump(path: Path) -> bool:
    """Return whether a file of a folder is one of comments, by its name without compression."""
    return path.name.startswith("RC_") or path.suffix in _ENDINGS


def read_comments(
    paths: Iterable[Path], max_users: int | None = None
) -> list[tuple[str, list[str]]]:
    """Return the cleaned comments of each user, or of a sample of the users.

    What was deleted or removed is left out, and so are users who deleted themselves, and the
    AutoModerator. Files are read line by line; what is kept is in memory.

    Raises
    ------
    ValueError
        If a line is no comment; the message names file and line.
    """
    sample = UserSample(max_users)
    for path in paths:
        for number, line in lines(path):
            user, body = _comment(path, number, line)
            if user in _NO_USERS or body.strip() in _NO_BODIES or not sample.wants(user):
                continue
            text = clean(body)
            if text:
                sample.add(user, text)
    return sample.texts()


def clean(body: str) -> str:
    """Return the text of a comment: no quotations of others, code, addresses or marks."""
    text = html.unescape(body).replace("\u200b", "").replace("\r\n", "\n")
    for pattern, by in _MARKDOWN:
        text = pattern.sub(by, text)
    return text.strip()


def _comment(path: Path, number: int, line: str) -> tuple[str, str]:
    try:
        comment, reason = json.loads(line), ""
    except ValueError as error:
        reason = getattr(error, "msg", type(error).__name__)
    if reason:  # raised here, not to carry an error that has the line
        raise ValueError(f"{path}, line {number}, is not JSON: {reason}")
    if not isinstance(comment, dict):
        raise ValueError(
            f"{path}, line {number}, must be a JSON object; got {type(comment).__name__}"
        )
    return _text(path, number, comment, "author"), _text(path, number, comment, "body")


def _text(path: Path, number: int, comment: dict[str, object], key: str) -> str:
    value = comment.get(key)
    if not isinstance(value, str):
        raise ValueError(
            f"{path}, line {number}, must have a text {key!r}; got {type(value).__name__}"
        )
    # JSON can say half of a surrogate pair, which no file can hold.
    return value.encode(errors="replace").decode()
