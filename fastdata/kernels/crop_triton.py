"""Crop, reduce, resize, flip and normalise by Triton: one pass over the output's pixels.

The source is an address and not a tensor: it may be the GPU's own memory or the host's, registered
with CUDA, which the GPU then reads over the bus.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fastdata.kernels import COLUMNS

__all__ = ["crop", "stage"]

_BLOCK = 64  # pixels of a row that a program makes; as fast as more, and fits more widths
_OUT_ROWS = 8
_LANE_PIXELS = 2
_ROWS = 8
_STAGE_WARPS = 4
_PROGRAMS = 64  # of staging: enough to fill the bus, few enough to leave the GPU to the training


def crop(
    source: torch.Tensor | int,
    table: torch.Tensor,
    host_table: NDArray[np.int64] | None,
    image_size: tuple[int, int],
    out: torch.Tensor,
    affine: torch.Tensor,
    *,
    staged: bool = False,
    packed: bool = False,
) -> None:
    """See :func:`fastdata.kernels.crop_torch.crop`; ``source`` may be an address that the GPU can
    read, and ``host_table`` is not needed."""
    address = source if isinstance(source, int) else source.data_ptr()
    count, height, width, _ = out.shape
    block = min(_BLOCK, triton.next_power_of_2(width))
    grid = (count, triton.cdiv(width, block) * triton.cdiv(height, _OUT_ROWS))
    _crop_kernel[grid](
        address,
        table,
        out,
        affine,
        *image_size,
        height,
        width,
        START=7 if staged else 0,
        PACKED=packed,
        COLUMNS=COLUMNS,
        NORMALISE=out.dtype != torch.uint8,
        ROWS=_OUT_ROWS,
        BLOCK=block,
        num_warps=max(1, block // _LANE_PIXELS // 32),
    )


def stage(
    source: int, table: torch.Tensor, image_size: tuple[int, int], staging: torch.Tensor
) -> None:
    """Copy what a batch's boxes cover into a staging buffer, by words of 4 bytes.

    Reading the host's memory a word at a time, each once, is faster than letting :func:`crop` pick
    bytes there.

    Args:
        source: address of the images; a multiple of 4.
        table: int64 [B, COLUMNS] on the device.
        image_size: height and width of the source's images.
        staging: uint8 on the device, at least B times the stride of
            :func:`fastdata.kernels.staging_stride` bytes.
    """
    height, width = image_size
    words = triton.next_power_of_2(3 * width // 4 + 2)
    _stage_kernel[(_PROGRAMS,)](
        source,
        table,
        len(table),
        staging,
        height,
        width,
        COLUMNS=COLUMNS,
        ROWS=_ROWS,
        WORDS=words,
        PROGRAMS=_PROGRAMS,
        num_warps=_STAGE_WARPS,
    )


@triton.jit(do_not_specialize=["source"])
def _crop_kernel(
    source,
    table,
    out,
    affine,
    image_height: tl.constexpr,  # sizes are known to the compiler: a division by one of them is a
    image_width: tl.constexpr,  # multiplication then
    height: tl.constexpr,
    width: tl.constexpr,
    START: tl.constexpr,
    PACKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORMALISE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program makes BLOCK pixels of each of ROWS rows. What depends on the column is computed
    once for all rows, and what depends on the row once for all pixels: the kernel's limit is the
    number of instructions, not memory."""
    sample = tl.program_id(0).to(tl.int64)
    row = table + sample * COLUMNS
    pixels = (tl.load(row + START) + source).to(tl.pointer_type(tl.uint8))
    left = tl.load(row + 1).to(tl.int32)
    top = tl.load(row + 2).to(tl.int32)
    box_width = tl.load(row + 3).to(tl.int32)
    box_height = tl.load(row + 4).to(tl.int32)
    how = tl.load(row + 5).to(tl.int32)
    reduction = how >> 1
    if PACKED:  # each image has its own size
        rows, columns = box_height, box_width
    else:
        rows, columns = image_height, image_width
    share = 1 / (reduction * reduction).to(tl.float32)

    tiles: tl.constexpr = (width + BLOCK - 1) // BLOCK
    x = tl.program_id(1) % tiles * BLOCK + tl.arange(0, BLOCK)
    wanted = x < width
    target = x * 3
    x0, x1, weight_x = _taps(tl.where((how & 1) > 0, width - 1 - x, x), box_width, reduction, width)
    x0 = left + x0 * reduction
    x1 = left + x1 * reduction

    first = tl.program_id(1) // tiles * ROWS
    for y in range(first, min(first + ROWS, height)):
        y0, y1, weight_y = _taps(y, box_height, reduction, height)
        y0 = top + y0 * reduction
        y1 = top + y1 * reduction
        w00 = (1 - weight_y) * (1 - weight_x) * share
        w01 = (1 - weight_y) * weight_x * share
        w10 = weight_y * (1 - weight_x) * share
        w11 = weight_y * weight_x * share
        red = tl.zeros((BLOCK,), tl.float32)
        green = tl.zeros((BLOCK,), tl.float32)
        blue = tl.zeros((BLOCK,), tl.float32)
        for i in range(reduction):
            in0 = (y0 + i >= 0) & (y0 + i < rows)
            in1 = (y1 + i >= 0) & (y1 + i < rows)
            line0 = pixels + (y0 + i) * columns * 3
            line1 = pixels + (y1 + i) * columns * 3
            for j in range(reduction):
                is0 = wanted & (x0 + j >= 0) & (x0 + j < columns)
                is1 = wanted & (x1 + j >= 0) & (x1 + j < columns)
                at0 = (x0 + j) * 3
                at1 = (x1 + j) * 3
                red += _level(line0 + at0, in0 & is0) * w00
                red += _level(line0 + at1, in0 & is1) * w01
                red += _level(line1 + at0, in1 & is0) * w10
                red += _level(line1 + at1, in1 & is1) * w11
                green += _level(line0 + at0 + 1, in0 & is0) * w00
                green += _level(line0 + at1 + 1, in0 & is1) * w01
                green += _level(line1 + at0 + 1, in1 & is0) * w10
                green += _level(line1 + at1 + 1, in1 & is1) * w11
                blue += _level(line0 + at0 + 2, in0 & is0) * w00
                blue += _level(line0 + at1 + 2, in0 & is1) * w01
                blue += _level(line1 + at0 + 2, in1 & is0) * w10
                blue += _level(line1 + at1 + 2, in1 & is1) * w11
        red = tl.floor(red + 0.5)  # a level, as every engine has it before it normalises
        green = tl.floor(green + 0.5)
        blue = tl.floor(blue + 0.5)
        if NORMALISE:
            red = red * tl.load(affine) + tl.load(affine + 3)
            green = green * tl.load(affine + 1) + tl.load(affine + 4)
            blue = blue * tl.load(affine + 2) + tl.load(affine + 5)
        line = out + (sample * height + y) * width * 3
        tl.store(line + target, red.to(out.dtype.element_ty), mask=wanted)
        tl.store(line + target + 1, green.to(out.dtype.element_ty), mask=wanted)
        tl.store(line + target + 2, blue.to(out.dtype.element_ty), mask=wanted)


