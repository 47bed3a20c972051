"""Carrying out one row of a plan on the CPU: crop, reduce, resize, flip."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["resample"]


def resample(
    pixels: NDArray[np.uint8],
    box: tuple[float, float, float, float],
    flip: bool,
    out: NDArray[np.uint8],
    *,
    reduction: int = 1,
    antialias: bool = False,
) -> None:
    """Cut ``box`` out of an image and scale it to the size of ``out``.

    Args:
        pixels: uint8 [H, W, 3], the whole image.
        box: left, top, width, height in pixels of the image, as
            :class:`fastdata.recipe.Draws` defines them; outside of the image is black.
        flip: mirror left and right afterwards.
        out: uint8 [h, w, 3], C-contiguous, is filled.
        reduction: first average blocks of reduction x reduction pixels; the box is a multiple.
        antialias: False: bilinear with half-pixel centres; True: Pillow's bilinear, whose
            triangle filter widens with the scale, as torchvision's does.
    """
    left, top, width, height = box
    if left != int(left) or top != int(top) or width != int(width) or height != int(height):
        # Only a centre crop with antialias has such a box. Like resizing the whole image and
        # cropping after, the filter may see pixels beyond the box's edge.
        corners = (left, top, left + width, top + height)
        _resize_antialias(pixels, out, corners)
    else:
        x, y, w, h = int(left), int(top), int(width), int(height)
        crop = pixels[max(y, 0) : y + h, max(x, 0) : x + w]
        if crop.shape[:2] == out.shape[:2]:
            np.copyto(out, crop)
        elif crop.shape[0] < h or crop.shape[1] < w:  # only unscaled boxes reach outside
            out[:] = 0
            y, x = max(-y, 0), max(-x, 0)
            out[y : y + crop.shape[0], x : x + crop.shape[1]] = crop
        elif antialias:
            # torchvision crops first, so the filter sees nothing outside of the box.
            _resize_antialias(crop, out)
        else:
            source: cv2.typing.MatLike = crop
            if reduction > 1:
                # INTER_AREA at a whole factor is the mean of each block.
                target = (w // reduction, h // reduction)
                source = cv2.resize(crop, target, interpolation=cv2.INTER_AREA)
            cv2.resize(source, out.shape[1::-1], dst=out, interpolation=cv2.INTER_LINEAR)
    if flip:
        cv2.flip(out, 1, dst=out)


def _resize_antialias(
    pixels: NDArray[np.uint8],
    out: NDArray[np.uint8],
    corners: tuple[float, float, float, float] | None = None,
) -> None:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    size = (out.shape[1], out.shape[0])
    np.copyto(out, np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=corners)))
