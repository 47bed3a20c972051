"""From a host batch of bytes to what the model takes: device, memory layout, normalisation."""

from __future__ import annotations

import torch

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

    def from_slot(self, slots: Slots, slot: int, shape: tuple[int, ...]) -> torch.Tensor:
        """The same from a slot, which comes back to ``slots`` when its memory is no longer used."""
        on_gpu = self._device.type == "cuda"
        if not on_gpu and self._dtype == torch.uint8:
            return self.images(torch.from_numpy(slots.lend(slot, shape)))
        images = self.images(torch.from_numpy(slots.array(slot, shape)))
        stream = torch.cuda.current_stream(self._device) if on_gpu else None
        slots.give_back(slot, stream.record_event() if stream is not None else None)
        return images

    def labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Move labels to the device."""
        return labels.to(self._device, non_blocking=True)
