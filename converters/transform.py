"""One source file -> one sample: the file's own bytes where they serve, else new ones."""

from __future__ import annotations

import os

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from converters.options import Options
from fastdata.decode import Decode, PixelBuffer, decode_any, reduced
from fastdata.errors import ImageError, SourceError, StorageError
from fastdata.files import SYSTEM_FAULTS
from fastdata.formats import Sample
from fastdata.header import MAX_PIXELS, Header, read_header
from fastdata.paths import display
from fastdata.registry import DECODERS, DEFAULT_DECODER, WRITERS, load

__all__ = ["Transform", "scaled_size"]

_CHECK_REDUCTION = 8
_SUBSAMPLING = "420"  # of what is encoded anew: a camera's, and what GPU decoders are built for


class Transform:
    """Turns source files into samples as the options say; keeps one buffer between calls."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._encoded: bool = load(WRITERS, options.to, "format").encoded
        self._decode: Decode = load(DECODERS, DEFAULT_DECODER, "decoder")
        self._buffer = PixelBuffer()

    def __call__(
        self,
        root: bytes,
        path: bytes,
        position: int,
        label: int | None,
        scanned: tuple[int, int] | None = None,
    ) -> Sample:
        """Make the sample of the file ``root/path``, at ``position`` in the plan.

        Args:
            scanned: size in bytes and modification time in ns that the file must have.

        Raises:
            SourceError: the file is not the one that was scanned.
            ImageError: the file cannot be read, or is no whole image; it names the file.
            StorageError: the disk or the system is at fault; skipping the file would hide that.
        """
        full = os.path.join(root, path)
        try:
            with open(full, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                data = file.read()
            found = (status.st_size, status.st_mtime_ns)
            if scanned is not None and (found != scanned or len(data) != scanned[0]):
                raise SourceError(
                    f"{display(full)} was changed while the source was converted; leave the source "
                    "alone and run the command again with --no-resume"
                )
            header = read_header(data, to_end=True)
            size = self._target(header)
            if self._encoded and header.plain and size == (header.width, header.height):
                if self._options.check == "decode":
                    # Every coefficient is decoded, which is where damage shows; at an eighth of
                    # the size what cannot fail (inverse DCT, colours) is spared.
                    small = self._buffer.shaped(*reduced(size, _CHECK_REDUCTION))
                    self._decode(data, size, _CHECK_REDUCTION, out=small)
                return Sample(position, path, label, *size, data=data)
            pixels = self._scale(self._pixels(data, header), size)
            if not self._encoded:
                return Sample(position, path, label, *size, pixels=pixels)
            data = simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels), self._options.quality, colorsubsampling=_SUBSAMPLING
            )
            return Sample(position, path, label, *size, data=data)
        except OSError as error:
            if error.errno in SYSTEM_FAULTS:
                raise StorageError(
                    f"cannot read {display(full)}: {error.strerror}; check the source's disk and "
                    "run the same command again"
                ) from error
            raise ImageError(display(full), f"cannot be read: {error.strerror}") from error
        except (ValueError, cv2.error) as error:
            raise ImageError(display(full), str(error)) from error

    def _target(self, header: Header) -> tuple[int, int]:
        """Width and height of what is written."""
        options = self._options
        if options.size is not None:
            return options.size[1], options.size[0]
        if options.resize is not None and min(header.width, header.height) > options.resize:
            return scaled_size(header.width, header.height, options.resize)
        return header.width, header.height

    def _pixels(self, data: bytes, header: Header) -> NDArray[np.uint8]:
        if not header.plain:
            return decode_any(data, self._decode)
        size = (header.width, header.height)
        return self._decode(data, size, out=self._buffer.shaped(*size))

    def _scale(self, pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
        """Scale to cover ``size`` (width, height), then cut out the centre."""
        height, width = pixels.shape[:2]
        if self._options.size is None:
            covering = size
        else:
            # The side that needs the larger factor fits exactly, the other covers.
            fits_width = size[0] * height >= size[1] * width
            covering = (
                (size[0], max(size[1], size[0] * height // width))
                if fits_width
                else (max(size[0], size[1] * width // height), size[1])
            )
        if covering[0] * covering[1] > MAX_PIXELS:
            raise ValueError(
                f"scaled to cover {size[0]}x{size[1]}, its {width}x{height} pixels would become "
                f"{covering[0]}x{covering[1]}, more than can be a picture; crop it"
            )
        if covering != (width, height):
            shrinks = covering[0] < width or covering[1] < height
            # The mean over each output pixel's area: no aliasing, and done once, not per epoch.
            how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
            pixels = np.asarray(cv2.resize(pixels, covering, interpolation=how), np.uint8)
        left, top = (covering[0] - size[0]) // 2, (covering[1] - size[1]) // 2
        return pixels[top : top + size[1], left : left + size[0]]


def scaled_size(width: int, height: int, short: int) -> tuple[int, int]:
    """Width and height with the short side scaled to ``short``; the long one is truncated to
    whole pixels, as torchvision's Resize does."""
    if width <= height:
        return short, height * short // width
    return width * short // height, short
