"""What the device allows, whatever a server asks: read from the SuperNode's own configuration."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from flwr_sdp import _validate
from flwr_sdp._numerics import MAX_DIM
from flwr_sdp.clients.ledger import Admit, LedgerEntry, LocalBudgetExhausted
from flwr_sdp.privunit import PrivUnit
from flwr_sdp.reconstruction import confined_cosine, max_epsilon_confined
from flwr_sdp.separated import SeparatedBudget

_PREFIX = "sdp-"
_NUMBERS = {
    "epsilon": "sdp-epsilon-cap",
    "total_epsilon": "sdp-total-epsilon-cap",
    "max_norm": "sdp-max-norm-cap",
}
_TEXTS = {"ledger": "sdp-ledger", "data_set": "sdp-data-set"}
_DIRECTION = {"min_dim": "sdp-min-dim", "cosine": "sdp-cosine-cap"}
_CAPS = {**_NUMBERS, **_DIRECTION}
_KNOWN = sorted([*_CAPS.values(), *_TEXTS.values()])

_COSINE = 0.5  # of a device that sets sdp-min-dim and no more

# What a key is about that speaks of a cap, and is none of ours.
_CAP_WORDS = {"cap", "caps"}
_LIMIT_WORDS = {*_CAP_WORDS, "limit", "limits", "max", "maximum"}
_CAPPED = ("eps", "norm", "total", "cos")


class DirectionExhausted(LocalBudgetExhausted):
    """With one more report, too much of the direction would be expected to be known."""

    reply = (
        "sdp-min-dim of this device: with what it has reported before, one more report would "
        "tell more of its direction than sdp-cosine-cap allows"
    )


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
    min_dim : int or None
        ``sdp-min-dim``: the fewest dimensions in which the direction of an update is protected. No
        report has fewer coordinates.
    cosine : float or None
        ``sdp-cosine-cap``, by default 0.5: with somebody who knows ``sdp-min-dim`` dimensions that
        the update lies in, the largest :func:`~flwr_sdp.reconstruction.confined_cosine` of what is
        reported: of each report, and of all in the ledger.
    """

    epsilon: float | None
    total_epsilon: float | None
    max_norm: float | None
    ledger: str | None
    data_set: str
    min_dim: int | None = None
    cosine: float | None = None

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
        min_dim, cosine = node_config.get("sdp-min-dim"), None
        if "sdp-min-dim" in node_config:
            min_dim = _validate.integer("sdp-min-dim", min_dim, minimum=2, maximum=MAX_DIM)
            cosine = node_config.get("sdp-cosine-cap", _COSINE)
            cosine = _validate.number("sdp-cosine-cap", cosine, above=0.0, below=1.0)
        elif "sdp-cosine-cap" in node_config:
            raise ValueError("sdp-cosine-cap needs sdp-min-dim, the dimensions that it is about")
        partition = node_config.get("partition-id")
        default = "default" if partition is None else f"partition-{partition}"
        return cls(
            **numbers,
            ledger=ledger,
            data_set=_text(node_config, "sdp-data-set", default) or default,
            min_dim=min_dim,
            cosine=cosine,
        )

    def __str__(self) -> str:
        """Return what is in force, for the device's log."""
        caps, others = (
            [f"{key} = {value}" for field, key in keys.items() if (value := getattr(self, field))]
            for keys in (_CAPS, _TEXTS)
        )
        none = "none (no cap limits what a server may ask for)"
        return f"{', '.join(caps) or none}; {', '.join(others)}"

    @property
    def limits_epsilon(self) -> bool:
        """Whether a cap counts in epsilons, which are true of secure noise alone."""
        return any(cap is not None for cap in (self.epsilon, self.total_epsilon, self.min_dim))

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

    def check_direction(self, dim: int, epsilon_direction: float) -> None:
        """Raise ``ValueError`` if one report would tell too much of the direction of an update."""
        if self.min_dim is None or self.cosine is None:
            return
        if dim < self.min_dim:
            raise ValueError(
                f"sdp-min-dim of this device is {self.min_dim}; a report was asked of {dim} "
                "coordinates: let more of the model be trained"
            )
        report = PrivUnit.from_epsilon(dim, epsilon_direction)
        if confined_cosine(report, dim_target=self.min_dim) > self.cosine:
            most = max_epsilon_confined(cosine=self.cosine, dim=dim, dim_target=self.min_dim)
            raise ValueError(
                f"sdp-cosine-cap of this device is {self.cosine:g}, in the {self.min_dim} "
                f"dimensions of sdp-min-dim; a report was asked at epsilon_direction "
                f"{epsilon_direction!r}: ask for at most {_rounded_down(most)}"
            )

    def admission(self, dim: int, epsilon_direction: float) -> Admit | None:
        """Return what the node's ledger is to ask before a report is added, if anything."""
        if self.min_dim is None or self.ledger is None:
            return None
        return partial(self._check_all, dim, epsilon_direction)

    def _check_all(
        self, dim: int, epsilon_direction: float, earlier: Sequence[LedgerEntry]
    ) -> None:
        """Raise :class:`DirectionExhausted` if one more report would, after earlier ones.

        An earlier report of fewer coordinates counts as one of ``sdp-min-dim``.
        """
        if self.min_dim is None or self.cosine is None or not earlier:
            return
        asked = [(entry.dim, entry.event.epsilon_direction) for entry in earlier]
        reports = [
            _report(max(each, self.min_dim), epsilon)
            for each, epsilon in (*asked, (dim, epsilon_direction))
        ]
        cosine = confined_cosine(reports, dim_target=self.min_dim)
        if cosine > self.cosine:
            raise DirectionExhausted(
                f"with one more, at epsilon_direction {epsilon_direction!r}, the {len(reports)} "
                f"reports of data set {self.data_set!r} would tell an update in {self.min_dim} "
                f"dimensions to a cosine of {cosine!r}; sdp-cosine-cap is {self.cosine!r}"
            )


