"""What the replies of a cohort were, beside their sum: used, refused, and what they spent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flwr_sdp.marks import (
    EPSILON_DIRECTION,
    EPSILON_MAGNITUDE,
    INSECURE_GENERATOR,
    LEGACY_METRICS,
    MARKS,
    MAX_OUTPUT_NORM,
    WEIGHTS,
)
from flwr_sdp.model_rounding import Rounding
from flwr_sdp.records import records_of
from flwr_sdp.strategies.accumulator import Accumulator
from flwr_sdp.strategies.report import LocalGuarantee

# Clients write the texts of their errors, so the report bounds how many kinds it keeps.
_MAX_EXCEPTIONS = 50

_INSECURE = (
    "a device drew its noise from a generator that is not secure: simulation only, a local "
    "guarantee takes the secure one"
)


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts of replies, and the facts about them that a report is made of. Tallies add up.

    Attributes
    ----------
    used, failed, refused : int
        Replies that are in the sum, that were errors, and that were left out.
    unmarked_used, unmarked_refused : int
        Those of the used and the refused ones that did not say they were private.
    projected : int
        Replies that were longer than the clip norm.
    kept : float
        The share of its length that the projection left, summed over the used replies.
    local : LocalGuarantee or None
        The weakest local guarantee declared by anyone who replied, used or not.
    declared : float
        The longest report that devices have declared possible; 0 without replies.
    longest_report : float
        The same with the rounding to the model's dtypes.
    exceptions : dict[str, int]
        Exceptions to the rule, each with the number of times that it occurred.
    """

    used: int = 0
    failed: int = 0
    refused: int = 0
    unmarked_used: int = 0
    unmarked_refused: int = 0
    projected: int = 0
    kept: float = 0.0
    local: LocalGuarantee | None = None
    declared: float = 0.0
    longest_report: float = 0.0
    exceptions: dict[str, int] = field(default_factory=dict)

    @property
    def insecure(self) -> int:
        """Replies whose noise was not from the secure generator: no local guarantee holds."""
        return self.exceptions.get(_INSECURE, 0)

    def note(self, exception: str, count: int = 1) -> None:
        """Remember an exception for the report; repeats are counted, not listed."""
        exception = " ".join(exception.split())[:200]
        is_kept = exception in self.exceptions or exception == _INSECURE
        if not is_kept and len(self.exceptions) >= _MAX_EXCEPTIONS:
            exception = "further exceptions of other kinds"
        self.exceptions[exception] = self.exceptions.get(exception, 0) + count

    def note_metrics(self, content: RecordDict) -> None:
        """Note what the metrics in a reply say against it; none of them has been privatized."""
        names = {name for record in _metrics_of(content) for name in record}
        if INSECURE_GENERATOR in names:
            self.note(_INSECURE)
        for name in sorted(names - {*WEIGHTS, *MARKS, INSECURE_GENERATOR}):
            self.note(f"the metric {name!r} left devices as it was, with no privacy")

    def widen(self, local: LocalGuarantee) -> None:
        """Take in the guarantee that one reply declares."""
        self.local = local if self.local is None else self.local.widened(local)

    def add(self, other: Tally) -> None:
        """Add the tally of other replies."""
        self.used += other.used
        self.failed += other.failed
        self.refused += other.refused
        self.unmarked_used += other.unmarked_used
        self.unmarked_refused += other.unmarked_refused
        self.projected += other.projected
        self.kept += other.kept
        if other.local is not None:
            self.widen(other.local)
        self.declared = max(self.declared, other.declared)
        self.longest_report = max(self.longest_report, other.longest_report)
        for exception, count in other.exceptions.items():
            self.note(exception, count)

    def to_dict(self) -> dict[str, Any]:
        """Return the tally as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        """Return the tally of which :meth:`to_dict` made `data`."""
        local = data["local"]
        return cls(**{**data, "local": None if local is None else LocalGuarantee(**local)})


def fold(
    client: int,
    reply: Message,
    total: Accumulator,
    tally: Tally,
    *,
    awaited: set[int],
    rounding: Rounding,
    require_local_dp: bool,
) -> None:
    """Fold one client's reply into the sum and the tally, or count why it is left out.

    Parameters
    ----------
    client : int
        Who replied.
    reply : Message
        Its reply; what it carries is trusted in nothing.
    total : Accumulator
        The sum.
    tally : Tally
        What is known of the replies so far.
    awaited : set of int
        Clients that were asked and have not replied; a second reply of one would weigh 2 rho.
    rounding : Rounding
        That of the model.
    require_local_dp : bool
        Leave out what does not carry the mark of a private reply.
    """
    if reply.has_error():
        tally.failed += 1
        tally.note(f"a client failed: {reply.error.reason}")
        return
    marks = _local_marks(reply.content)
    # What has left a device is spent, whether it is used or not.
    if marks is not None:
        tally.widen(marks)
    tally.note_metrics(reply.content)
    try:
        if client not in awaited:
            raise ValueError("its node was not asked, or has replied already")
        awaited.remove(client)
        if marks is None and require_local_dp:
            tally.unmarked_refused += 1
            raise ValueError("it does not carry the mark of SeparatedDPMod (require_local_dp)")
        _add(reply.content, total, tally, rounding)
    except ValueError as error:
        tally.refused += 1
        tally.note(f"a reply was refused: {error}")
    else:
        tally.used += 1
        tally.unmarked_used += marks is None


def _add(
    content: RecordDict,
    total: Accumulator,
    tally: Tally,
    rounding: Rounding,
) -> None:
    records = records_of(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(f"it carries {len(records)} ArrayRecords, not 1")
    total.add(records[0])
    declared = _longest_report(content)
    tally.declared = max(tally.declared, declared)
    longest = min(rounding.of(declared), sys.float_info.max)
    tally.longest_report = max(tally.longest_report, longest)


def _longest_report(content: RecordDict) -> float:
    """Return the largest norm that a reply declares possible; beyond all if it declares none."""
    for record in _metrics_of(content):
        length = record.get(MAX_OUTPUT_NORM)
        if isinstance(length, float) and length > 0:
            return min(length, sys.float_info.max)
    return sys.float_info.max


def _local_marks(content: RecordDict) -> LocalGuarantee | None:
    """Return the local guarantee that a reply declares, or None."""
    for record in _metrics_of(content):
        values = [record.get(name) for name in (EPSILON_DIRECTION, EPSILON_MAGNITUDE)]
        if all(isinstance(value, float) and 0 < value < inf for value in values):
            direction, magnitude = (float(value) for value in values if isinstance(value, float))
            return LocalGuarantee(epsilon_direction=direction, epsilon_magnitude=magnitude)
    return None


def _metrics_of(content: RecordDict) -> list[MetricRecord | ConfigRecord]:
    """Return the records of metrics; a legacy client has one more, and of another kind."""
    legacy = content.get(LEGACY_METRICS)
    others = [legacy] if isinstance(legacy, ConfigRecord) else []
    return [*records_of(content, MetricRecord), *others]
