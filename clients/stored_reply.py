"""A private reply as bytes, so that the same message gets the same reply again."""

from __future__ import annotations

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_PLAIN: dict[str, type[MetricRecord] | type[ConfigRecord]] = {
    "metrics": MetricRecord,
    "config": ConfigRecord,
}


def encode(content: RecordDict) -> list[bytes]:
    """Return the parts of a reply in a row; the arrays among them are not copied.

    A line of JSON says what follows.
    """
    records: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = []
            for key, array in record.items():
                arrays.append([key, array.dtype, array.shape, array.stype, len(array.data)])
                parts.append(array.data)
            records.append({"name": name, "kind": "arrays", "arrays": arrays})
        else:
            kind = "metrics" if isinstance(record, MetricRecord) else "config"
            records.append({"name": name, "kind": kind, "values": dict(record)})
    return [json.dumps(records).encode() + b"\n", *parts]


def decode(data: bytes) -> RecordDict:
    """Return what :func:`encode` was given."""
    start = data.index(b"\n") + 1
    content = RecordDict()
    for record in json.loads(data[:start]):
        if record["kind"] != "arrays":
            content[record["name"]] = _PLAIN[record["kind"]](record["values"])
            continue
        arrays: dict[str, Array] = {}
        for key, dtype, shape, stype, size in record["arrays"]:
            arrays[key] = Array(dtype, tuple(shape), stype, data[start : start + size])
            start += size
        content[record["name"]] = ArrayRecord(arrays)
    return content
