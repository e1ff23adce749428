"""What the device allows, whatever a server asks: read from the SuperNode's own configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr_sdp import _validate
from flwr_sdp.separated import SeparatedBudget

_PREFIX = "sdp-"
_NUMBERS = {
    "epsilon": "sdp-epsilon-cap",
    "total_epsilon": "sdp-total-epsilon-cap",
    "max_norm": "sdp-max-norm-cap",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCaps:
    """The ``--node-config`` of a SuperNode, as far as privacy goes.

    Attributes
    ----------
    epsilon : float or None
        ``sdp-epsilon-cap``: the most that one report may cost.
    total_epsilon : float or None
        ``sdp-total-epsilon-cap``: the most that all reports from the data set may cost. Kept in
        the ledger.
    max_norm : float or None
        ``sdp-max-norm-cap``: the longest update, in the units of the model, that may be sent
        without being shortened.
    ledger : str or None
        ``sdp-ledger``: file of the :class:`~flwr_sdp.clients.DeviceLedger`, by its whole path.
    data_set : str
        ``sdp-data-set``: name of the data that is reported on; by default that of the partition,
        or ``"default"``.
    """

    epsilon: float | None
    total_epsilon: float | None
    max_norm: float | None
    ledger: str | None
    data_set: str

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> DeviceCaps:
        """Read a node config.

        Raises
        ------
        ValueError
            If a value is wrong, or a key that begins with ``sdp-`` is none of the above: a cap that
            is misspelt would not hold.
        """
        known = {*_NUMBERS.values(), "sdp-ledger", "sdp-data-set"}
        unknown = sorted(key for key in node_config if _is_ours(key) and key not in known)
        if unknown:
            raise ValueError(
                f"{unknown[0]} is no setting of a device: the node config may have "
                f"{', '.join(sorted(known))}"
            )
        numbers = {
            field: _validate.number(key, node_config[key], above=0.0)
            if key in node_config
            else None
            for field, key in _NUMBERS.items()
        }
        ledger = _text(node_config, "sdp-ledger", None)
        if ledger is not None and not os.path.isabs(ledger):
            raise ValueError(
                "sdp-ledger must be a path from the root: another working directory would begin "
                "another ledger"
            )
        partition = node_config.get("partition-id")
        default = "default" if partition is None else f"partition-{partition}"
        return cls(
            **numbers,
            ledger=ledger,
            data_set=_text(node_config, "sdp-data-set", default) or default,
        )

    def check(self, budget: SeparatedBudget, max_norm: float) -> None:
        """Raise ``ValueError`` if a report is asked for that is looser than allowed."""
        for key, cap, asked in (
            ("sdp-epsilon-cap", self.epsilon, budget.total),
            ("sdp-max-norm-cap", self.max_norm, max_norm),
        ):
            if cap is not None and not _validate.within(asked, cap):
                allowed, wanted = _validate.apart(cap, asked)
                raise ValueError(
                    f"{key} of this device is {allowed}; a report was asked at {wanted}"
                )


def _is_ours(key: str) -> bool:
    """Return whether a key is, or is likely meant to be, one of ours."""
    return key.lower().replace("_", "-").startswith(_PREFIX)


def _text(node_config: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = node_config.get(key, default)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{key} must be a text that is not empty; got {value!r}")
    return value
