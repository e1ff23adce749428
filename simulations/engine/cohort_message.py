"""What the server and a node that stands for many clients tell each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_sdp.released import Selection
from flwr_sdp.strategies.tally import Tally
from simulations.engine.partial_sum import PartialSum

_RECORD = "cohort"


@dataclass(frozen=True, kw_only=True, slots=True)
class CohortRequest:
    """Which clients a node is to stand for, and how their replies are folded in.

    Attributes
    ----------
    clients : tuple[int, ...]
        The clients, as partitions.
    clip_norm : float
        rho.
    selection : Selection
        Which arrays are summed.
    require_local_dp : bool
        Leave out replies without the mark of a private one.
    """

    clients: tuple[int, ...]
    clip_norm: float
    selection: Selection
    require_local_dp: bool

    def added_to(self, content: RecordDict) -> RecordDict:
        """Return a message's content with this request in it."""
        record = ConfigRecord(
            {
                "clients": list(self.clients),
                "clip-norm": self.clip_norm,
                "trainable": list(self.selection.trainable),
                "excluded": list(self.selection.excluded),
                "tied": json.dumps(dict(self.selection.tied)),
                "require-local-dp": self.require_local_dp,
            }
        )
        return RecordDict({**content, _RECORD: record})

    @classmethod
    def taken_from(cls, content: RecordDict) -> tuple[CohortRequest | None, RecordDict]:
        """Return the request in a message, or None, and what each of its clients is to be sent."""
        record = content.get(_RECORD)
        if not isinstance(record, ConfigRecord):
            return None, content
        values: dict[str, Any] = dict(record)
        request = cls(
            clients=tuple(values["clients"]),
            clip_norm=values["clip-norm"],
            selection=Selection(
                trainable=values["trainable"],
                excluded=values["excluded"],
                tied=json.loads(values["tied"]),
            ),
            require_local_dp=values["require-local-dp"],
        )
        return request, RecordDict({k: v for k, v in content.items() if k != _RECORD})


def cohort_reply(total: PartialSum, tally: Tally) -> RecordDict:
    """Return what a node answers: the sum of its clients, and the tally of their replies."""
    arrays, counts = total.take_out()
    return RecordDict(
        {
            "sum": arrays,
            "counts": MetricRecord({**counts}),
            "tally": ConfigRecord({"json": json.dumps(tally.to_dict())}),
        }
    )


def add_cohort_reply(content: RecordDict, total: PartialSum, tally: Tally) -> None:
    """Add the answer of a node to the sum and the tally of the round.

    Raises
    ------
    ValueError
        If it is not the answer of a node. Nothing has been added then.
    """
    arrays, counts, record = (content.get(name) for name in ("sum", "counts", "tally"))
    if not (
        isinstance(arrays, ArrayRecord)
        and isinstance(counts, MetricRecord)
        and isinstance(record, ConfigRecord)
    ):
        raise ValueError("it is not the sum of a simulated cohort (is virtual_clients attached?)")
    try:
        other = Tally.from_dict(json.loads(str(record.get("json"))))
    except (TypeError, KeyError) as error:
        raise ValueError("its tally cannot be read") from error
    total.add_partial(arrays, {name: float(counts[name]) for name in counts})  # type: ignore[arg-type]
    tally.add(other)
