"""From a host batch of bytes to what the model takes: device, memory layout, normalisation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engines.slots import Slots
from fastdata.recipe import Recipe

__all__ = ["Finisher", "affine"]


def affine(recipe: Recipe, device: torch.device) -> torch.Tensor:
    """Scale and bias of each channel, float32 [2, 3]: (x / 255 - mean) / std = x * scale + bias,
    for levels x of 0..255."""
    mean = torch.tensor(recipe.mean or (0.0, 0.0, 0.0), dtype=torch.float64)
    std = torch.tensor(recipe.std or (1.0, 1.0, 1.0), dtype=torch.float64)
    return torch.stack([1 / (255 * std), -mean / std]).float().to(device)


class Finisher:
    """Moves batches to a device and normalises them there."""

    def __init__(self, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._as_it_is = device.type == "cpu" and dtype == torch.uint8
        self._scale, self._bias = affine(recipe, device).view(2, 1, 3, 1, 1)

    def images(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 [B, H, W, 3] on the host -> [B, 3, H, W] in channels_last memory on the device.

        Computed in float32 and rounded once, to the dtype that was asked for.
        """
        images = images.permute(0, 3, 1, 2).to(self._device, non_blocking=True)
        if self._dtype == torch.uint8:
            return images
        floats = images.to(torch.float32).mul_(self._scale).add_(self._bias)
        return floats.to(self._dtype)

    def from_array(self, array: NDArray[np.uint8]) -> torch.Tensor:
        """The same from an array of numpy's."""
        if self._as_it_is:
            # torch's own transposition would release the interpreter's lock, and queue for it.
            return torch.from_numpy(array.transpose(0, 3, 1, 2))
        return self.images(torch.from_numpy(array))

    def from_slot(self, slots: Slots, slot: int, shape: tuple[int, ...]) -> torch.Tensor:
        """The same from a slot, which comes back to ``slots`` when its memory is no longer used."""
        array = slots.array(slot, shape)
        if self._as_it_is:
            planes = array.transpose(0, 3, 1, 2)
            slots.lend(slot, planes)
            return torch.from_numpy(planes)
        images = self.images(torch.from_numpy(array))
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.current_stream(self._device).record_event()
        slots.give_back(slot, event)
        return images

    def labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Move labels to the device."""
        return labels.to(self._device, non_blocking=True)
