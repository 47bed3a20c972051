"""Colours, erasing and normalisation by Triton: a pass over a batch's levels.

Contrast takes the mean of the whole image, so that a kernel of its own finds the means first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastdata.kernels import ADJUST_COLUMNS

__all__ = ["adjust"]

_BLOCK = 1024


def adjust(
    levels: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    affine: torch.Tensor,
    colour: tuple[int, int, int],
) -> None:
    """See :func:`fastdata.kernels.adjust_torch.adjust`."""
    count, height, width, _ = levels.shape
    means = torch.empty(count, dtype=torch.float32, device=levels.device)
    sizes = {"PIXELS": height * width, "COLUMNS": ADJUST_COLUMNS, "BLOCK": _BLOCK}
    _mean_kernel[(count,)](levels, table, means, **sizes)
    grid = (count, triton.cdiv(height * width, _BLOCK))
    _adjust_kernel[grid](
        levels,
        table,
        means,
        out,
        affine,
        *colour,
        WIDTH=width,
        NORMALISE=out.dtype != torch.uint8,
        **sizes,
    )


@triton.jit
def _rounded(value):
    # At 1.5 * 2**23 a float32 has no fraction, so that adding it rounds, halves to even as OpenCV.
    return tl.minimum(tl.maximum((value + 12582912.0) - 12582912.0, 0.0), 255.0)


@triton.jit
def _grey(red, green, blue):
    # OpenCV's weights, in 1 / 2**15.
    total = red.to(tl.int32) * 9798 + green.to(tl.int32) * 19235 + blue.to(tl.int32) * 3735
    return (total + 16384) >> 15


@triton.jit
def _mean_kernel(
    levels,
    table,
    means,
    PIXELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The mean grey of each image after its brightness was changed."""
    sample = tl.program_id(0).to(tl.int64)
    brightness = tl.load(table + sample * COLUMNS)
    image = levels + sample * PIXELS * 3
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, PIXELS, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        wanted = pixel < PIXELS
        red = tl.load(image + pixel * 3, mask=wanted, other=0).to(tl.float32)
        green = tl.load(image + pixel * 3 + 1, mask=wanted, other=0).to(tl.float32)
        blue = tl.load(image + pixel * 3 + 2, mask=wanted, other=0).to(tl.float32)
        red, green = _rounded(red * brightness), _rounded(green * brightness)
        total += _grey(red, green, _rounded(blue * brightness))
    tl.store(means + sample, tl.sum(total.to(tl.int64), 0).to(tl.float32) / PIXELS)


@triton.jit
def _adjust_kernel(
    levels,
    table,
    means,
    out,
    affine,
    fill_red,
    fill_green,
    fill_blue,
    WIDTH: tl.constexpr,
    NORMALISE: tl.constexpr,
    PIXELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    row = table + sample * COLUMNS
    brightness = tl.load(row)
    contrast = tl.load(row + 1)
    saturation = tl.load(row + 2)
    offset = (1 - contrast) * tl.load(means + sample)

    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = pixel < PIXELS
    at = sample * PIXELS * 3 + pixel * 3
    red = tl.load(levels + at, mask=wanted, other=0).to(tl.float32)
    green = tl.load(levels + at + 1, mask=wanted, other=0).to(tl.float32)
    blue = tl.load(levels + at + 2, mask=wanted, other=0).to(tl.float32)

    red = _rounded(_rounded(red * brightness) * contrast + offset)
    green = _rounded(_rounded(green * brightness) * contrast + offset)
    blue = _rounded(_rounded(blue * brightness) * contrast + offset)
    grey = (1 - saturation) * _grey(red, green, blue).to(tl.float32)
    red = _rounded(red * saturation + grey)
    green = _rounded(green * saturation + grey)
    blue = _rounded(blue * saturation + grey)

    x = (pixel % WIDTH).to(tl.float32)
    y = (pixel // WIDTH).to(tl.float32)
    inside_x = (x >= tl.load(row + 3)) & (x < tl.load(row + 5))
    inside_y = (y >= tl.load(row + 4)) & (y < tl.load(row + 6))
    erased = inside_x & inside_y
    red = tl.where(erased, fill_red, red)
    green = tl.where(erased, fill_green, green)
    blue = tl.where(erased, fill_blue, blue)

    if NORMALISE:
        red = red * tl.load(affine) + tl.load(affine + 3)
        green = green * tl.load(affine + 1) + tl.load(affine + 4)
        blue = blue * tl.load(affine + 2) + tl.load(affine + 5)
    kind = out.dtype.element_ty
    tl.store(out + at, red.to(kind), mask=wanted)
    tl.store(out + at + 1, green.to(kind), mask=wanted)
    tl.store(out + at + 2, blue.to(kind), mask=wanted)
