"""What the device allows, whatever a server asks: read from the SuperNode's own configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from flwr_sdp import _validate
from flwr_sdp.separated import SeparatedBudget

_PREFIX = "sdp-"
_NUMBERS = {
    "epsilon": "sdp-epsilon-cap",
    "total_epsilon": "sdp-total-epsilon-cap",
    "max_norm": "sdp-max-norm-cap",
}
_TEXTS = {"ledger": "sdp-ledger", "data_set": "sdp-data-set"}
_KNOWN = sorted([*_NUMBERS.values(), *_TEXTS.values()])

# How alike a key and one of ours must be (1 is the same) for it to be taken for a slip: one or two
# letters wrong. `data-set` and `epsilon`, which may be somebody's own, are at 0.82.
_ALIKE = 0.85


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCaps:
    """The ``--node-config`` of a SuperNode, as far as privacy goes.

    Attributes
    ----------
    epsilon : float or None
        ``sdp-epsilon-cap``: the most that one report may cost.
    total_epsilon : float or None
        ``sdp-total-epsilon-cap``: the most that all reports from the data set may cost. Needs
        the node's own ledger: the app's may be a new one for each report.
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
            If a value is wrong, or a key is none of the above and was likely meant to be: a cap
            that is misspelt would not hold.
        """
        for key in sorted(set(node_config) - set(_KNOWN)):
            if meant := _meant(key):
                raise ValueError(
                    f"{key} is no setting of a device: {meant} was likely meant; the node config "
                    f"may have {', '.join(_KNOWN)}"
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

    def __str__(self) -> str:
        """Return what is in force, for the device's log."""
        caps, others = (
            [f"{key} = {value}" for field, key in keys.items() if (value := getattr(self, field))]
            for keys in (_NUMBERS, _TEXTS)
        )
        none = "none (no cap limits what a server may ask for)"
        return f"{', '.join(caps) or none}; {', '.join(others)}"

    @property
    def limits_epsilon(self) -> bool:
        """Whether a cap counts in epsilons, which are true of secure noise alone."""
        return self.epsilon is not None or self.total_epsilon is not None

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


@lru_cache
def _meant(key: str) -> str | None:
    """Return which of our keys a wrong one is likely meant to be, or None for a key of one's own.

    Case, separators and the order of words do not count. It is ours if it begins with ``sdp`` and a
    separator, is :data:`_ALIKE` to one of ours, or has or is alike to a cap without the prefix.
    """

    def likeness(ours: str) -> float:
        cap = ours.removeprefix(_PREFIX) if ours in _NUMBERS.values() else ours
        if _forms(cap)[0] in _forms(key)[0]:
            return float(len(cap))
        return max(
            SequenceMatcher(None, form, other, autojunk=False).ratio()
            for name in {cap, ours}
            for form, other in zip(_forms(key), _forms(name), strict=True)
        )

    nearest = max(_KNOWN, key=likeness)
    is_ours = re.match(r"sdp[\W_]", key, re.IGNORECASE) or likeness(nearest) >= _ALIKE
    return nearest if is_ours else None


def _forms(key: str) -> tuple[str, str]:
    """Return the letters of a key, as they are and with its words in alphabetical order."""
    words = re.findall(r"[^\W_]+", key.lower())
    return "".join(words), "".join(sorted(words))


def _text(node_config: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = node_config.get(key, default)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{key} must be a text that is not empty; got {value!r}")
    return value
