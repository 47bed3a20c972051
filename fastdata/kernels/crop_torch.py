"""The reference of :mod:`fastdata.kernels.crop_triton`, in torch operations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["crop"]


def crop(
    source: torch.Tensor,
    table: torch.Tensor,
    host_table: NDArray[np.int64],
    image_size: tuple[int, int],
    out: torch.Tensor,
    affine: torch.Tensor,
    *,
    staged: bool = False,
    packed: bool = False,
) -> None:
    """Fill a batch of output images from boxes of source images.

    Args:
        source: uint8 [bytes] on the device, images of RGB bytes one after the other.
        table: int64 [B, COLUMNS] on the device, see :func:`fastdata.kernels.crop_table`.
        host_table: the same on the host.
        image_size: height and width of the source's images.
        out: [B, H, W, 3] on the device, is filled: uint8 levels, or floats of these levels
            times scale plus bias.
        affine: float32 [2, 3] on the device: scale and bias of each channel, for levels 0..255.
        staged: the source is a staging buffer: images begin where the table's last column says.
        packed: the source holds the boxes alone, each with its own width, and ``image_size`` means
            nothing.
    """
    starts = table[:, 7 if staged else 0]
    reductions = host_table[:, 5] >> 1
    for reduction in np.unique(reductions).tolist():
        chosen = torch.from_numpy(np.flatnonzero(reductions == reduction)).to(out.device)
        left, top, box_width, box_height = (table[chosen, i] for i in range(1, 5))
        flip = table[chosen, 5] & 1
        height, width = torch.tensor(image_size, device=out.device).expand(len(chosen), 2).unbind(1)
        if packed:
            height, width = box_height, box_width
        y, wy = _taps(box_height // reduction, out.shape[1], None)
        x, wx = _taps(box_width // reduction, out.shape[2], flip)
        pixels = torch.zeros((len(chosen), *out.shape[1:]), device=out.device)
        for ys, y_weight in zip(y, wy, strict=True):
            for xs, x_weight in zip(x, wx, strict=True):
                block = torch.zeros_like(pixels)
                for i in range(reduction):
                    for j in range(reduction):
                        rows = (top[:, None] + ys * reduction + i)[:, :, None]
                        columns = (left[:, None] + xs * reduction + j)[:, None, :]
                        block += _load(source, starts[chosen], rows, columns, height, width)
                weight = y_weight[:, :, None] * x_weight[:, None, :]
                pixels += block * weight[..., None] / reduction**2
        levels = torch.floor(pixels + 0.5)  # as every engine has it before it normalises
        if out.dtype != torch.uint8:
            levels = levels * affine[0] + affine[1]
        out[chosen] = levels.to(out.dtype)


def _taps(
    length: torch.Tensor, size: int, flip: torch.Tensor | None
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The two source places of each output place, int64 [B, size] each, and their weights.

    Half-pixel centres, the edge repeated: (i + 0.5) * length / size - 0.5, in whole numbers of
    1 / (2 * size), so that nothing depends on rounding.
    """
    i = torch.arange(size, device=length.device)[None, :].expand(len(length), size)
    if flip is not None:
        i = torch.where(flip[:, None] > 0, size - 1 - i, i)
    length = length[:, None]
    place = ((2 * i + 1) * length - size).clamp(min=0)
    place = torch.minimum(place, (length - 1) * 2 * size)
    low = place // (2 * size)
    weight = (place - low * 2 * size).to(torch.float32) / (2 * size)
    return (low, torch.minimum(low + 1, length - 1)), (1 - weight, weight)


def _load(
    source: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    height: torch.Tensor,
    width: torch.Tensor,
) -> torch.Tensor:
    """Pixels at [B, H, 1] rows and [B, 1, W] columns, float32 [B, H, W, 3]; zeros outside of
    images of [B] sizes."""
    height, width = height[:, None, None], width[:, None, None]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    row = torch.minimum(rows.clamp(min=0), height - 1)
    at = (row * width + torch.minimum(columns.clamp(min=0), width - 1)) * 3
    # Packed rows: what lies outside of the box may lie outside of the source as well.
    at = (at + starts[:, None, None]).clamp(0, len(source) - 3)
    pixels = torch.stack([source[at + channel] for channel in range(3)], dim=-1)
    return pixels.to(torch.float32) * inside[..., None]
