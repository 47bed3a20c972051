"""The default decoder: libjpeg-turbo through simplejpeg, which brings its own copy of it."""

from __future__ import annotations

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from fastdata.decode import check_size, reduced

__all__ = ["decode"]


def decode(
    data: bytes | memoryview,
    size: tuple[int, int],
    reduction: int = 1,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """See :class:`fastdata.decode.Decode`."""
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
