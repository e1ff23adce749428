"""How a reply is laid out, in Flower's message API and in that of legacy clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_sdp.marks import LEGACY_METRICS

# Legacy clients: how the names of a request's records begin, and those of its reply.
_LEGACY = {
    "fitins": "fitres",
    "evaluateins": "evaluateres",
    "getpropertiesins": "getpropertiesres",
}
_LEGACY_METRICS = (LEGACY_METRICS, "evaluateres.metrics", "getpropertiesres.properties")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyFormat:
    """How a reply to a certain request is laid out.

    Attributes
    ----------
    arrays : str or None
        Name of the request's ArrayRecord, if it has one.
    legacy : str or None
        For a client behind a ``client_fn``, such as a ``NumPyClient``: how the reply's records
        begin. Such a client's arrays have numbers for names.
    """

    arrays: str | None
    legacy: str | None

    @classmethod
    def of(cls, request: RecordDict) -> ReplyFormat:
        """Return the format that the sender of a request expects."""
        names = [name for name, record in request.items() if isinstance(record, ArrayRecord)]
        kinds = {name.split(".")[0] for name in request}
        legacy = next((_LEGACY[kind] for kind in sorted(kinds) if kind in _LEGACY), None)
        return cls(arrays=names[0] if names else None, legacy=legacy)

    def reply(self, arrays: ArrayRecord | None, metrics: Mapping[str, Any]) -> RecordDict:
        """Return a reply that has nothing but the given arrays and metrics, and weight 1."""
        if self.legacy is None:
            content: dict[str, Any] = {}
            if arrays is not None:
                content[self.arrays or "arrays"] = arrays
            content["metrics"] = MetricRecord({"num-examples": 1, **metrics})
            return RecordDict(content)
        name = self.legacy
        if name == "getpropertiesres":
            content = {f"{name}.properties": ConfigRecord(dict(metrics))}
        else:
            metrics, content = dict(metrics), {}
            if name == "evaluateres":  # it needs a loss: not a number, unless it may leave
                content[f"{name}.loss"] = MetricRecord({"loss": metrics.pop("loss", nan)})
            content[f"{name}.metrics"] = ConfigRecord(metrics)
            content[f"{name}.num_examples"] = MetricRecord({"num_examples": 1})
            if arrays is not None:
                content[f"{name}.parameters"] = arrays
        return RecordDict({**content, f"{name}.status": ConfigRecord({"code": 0, "message": ""})})

    def check_status(self, reply: RecordDict) -> None:
        """Raise ``RuntimeError`` if a legacy client says that it failed."""
        status = reply.get(f"{self.legacy}.status")
        if isinstance(status, ConfigRecord) and status.get("code", 0) != 0:
            raise RuntimeError(f"the client replied with a status: {dict(status)}")


def metrics_named(content: RecordDict, names: Iterable[str]) -> dict[str, Any]:
    """Return the metrics of these names; legacy clients have them in a ConfigRecord.

    Raises
    ------
    ValueError
        If one is neither a number, a text nor a list of them.
    """
    found: dict[str, Any] = {}
    named = tuple(names)
    # MetricRecords last: the loss of a legacy client is that of its own record.
    records = sorted(content.items(), key=lambda item: isinstance(item[1], MetricRecord))
    for record_name, record in records:
        if isinstance(record, MetricRecord) or record_name in _LEGACY_METRICS:
            found.update({name: record[name] for name in named if name in record})
    for name, value in found.items():
        if any(isinstance(each, bytes) for each in (value if isinstance(value, list) else [value])):
            raise ValueError(f"metric {name!r} must be a number or a text; got bytes")
    return found
