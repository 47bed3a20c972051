"""Crop, reduce, resize, flip and normalise by Triton: one pass over the output's elements.

The source is an address and not a tensor: it may be the GPU's own memory or the host's, registered
with CUDA, which the GPU then reads over the bus.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fastdata.kernels import COLUMNS, staging_stride

__all__ = ["crop", "stage"]

_BLOCK = 1024
_ROWS = 8


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
    grid = (count, triton.cdiv(height * width * 3, _BLOCK))
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
        BLOCK=_BLOCK,
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
    grid = (len(table), triton.cdiv(height, _ROWS))
    _stage_kernel[grid](
        source,
        table,
        staging,
        height,
        width,
        staging_stride(height * width * 3) // 4,
        COLUMNS=COLUMNS,
        ROWS=_ROWS,
        WORDS=words,
    )


@triton.jit(do_not_specialize=["source"])
def _crop_kernel(
    source,
    table,
    out,
    affine,
    image_height: tl.constexpr,  # sizes are known to the compiler: a division by one of them is a
    image_width: tl.constexpr,  # multiplication then, and divisions are most of the arithmetic
    height: tl.constexpr,
    width: tl.constexpr,
    START: tl.constexpr,
    PACKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    row = table + sample * COLUMNS
    base = tl.load(row + START) + source
    left = tl.load(row + 1).to(tl.int32)
    top = tl.load(row + 2).to(tl.int32)
    box_width = tl.load(row + 3).to(tl.int32)
    box_height = tl.load(row + 4).to(tl.int32)
    how = tl.load(row + 5).to(tl.int32)
    reduction = how >> 1
    pixels = base.to(tl.pointer_type(tl.uint8))
    if PACKED:  # each image has its own size
        rows, columns = box_height, box_width
    else:
        rows, columns = image_height, image_width

    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = element < height * width * 3
    channel = element % 3
    x = (element // 3) % width
    y = element // (3 * width)
    x = tl.where((how & 1) > 0, width - 1 - x, x)

    # Half-pixel centres, the edge repeated, in whole numbers of 1 / (2 * size).
    length_x = box_width // reduction
    length_y = box_height // reduction
    place_x = tl.minimum(tl.maximum((2 * x + 1) * length_x - width, 0), (length_x - 1) * 2 * width)
    place_y = tl.minimum(
        tl.maximum((2 * y + 1) * length_y - height, 0), (length_y - 1) * 2 * height
    )
    x0 = place_x // (2 * width)
    y0 = place_y // (2 * height)
    weight_x = (place_x - x0 * 2 * width).to(tl.float32) / (2 * width)
    weight_y = (place_y - y0 * 2 * height).to(tl.float32) / (2 * height)
    x1 = tl.minimum(x0 + 1, length_x - 1)
    y1 = tl.minimum(y0 + 1, length_y - 1)

    value = tl.zeros((BLOCK,), tl.float32)
    for i in range(reduction):
        top0 = top + y0 * reduction + i
        top1 = top + y1 * reduction + i
        in0 = wanted & (top0 >= 0) & (top0 < rows)
        in1 = wanted & (top1 >= 0) & (top1 < rows)
        for j in range(reduction):
            left0 = left + x0 * reduction + j
            left1 = left + x1 * reduction + j
            is0 = (left0 >= 0) & (left0 < columns)
            is1 = (left1 >= 0) & (left1 < columns)
            at00 = (top0 * columns + left0) * 3 + channel
            at01 = (top0 * columns + left1) * 3 + channel
            at10 = (top1 * columns + left0) * 3 + channel
            at11 = (top1 * columns + left1) * 3 + channel
            v00 = tl.load(pixels + at00, mask=in0 & is0, other=0).to(tl.float32)
            v01 = tl.load(pixels + at01, mask=in0 & is1, other=0).to(tl.float32)
            v10 = tl.load(pixels + at10, mask=in1 & is0, other=0).to(tl.float32)
            v11 = tl.load(pixels + at11, mask=in1 & is1, other=0).to(tl.float32)
            upper = v00 * (1 - weight_x) + v01 * weight_x
            lower = v10 * (1 - weight_x) + v11 * weight_x
            value += upper * (1 - weight_y) + lower * weight_y
    value /= (reduction * reduction).to(tl.float32)

    value = tl.floor(value + 0.5)  # a level, as every engine has it before it normalises
    if NORMALISE:
        scale = tl.load(affine + channel)
        bias = tl.load(affine + 3 + channel)
        value = value * scale + bias
    at = sample * height * width * 3 + element
    tl.store(out + at, value.to(out.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize=["source"])
def _stage_kernel(
    source,
    table,
    staging,
    image_height: tl.constexpr,
    image_width: tl.constexpr,
    stride: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    row = table + sample * COLUMNS
    start = tl.load(row)
    left = tl.load(row + 1)
    top = tl.load(row + 2)
    right = tl.minimum(left + tl.load(row + 3), image_width)
    bottom = tl.minimum(top + tl.load(row + 4), image_height)
    left = tl.maximum(left, 0)
    first = tl.maximum(top, 0) + tl.program_id(1) * ROWS
    if (first < bottom) & (left < right):
        y = first + tl.arange(0, ROWS)
        begin = start + (y * image_width + left) * 3
        end = start + (y * image_width + right) * 3
        word = (begin >> 2)[:, None] + tl.arange(0, WORDS)[None, :]
        wanted = (y < bottom)[:, None] & (word < ((end + 3) >> 2)[:, None])
        words = source.to(tl.pointer_type(tl.int32))
        values = tl.load(words + word, mask=wanted, other=0)
        target = staging.to(tl.pointer_type(tl.int32)) + sample * stride
        tl.store(target + (word - (start >> 2)), values, mask=wanted)
