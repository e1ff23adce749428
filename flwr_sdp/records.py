"""The records of one kind in a Flower message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Record = TypeVar("Record")


def records_of(content: Mapping[str, object], kind: type[Record]) -> list[Record]:
    """Return the records of one kind, as ``content.array_records.values()`` and the like do.

    Those views are reference cycles: what was looked at through one stays in memory, model and all,
    until the garbage collector comes by.
    """
    return [record for record in content.values() if isinstance(record, kind)]
