"""The default decoder: libjpeg-turbo through simplejpeg, which brings its own copy of it."""

from __future__ import annotations

import re
import struct

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from fastdata.decode import check_size, reduced

__all__ = ["decode"]

_MOST_MCU_ROWS = 16  # of pixels in a row of MCUs, for every sampling but the rarest
_SEQUENTIAL, _SOS, _DRI = (0xC0, 0xC1), 0xDA, 0xDD
_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")
# What may stand before the end of the image: comments and applications' segments.
_SEGMENT = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0x(fe|e[0-9a-f])")


def decode(
    data: bytes | memoryview,
    size: tuple[int, int],
    reduction: int = 1,
    out: NDArray[np.uint8] | None = None,
    rows: int | None = None,
) -> NDArray[np.uint8]:
    """See :class:`fastdata.decode.Decode`."""
    if rows is not None:
        # Where chroma is interpolated, the last row looks at the one below it.
        kept = -(-(rows + reduction) // _MOST_MCU_ROWS) * _MOST_MCU_ROWS
        if kept < size[1]:
            return _decode_top(data, size, kept, reduction, out)
    pixels: NDArray[np.uint8]
    if reduction == 1:
        pixels = simplejpeg.decode_jpeg(data, buffer=out)
        if pixels.shape == (size[1], size[0], 3):  # check_size, without its cost for small images
            return pixels if out is None else out
    else:
        # The smallest size that is at least this one is exactly 1/reduction.
        width, height = reduced(size, reduction)
        pixels = simplejpeg.decode_jpeg(data, min_width=width, min_height=height, buffer=out)
    check_size(pixels, size, reduction)
    return pixels if out is None else out  # the library returns a view of out


def _decode_top(
    data: bytes | memoryview,
    size: tuple[int, int],
    kept: int,
    reduction: int,
    out: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """Decode the first ``kept`` rows, a multiple of an MCU's: the frame header is told that there
    are no more. The decoder then warns of the data that is left over, and of nothing before it;
    of a file that ends early it warns first."""
    at = _stored_height(data)
    if at is None or bytes(data[at : at + 4]) != struct.pack(">HH", size[1], size[0]):
        return decode(data, size, reduction, out)  # which finds what is wrong
    part = bytearray(data)
    part[at : at + 2] = kept.to_bytes(2, "big")
    width, height = reduced((size[0], kept), reduction)
    pixels = np.empty((height, width, 3), np.uint8) if out is None else out[:height]
    try:
        simplejpeg.decode_jpeg(part, min_width=width, min_height=height, buffer=pixels)
    except ValueError as error:
        if _SEGMENT.match(str(error)):
            return decode(data, size, reduction, out)  # it tells such a segment from damage
        if _REST.match(str(error)) is None:
            raise
    return pixels


def _stored_height(data: bytes | memoryview) -> int | None:
    """Where a sequential JPEG's frame header has the height; None where no such header is found,
    and where there may be restart markers: what is left over then looks as damage does."""
    position, found = 2, None
    try:
        while data[position] == 0xFF:
            marker = data[position + 1]
            if marker == _SOS:
                return found
            if marker == _DRI:
                return None
            if marker in _SEQUENTIAL:
                found = position + 5
            position += 2 + (data[position + 2] << 8 | data[position + 3])
    except IndexError:
        pass
    return None