@lru_cache(maxsize=4096)
def _report(dim: int, epsilon_direction: float) -> PrivUnit:
    # What has cost less than it can has told nothing.
    return PrivUnit.from_epsilon(dim, max(epsilon_direction, 1e-140))


def _rounded_down(value: float) -> str:
    """Return four digits of a number, none of them above it."""
    place = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / place) * place:.4g}"


@lru_cache
def _meant(key: str) -> str | None:
    """Return which of our keys a wrong one is likely meant to be, or None for a key of one's own.

    Case, separators and the order of words do not count. It is ours if it begins with ``sdp`` and a
    separator; has the name of a cap in it, with or without the prefix; is one or two letters off
    (one, where there are fewer than nine); or speaks of a cap, or of a limit of epsilon.
    """
    words = re.findall(r"[^\W_]+", key.lower())
    forms = "".join(words), "".join(sorted(words))

    def excess(ours: str) -> int:
        """Return how many letters the key is further off than a slip."""
        excesses = []
        for name in {ours, ours.removeprefix(_PREFIX) if ours in _CAPS.values() else ours}:
            parts = name.split("-")
            letters = "".join(parts)
            if letters in forms[0]:
                excesses.append(-len(letters))
            slip = 2 if len(letters) >= 9 else 1
            others = letters, "".join(sorted(parts))
            excesses += [_slips(*pair) - slip for pair in zip(forms, others, strict=True)]
        return min(excesses)

    nearest = min(_KNOWN, key=excess)
    is_about = any(word.startswith(_CAPPED) for word in words) and _CAP_WORDS & {*words}
    is_about = is_about or ("eps" in forms[0] and _LIMIT_WORDS & {*words})
    is_ours = re.match(r"sdp([\W_]|$)", key, re.IGNORECASE) or excess(nearest) <= 0 or is_about
    return nearest if is_ours else None


def _slips(a: str, b: str) -> int:
    """Return how many letters to add, drop, replace or swap with the next (optimal alignment)."""
    before, row = list(range(len(b) + 1)), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        earlier, before, row = before, row, [i, *[0] * len(b)]
        for j, y in enumerate(b, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if 1 < i and 1 < j and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row[-1]


def _text(node_config: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = node_config.get(key, default)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(
            f"{key} must be a text that is not empty; got one of type {type(value).__name__}"
        )
    return value