@triton.jit
def _taps(place, box, reduction, size: tl.constexpr):
    """The two reduced source places of an output place, and the second one's weight.

    Half-pixel centres, the edge repeated: (place + 0.5) * length / size - 0.5, in whole numbers of
    1 / (2 * size).
    """
    length = box // reduction
    at = tl.minimum(tl.maximum((2 * place + 1) * length - size, 0), (length - 1) * 2 * size)
    low = at // (2 * size)
    weight = (at - low * 2 * size).to(tl.float32) / (2 * size)
    return low, tl.minimum(low + 1, length - 1), weight


@triton.jit
def _level(pointers, mask):
    return tl.load(pointers, mask=mask, other=0).to(tl.float32)


@triton.jit(do_not_specialize=["source", "count"])
def _stage_kernel(
    source,
    table,
    count,
    staging,
    image_height: tl.constexpr,
    image_width: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    words = source.to(tl.pointer_type(tl.int32))
    bands: tl.constexpr = (image_height + ROWS - 1) // ROWS
    for task in range(tl.program_id(0), count * bands, PROGRAMS):
        row = table + task // bands * COLUMNS
        start = tl.load(row)
        left = tl.load(row + 1)
        top = tl.load(row + 2)
        right = tl.minimum(left + tl.load(row + 3), image_width)
        bottom = tl.minimum(top + tl.load(row + 4), image_height)
        left = tl.maximum(left, 0)
        first = tl.maximum(top, 0) + (task % bands) * ROWS
        if (first < bottom) & (left < right):
            y = first + tl.arange(0, ROWS)
            begin = start + (y * image_width + left) * 3
            end = start + (y * image_width + right) * 3
            word = (begin >> 2)[:, None] + tl.arange(0, WORDS)[None, :]
            wanted = (y < bottom)[:, None] & (word < ((end + 3) >> 2)[:, None])
            values = tl.load(words + word, mask=wanted, other=0)
            target = staging.to(tl.pointer_type(tl.int32)) + (tl.load(row + 7) >> 2)
            tl.store(target + (word - (start >> 2)), values, mask=wanted)
