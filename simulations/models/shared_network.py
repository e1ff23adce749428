"""One network that many clients use in turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord
from torch import nn

from flwr_sdp import npy
from simulations.models.device import device
from simulations.models.torch_model import trained


class SharedNetwork:
    """A network in this process that becomes whatever model it is given.

    Building a network and reading a model cost more than to train a small one. The network is built
    once, and a model that comes again (every client of a round gets the same) is read once. Nothing
    is carried over: all that training changes, buffers included, is overwritten each time.

    Parameters
    ----------
    build : callable
        Makes the network; the weights it is made with matter where they are frozen.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._network = build().to(device())
        self._state = trained(self._network)
        self._bytes: dict[str, bytes] = {}
        self._read: dict[str, torch.Tensor] = {}

    def become(self, model: ArrayRecord) -> nn.Module:
        """Return the network with the weights of `model`.

        Raises
        ------
        ValueError
            If its arrays are not those of the network.
        """
        if not self._is_last(model):
            self._read = self._tensors(model)
            self._bytes = {name: array.data for name, array in model.items()}
        with torch.no_grad():
            for name, tensor in self._state.items():
                tensor.copy_(self._read[name])
        return self._network

    def _is_last(self, model: ArrayRecord) -> bool:
        """Return whether it consists of the very bytes that were read last.

        Bytes do not change, and those read last are kept: unlike a record, which can be given other
        arrays, or an id, which can be used again, they cannot be mistaken.
        """
        return model.keys() == self._bytes.keys() and all(
            array.data is self._bytes[name] for name, array in model.items()
        )

    def _tensors(self, model: ArrayRecord) -> dict[str, torch.Tensor]:
        if model.keys() != self._state.keys():
            raise ValueError(
                f"the model must have the arrays {', '.join(self._state)}; got {', '.join(model)}"
            )
        tensors = {}
        for name, here in self._state.items():
            numbers = npy.read_array(name, model[name])
            if numbers.shape != tuple(here.shape):
                raise ValueError(
                    f"array {name!r} must have the shape {tuple(here.shape)}; got {numbers.shape}"
                )
            # A copy: torch does not take bytes, which cannot be written to.
            tensors[name] = torch.from_numpy(numbers.copy()).to(here.device)
        return tensors
