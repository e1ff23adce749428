"""Labelled examples, from what is stored of them to what a network takes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import nn

from flwr_sdp import KeystreamGenerator
from simulations.data.drawing import Indices
from simulations.data.images import Labels, Pixels, StoredPixels
from simulations.data.preparation import Prepare
from simulations.models.device import device

CACHED_BYTES = 2**30
"""The features of a set are kept in memory if all of them together take no more."""

_AT_ONCE = 32  # images that a trunk sees together


class Examples(Protocol):
    """Examples that a network is trained on or evaluated with."""

    labels: torch.Tensor
    """Of all of them, on the device."""

    def inputs(self, indices: Indices, rng: KeystreamGenerator | None) -> torch.Tensor:
        """Return what a network takes, on the device: with a generator to train, or without."""
        ...


class ImageExamples:
    """Images as a network takes them, prepared whenever they are asked for.

    Those in memory are on the device already: as bytes, a quarter of what a network takes.

    Parameters
    ----------
    images : ndarray or StoredPixels
        In memory, or read when asked for.
    labels : ndarray
        Their classes.
    prepare : callable
        From images to inputs, see :mod:`simulations.data.preparation`.
    """

    def __init__(self, images: Pixels | StoredPixels, labels: Labels, prepare: Prepare) -> None:
        self.labels = torch.from_numpy(labels.copy()).to(device())
        self._images = (
            torch.from_numpy(images.copy()).to(device())
            if isinstance(images, np.ndarray)
            else images
        )
        self._prepare = prepare

    def inputs(self, indices: Indices, rng: KeystreamGenerator | None) -> torch.Tensor:
        """Return the images at `indices`, prepared."""
        if isinstance(self._images, torch.Tensor):
            images = self._images[torch.from_numpy(indices).to(self._images.device)]
        else:
            images = torch.from_numpy(self._images[indices]).to(device())
        return self._prepare(images, rng)


class FeatureExamples:
    """What a frozen trunk makes of examples: computed once for each, if that can be kept.

    A trunk always sees the same number of examples at once, so that what it makes of one does not
    depend, to the last bit, on which others were asked for together with it.

    Parameters
    ----------
    examples : Examples
        What the trunk takes, prepared as in evaluation: features are the same in every round.
    trunk : Module
        In evaluation mode, on the device.
    cached_bytes : int
        Features are kept if those of all examples take no more than this.
    """

    def __init__(
        self, examples: Examples, trunk: nn.Module, *, cached_bytes: int = CACHED_BYTES
    ) -> None:
        self.labels = examples.labels
        self._examples = examples
        self._trunk = trunk
        self._cached_bytes = cached_bytes
        self._cache: torch.Tensor | None = None
        self._is_cached = np.zeros(len(self.labels), np.bool_)

    def inputs(self, indices: Indices, rng: KeystreamGenerator | None) -> torch.Tensor:
        """Return the features of the examples at `indices`."""
        missing = indices[~self._is_cached[indices]]
        if len(missing) or self._cache is None:
            features = self._computed(missing)
            if self._cache is None:
                if len(self.labels) * features[0].numel() * features.itemsize > self._cached_bytes:
                    return features
                self._cache = features.new_empty((len(self.labels), *features.shape[1:]))
            self._cache[torch.from_numpy(missing).to(features.device)] = features
            self._is_cached[missing] = True
        return self._cache[torch.from_numpy(indices).to(self._cache.device)]

    def _computed(self, indices: Indices) -> torch.Tensor:
        parts = []
        with torch.no_grad():
            for start in range(0, len(indices), _AT_ONCE):
                part = indices[start : start + _AT_ONCE]
                filled = np.resize(part, _AT_ONCE)  # the same again, until there are enough
                parts.append(self._trunk(self._examples.inputs(filled, None))[: len(part)])
        return torch.cat(parts)
