"""Which arrays of a model are an update: the same answer on the device and at the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from flwr_sdp import _validate, npy

BATCH_NORM_STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Name patterns of the arrays that batch normalisation fills with averages of the data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which arrays of a model are privatized, summed and noised. All others stay as they are.

    Only floating-point arrays can be: integer and boolean buffers hold counters and masks, which
    no mechanism here can privatize.

    Parameters
    ----------
    trainable : iterable of str
        Name patterns of the arrays that are trained, such as ``"head.*"`` or ``"*.lora_?.*"``.
    excluded : iterable of str
        Name patterns of arrays that are not, although they match `trainable`; by default the
        statistics of batch normalisation.
    tied : mapping of str to str
        For weights that have two names, the second name and the first: ``{"decoder.weight":
        "encoder.weight"}``. They count once, and stay equal.

    Raises
    ------
    ValueError
        If a pattern or a name is not a string, or a name is tied to one that is tied itself.
    """

    trainable: Iterable[str] = ("*",)
    excluded: Iterable[str] = BATCH_NORM_STATISTICS
    tied: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the names."""
        _validate.store(
            self,
            trainable=check_patterns("trainable", self.trainable),
            excluded=check_patterns("excluded", self.excluded),
        )
        if not isinstance(self.tied, Mapping):
            raise ValueError(
                f"tied must map a second name to the first; got {_validate.shown(self.tied)}"
            )
        check_patterns("tied", [*self.tied, *self.tied.values()])
        if chained := sorted(set(self.tied) & set(self.tied.values())):
            raise ValueError(f"tied must not tie to {chained[0]!r}, which is tied itself")
        _validate.store(self, tied=dict(self.tied))

    def released(self, arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[str, ...]:
        """Return the names of the arrays that are an update, in the order of the model.

        Parameters
        ----------
        arrays : mapping
            dtype and shape of each array of the model.

        Raises
        ------
        ValueError
            If a pattern of `trainable` matches nothing, or tied names are not a pair of like
            arrays of the model.
        """
        for pattern in self.trainable:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in arrays):
                raise ValueError(
                    f"trainable must match arrays of the model; {pattern!r} matches none of them"
                )
        for second, first in self.tied.items():
            if second not in arrays or first not in arrays:
                missing = second if second not in arrays else first
                raise ValueError(f"tied must name arrays of the model; got {missing!r}")
            if arrays[second] != arrays[first]:
                raise ValueError(
                    f"tied must name arrays of one dtype and shape; {second!r} and {first!r} differ"
                )
            if _matches(second, self.trainable) and not _matches(first, self.trainable):
                raise ValueError(
                    f"trainable must match the first of tied names; {second!r} is matched, and "
                    f"{first!r} is not"
                )
        return tuple(
            name
            for name, (dtype, _) in arrays.items()
            if npy.is_float(dtype)
            and name not in self.tied
            and _matches(name, self.trainable)
            and not _matches(name, self.excluded)
        )

    def held_back(self, arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[str, ...]:
        """Return the floating-point arrays that are no update only because they are excluded.

        Parameters
        ----------
        arrays : mapping
            dtype and shape of each array of the model.
        """
        return tuple(
            name
            for name, (dtype, _) in arrays.items()
            if npy.is_float(dtype)
            and _matches(name, self.trainable)
            and _matches(name, self.excluded)
        )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(name: str, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return name patterns as a tuple, or raise ``ValueError``."""
    if not isinstance(patterns, Iterable):
        raise ValueError(f"{name} must be names; got {_validate.shown(patterns)}")
    listed = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for each in listed:
        if not isinstance(each, str):
            raise ValueError(f"{name} must be names; got one of type {type(each).__name__}")
    return listed
