"""The sum of some clients of a cohort, which a simulation's node hands to the server."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord

from flwr_sdp import npy
from flwr_sdp.strategies.accumulator import ClippedSum


class PartialSum(ClippedSum):
    """A clipped sum that can be taken out without noise, to be added to another one.

    **Simulation only.** In a deployment every sum of updates is noised before it leaves the
    accumulator; here a node and the server are two halves of one simulated server.
    """

    def take_out(self) -> tuple[ArrayRecord, dict[str, float]]:
        """Return the sum and the counts that belong to it, once."""
        sums, self._sums = self._unreleased(), None
        arrays = {
            name: Array("float64", total.shape, "numpy.ndarray", npy.write(total, total.shape))
            for name, total in sums.items()
        }
        counts = {
            "projected": float(self.projected),
            "length-before": self._length_before,
            "length-after": self._length_after,
        }
        return ArrayRecord(arrays), counts

    def add_partial(self, arrays: ArrayRecord, counts: Mapping[str, float]) -> None:
        """Add what another sum of the same model has given out.

        Raises
        ------
        ValueError
            If it is not a sum of updates of this model. Nothing has been added then.
        """
        sums = self._unreleased()
        parts = {name: npy.read_array(name, array) for name, array in arrays.items()}
        if {name: part.shape for name, part in parts.items()} != {
            name: total.shape for name, total in sums.items()
        }:
            raise ValueError("its sum is not one of this model's updates")
        names = ("projected", "length-before", "length-after")
        if set(counts) != set(names):
            raise ValueError(f"its counts are not {', '.join(names)}")
        projected, before, after = (counts[name] for name in names)
        for name, part in parts.items():
            sums[name] += part
        self.projected += int(projected)
        self._length_before += before
        self._length_after += after
