"""Encoded bytes -> pixels.

A decoder is a function ``decode(data, size, reduction=1, out=None, rows=None)`` in a file of its
own, listed in :data:`fastdata.registry.DECODERS`. It takes plain JPEGs (see
:class:`fastdata.header.Header`); :func:`decode_any` takes whatever Pillow can read.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastdata.header import read_header

__all__ = ["Decode", "PixelBuffer", "check_size", "decode_any", "reduced", "upright"]


class Decode(Protocol):
    """The signature of a decoder."""

    def __call__(
        self,
        data: bytes | memoryview,
        size: tuple[int, int],
        reduction: int = 1,
        out: NDArray[np.uint8] | None = None,
        rows: int | None = None,
    ) -> NDArray[np.uint8]:
        """Decode a plain JPEG.

        Args:
            data: the encoded image.
            size: its width and height in pixels, from its header.
            reduction: 1, 2, 4 or 8: decode to 1/reduction of the size, rounded up.
            out: uint8 [h, w, 3], C-contiguous: decode into it, where the decoder can.
            rows: how many rows of the image are needed, from its top; None: all. A decoder that
                can stops below them.

        Returns:
            uint8 [h, w, 3], RGB, or its first rows where ``rows`` allows; ``out`` itself where
            that was used, or its first rows.

        Raises:
            ValueError: the data is damaged, ends early, or is not of ``size``. With ``rows``, most
                damage that leaves the data's end in place is not noticed.
        """


def decode_any(data: bytes | memoryview, decode: Decode) -> NDArray[np.uint8]:
    """Decode any image to upright RGB at full size: JPEGs by ``decode``, others by Pillow.

    Returns:
        uint8 [height, width, 3].

    Raises:
        ValueError: no image, or a damaged one.
    """
    header = read_header(data)
    if header.decodable:  # also because the decoders refuse damage that Pillow is silent about
        pixels = decode(data, header.stored_size)
    else:
        from fastdata.decode.pillow import decode_unusual

        pixels = decode_unusual(data)
    return upright(pixels, header.orientation)


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn pixels [H, W, 3] that were stored with an EXIF orientation (1 to 8) upright."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def reduced(size: tuple[int, int], reduction: int) -> tuple[int, int]:
    """Width and height after a reduction, rounded up as JPEG decoders do."""
    return -(-size[0] // reduction), -(-size[1] // reduction)


def check_size(pixels: NDArray[np.uint8], size: tuple[int, int], reduction: int) -> None:
    """Refuse pixels that are not ``size`` at 1/``reduction``.

    Raises:
        ValueError: the data is not the image that the header or the index promised.
    """
    if pixels.shape[:2] != reduced(size, reduction)[::-1]:
        raise ValueError(
            f"expected {size[0]}x{size[1]} pixels at 1/{reduction}, "
            f"found {pixels.shape[1]}x{pixels.shape[0]}"
        )


class PixelBuffer:
    """Memory for one image after the other, taken from the system once and not per image."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def shaped(self, width: int, height: int) -> NDArray[np.uint8]:
        """uint8 [height, width, 3], valid until the next call; its contents are undefined."""
        size = width * height * 3
        if self._memory.size < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size].reshape(height, width, 3)
