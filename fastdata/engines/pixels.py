"""What engines share that leave crops to the GPU: boxes become batches by one kernel."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.adjust import Adjustments, fill_colour
from fastdata.engines import Settings
from fastdata.engines.ahead import PinnedRing
from fastdata.engines.transfer import affine
from fastdata.kernels import adjust_table, crop_table, staging_stride
from fastdata.plan import BatchPlan

__all__ = ["CropStage", "pixel_refusal"]


def pixel_refusal(settings: Settings) -> str | None:
    """Why the engines of this module cannot do the work; None where they can."""
    if settings.dataset.encoded:
        return "it reads pixels (memmap), and the dataset holds encoded images"
    if settings.transform is not None:
        return "transform= is a Python callable, which needs the workers engine"
    return None


class CropStage:
    """The device's part: tables, staging, crops, labels."""

    def __init__(self, settings: Settings) -> None:
        dataset, recipe = settings.dataset, settings.recipe
        self._device = settings.device
        self._dtype = settings.dtype
        manifest = dataset.manifest
        self._image_size = (manifest.image_size if manifest else None) or (0, 0)
        self._image_bytes = self._image_size[0] * self._image_size[1] * 3
        side = recipe.size
        self._size = self._image_size if side is None else (side, side)
        self._affine = affine(recipe, settings.device)
        self._dataset = dataset
        self._labels: torch.Tensor | None = None
        self.has_triton = importlib.util.find_spec("triton") is not None
        library = "triton" if self.has_triton else "torch"
        self._kernels: Any = importlib.import_module(f"fastdata.kernels.crop_{library}")
        self._adjust_kernels: Any = importlib.import_module(f"fastdata.kernels.adjust_{library}")
        self._fill = fill_colour(recipe)

    def table(self, plans: Sequence[BatchPlan]) -> NDArray[np.int64]:
        """The table of several batches on the host."""
        return crop_table(plans, self._image_bytes)

    def uploaded(self, table: NDArray[Any], ring: PinnedRing) -> torch.Tensor:
        """A table on the device."""
        buffer = ring.take(table.nbytes)
        np.copyto(buffer.array.view(table.dtype).reshape(table.shape), table)
        device = torch.empty(table.nbytes, dtype=torch.uint8, device=self._device)
        buffer.upload(device)
        return device.view(torch.from_numpy(table[:0]).dtype).view(table.shape)

    def uploaded_adjustments(
        self, adjustments: Adjustments | None, ring: PinnedRing
    ) -> torch.Tensor | None:
        """The table of adjustments on the device, see :func:`fastdata.kernels.adjust_table`."""
        return None if adjustments is None else self.uploaded(adjust_table(adjustments), ring)

    def crop(
        self,
        source: torch.Tensor,
        table: torch.Tensor,
        host_table: NDArray[np.int64],
        adjustments: torch.Tensor | None = None,
        *,
        staged: bool = False,
        packed: bool = False,
    ) -> torch.Tensor:
        """Images [B, 3, H, W] in channels_last memory, from pixels on the device."""
        shape = (len(table), *self._size, 3)
        out = torch.empty(shape, dtype=self._dtype, device=self._device)
        levels = out
        if adjustments is not None:
            levels = torch.empty(shape, dtype=torch.uint8, device=self._device)
        self._kernels.crop(
            source,
            table,
            host_table,
            self._image_size,
            levels,
            self._affine,
            staged=staged,
            packed=packed,
        )
        if adjustments is not None:
            self._adjust_kernels.adjust(levels, adjustments, out, self._affine, self._fill)
        return out.permute(0, 3, 1, 2)

    def crop_packed(
        self,
        memory: NDArray[np.uint8],
        table: NDArray[np.int64],
        adjustments: Adjustments | None,
        ring: PinnedRing,
    ) -> torch.Tensor:
        """The same from packed crops in pinned host memory, which is read on the current stream."""
        source = torch.from_numpy(memory).to(self._device, non_blocking=True)
        adjusted = self.uploaded_adjustments(adjustments, ring)
        return self.crop(source, self.uploaded(table, ring), table, adjusted, packed=True)

    def crop_from_host(
        self, address: int, table: torch.Tensor, adjustments: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same from registered host memory."""
        staging = torch.empty(
            len(table) * staging_stride(self._image_bytes), dtype=torch.uint8, device=self._device
        )
        self._kernels.stage(address, table, self._image_size, staging)
        return self.crop(staging, table, np.empty(0, np.int64), adjustments, staged=True)

    def labels(self, table: torch.Tensor) -> torch.Tensor:
        """The labels of a batch."""
        if self._labels is None:
            self._labels = torch.from_numpy(np.array(self._dataset.labels)).to(self._device)
        return self._labels.index_select(0, table[:, 6])

    def explain(self) -> str:
        what = "a Triton kernel" if self.has_triton else "torch operations (Triton is missing)"
        return f"Crop, resize, flip and normalisation are done by {what} on {self._device}."
