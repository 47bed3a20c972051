"""The reference of :mod:`fastdata.kernels.adjust_triton`, in torch operations."""

from __future__ import annotations

import torch

__all__ = ["adjust"]

_GREY_SHIFT = 15
_GREY = (9798, 19235, 3735)  # OpenCV's weights of red, green and blue, in 1 / 2**15


def adjust(
    levels: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    affine: torch.Tensor,
    colour: tuple[int, int, int],
) -> None:
    """Change colours, erase and normalise a batch; :func:`fastdata.adjust.adjust` has the formulas.

    Args:
        levels: uint8 [B, H, W, 3] on the device.
        table: float32 [B, ADJUST_COLUMNS] on the device, see :func:`fastdata.kernels.adjust_table`.
        out: [B, H, W, 3] on the device, is filled: uint8 levels, or floats of these levels times
            scale plus bias.
        affine: float32 [2, 3] on the device: scale and bias of each channel, for levels 0..255.
        colour: level of each channel of erased pixels.
    """
    pixels = levels.to(torch.float32)
    brightness, contrast, saturation = (table[:, i, None, None, None] for i in range(3))
    pixels = _rounded(pixels * brightness)
    mean = _grey(pixels).mean(dim=(1, 2, 3), keepdim=True, dtype=torch.float64).float()
    pixels = _rounded(pixels * contrast + (1 - contrast) * mean)
    pixels = _rounded(pixels * saturation + (1 - saturation) * _grey(pixels))
    left, top, right, bottom = (table[:, i, None, None] for i in range(3, 7))
    y = torch.arange(levels.shape[1], device=levels.device)[None, :, None]
    x = torch.arange(levels.shape[2], device=levels.device)[None, None, :]
    erased = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    fill = torch.tensor(colour, dtype=torch.float32, device=levels.device)
    pixels = torch.where(erased[..., None], fill, pixels)
    if out.dtype != torch.uint8:
        pixels = pixels * affine[0] + affine[1]
    out.copy_(pixels)


def _rounded(pixels: torch.Tensor) -> torch.Tensor:
    return torch.round(pixels).clamp(0, 255)


def _grey(pixels: torch.Tensor) -> torch.Tensor:
    """Grey levels [B, H, W, 1] of levels [B, H, W, 3]."""
    red, green, blue = pixels.to(torch.int32).unbind(-1)
    total = red * _GREY[0] + green * _GREY[1] + blue * _GREY[2] + (1 << _GREY_SHIFT - 1)
    return (total >> _GREY_SHIFT).to(torch.float32)[..., None]
