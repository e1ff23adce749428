"""What has been charged, in a form that outlives the process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from flwr.serverapp import GaussianPrivacyEvent

from flwr_sdp.strategies.events import event_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Every charge of a run, by event rather than by epsilon, and the round they belong to.

    Attributes
    ----------
    settings : dict
        What the run was configured for, JSON-ready. Events of another configuration would be worth
        nothing.
    charged_round : int
        The last round that was charged.
    completed_round : int
        The last round whose result has been saved. One less than `charged_round` while a round
        runs: nothing of that round has been seen by anyone but the server.
    rounds_asked : int
        Rounds in which devices were asked, those included that had to be run again.
    charges : tuple of (GaussianPrivacyEvent, int)
        The events, each with the number of times it was charged in a row.
    """

    settings: dict[str, Any]
    charged_round: int = 0
    completed_round: int = 0
    rounds_asked: int = 0
    charges: tuple[tuple[GaussianPrivacyEvent, int], ...] = ()

    @property
    def num_charges(self) -> int:
        """Number of releases charged."""
        return sum(count for _, count in self.charges)

    def covers(self, server_round: int) -> bool:
        """Return whether the charge of a round that did not end is there for its repetition.

        A round's result is saved before anyone sees it. One that was not saved was not seen, so
        that its repetition is the only release there will be, and one charge is right for it.
        """
        return self.charged_round == server_round == self.completed_round + 1

    def charged(self, server_round: int, event: GaussianPrivacyEvent | None) -> Ledger:
        """Return the ledger with a round asked, and charged if it has noise and is not covered."""
        charges = self.charges
        if event is not None and not self.covers(server_round):
            if charges and charges[-1][0] == event:
                charges = (*charges[:-1], (event, charges[-1][1] + 1))
            else:
                charges = (*charges, (event, 1))
        return replace(
            self,
            charged_round=server_round,
            completed_round=server_round - 1,
            rounds_asked=self.rounds_asked + 1,
            charges=charges,
        )

    def completed(self, server_round: int) -> Ledger:
        """Return the ledger with the result of a round saved."""
        return replace(self, completed_round=server_round)

    def rewound(self, server_round: int) -> Ledger:
        """Return the ledger of a run that goes back to a round; no charge is taken back.

        The rounds after it may have been seen, and what is run in their place is charged anew.
        """
        return replace(self, charged_round=server_round, completed_round=server_round)

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as JSON-ready data."""
        return {
            "settings": self.settings,
            "charged_round": self.charged_round,
            "completed_round": self.completed_round,
            "rounds_asked": self.rounds_asked,
            "charges": [{**asdict(event), "count": count} for event, count in self.charges],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ledger:
        """Return the ledger of which :meth:`to_dict` made `data`."""
        charges = []
        for charge in data["charges"]:
            count = charge["count"]
            if type(count) is not int or count < 1:
                raise ValueError(f"count must be an integer >= 1; got {count!r}")
            event = {name: value for name, value in charge.items() if name != "count"}
            charges.append((event_of(event), count))
        return cls(
            settings=dict(data["settings"]),
            charged_round=int(data["charged_round"]),
            completed_round=int(data["completed_round"]),
            rounds_asked=int(data["rounds_asked"]),
            charges=tuple(charges),
        )
