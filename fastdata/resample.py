"""Carrying out one row of a plan on the CPU: crop, reduce, resize, flip."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fastdata.recipe import Recipe

__all__ = ["copy_boxes", "mirror", "resample", "resampling"]

_MOST_SCALED = 16  # times the output; what is larger is scaled by Pillow, within the box alone


def resampling(recipe: Recipe) -> dict[str, bool]:
    """The arguments of :func:`resample` that a recipe fixes for all samples."""
    return {"antialias": recipe.antialias, "scale_first": recipe.crop == "center"}


def resample(
    pixels: NDArray[np.uint8],
    box: tuple[float, float, float, float],
    flip: bool,
    out: NDArray[np.uint8],
    *,
    reduction: int = 1,
    antialias: bool = False,
    scale_first: bool = False,
) -> None:
    """Cut ``box`` out of an image and scale it to the size of ``out``.

    Args:
        pixels: uint8 [H, W, 3], the whole image.
        box: left, top, width, height in pixels of the image, as
            :class:`fastdata.recipe.Draws` defines them; outside of the image is black.
        flip: mirror left and right afterwards.
        out: uint8 [h, w, 3], C-contiguous, is filled.
        reduction: first average blocks of reduction x reduction pixels; the box is a multiple.
        antialias: False: bilinear with half-pixel centres; True: torchvision's, a triangle filter
            that widens with the scale.
        scale_first: with ``antialias``: the result of scaling the whole image and cropping after,
            where the filter sees pixels beyond the box; the box may have fractions then.
    """
    if antialias and scale_first:
        _scale_whole(pixels, box, out)
    else:
        x, y, w, h = int(box[0]), int(box[1]), int(box[2]), int(box[3])
        crop = pixels[max(y, 0) : max(y + h, 0), max(x, 0) : max(x + w, 0)]
        if crop.shape[0] < h or crop.shape[1] < w:  # only unscaled boxes reach outside
            out[:] = 0
            y, x = max(-y, 0), max(-x, 0)
            out[y : y + crop.shape[0], x : x + crop.shape[1]] = crop
        elif crop.shape[:2] == out.shape[:2]:
            np.copyto(out, crop)
        elif antialias:
            _scale_antialias(crop, out)
        else:
            _scale(crop, out, reduction)
    if flip:
        cv2.flip(out, 1, dst=out)


def _scale(crop: NDArray[np.uint8], out: NDArray[np.uint8], reduction: int) -> None:
    source: cv2.typing.MatLike = crop
    if reduction > 1:
        # INTER_AREA at a whole factor is the mean of each block.
        target = (crop.shape[1] // reduction, crop.shape[0] // reduction)
        source = cv2.resize(crop, target, interpolation=cv2.INTER_AREA)
    cv2.resize(source, out.shape[1::-1], dst=out, interpolation=cv2.INTER_LINEAR)


def _scale_antialias(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    # What torchvision calls for tensors, without its allocation: a fifth of Pillow's time. torch
    # takes no memory that cannot be written to, as that of a map, even if it only reads.
    source = _planes(np.require(pixels, requirements=["C", "W"]))
    scale = torch.ops.aten._upsample_bilinear2d_aa.out
    scale(source, out.shape[:2], False, None, None, out=_planes(out))


def _scale_whole(
    pixels: NDArray[np.uint8], box: tuple[float, float, float, float], out: NDArray[np.uint8]
) -> None:
    """Scale the whole image, so that ``box`` gets the size of ``out``, and cut it out."""
    height, width = out.shape[:2]
    # Whole numbers, which the box was made from.
    scaled_width = round(pixels.shape[1] * width / box[2])
    scaled_height = round(pixels.shape[0] * height / box[3])
    if scaled_width * scaled_height > _MOST_SCALED * width * height:  # of a banner, for example
        corners = (box[0], box[1], box[0] + box[2], box[1] + box[3])
        image = Image.fromarray(np.ascontiguousarray(pixels))
        scaled_box = image.resize((width, height), Image.Resampling.BILINEAR, box=corners)
        np.copyto(out, np.asarray(scaled_box))
        return
    left = round(box[0] * scaled_width / pixels.shape[1])
    top = round(box[1] * scaled_height / pixels.shape[0])
    scaled = np.empty((scaled_height, scaled_width, 3), np.uint8)
    _scale_antialias(pixels, scaled)
    np.copyto(out, scaled[top : top + height, left : left + width])


def _planes(image: NDArray[np.uint8]) -> torch.Tensor:
    """[1, 3, H, W] over the memory of [H, W, 3]."""
    return torch.from_numpy(image).permute(2, 0, 1)[None]


def copy_boxes(
    pixels: NDArray[np.uint8],
    indices: NDArray[np.int64],
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    out: NDArray[np.uint8],
) -> None:
    """What :func:`resample` does to boxes of the output's own size, for many samples at once: for
    small images its cost for each call is most of the time.

    Args:
        pixels: uint8 [N, H, W, 3], all images.
        indices: int64 [B].
        boxes: int64 [B, 4], left, top, width and height; outside of the image is black.
        flips: bool [B].
        out: uint8 [B, h, w, 3], C-contiguous, is filled.
    """
    height, width = pixels.shape[1:3]
    left, top = boxes[:, 0], boxes[:, 1]
    if out.shape[1:3] == (height, width) and not left.any() and not top.any():
        np.take(pixels, indices, axis=0, out=out, mode="clip")  # "raise" would buffer it
    else:
        low_x, low_y = min(0, int(left.min())), min(0, int(top.min()))
        high_x = max(width, int(left.max()) + out.shape[2])
        high_y = max(height, int(top.max()) + out.shape[1])
        padded = np.empty((len(out), high_y - low_y, high_x - low_x, 3), np.uint8)
        padded[:, :-low_y] = padded[:, height - low_y :] = 0
        padded[:, :, :-low_x] = padded[:, :, width - low_x :] = 0
        padded[:, -low_y : height - low_y, -low_x : width - low_x] = pixels[indices]
        # By rows of bytes, so that a row of a window is one run.
        rows = padded.reshape(len(out), padded.shape[1], -1)
        shape = (out.shape[1], out.shape[2] * 3)
        windows = np.lib.stride_tricks.sliding_window_view(rows, shape, (1, 2))
        chosen = windows[np.arange(len(out)), top - low_y, (left - low_x) * 3]
        np.copyto(out.reshape(len(out), *shape), chosen)
    mirror(out, flips)


def mirror(images: NDArray[np.uint8], flips: NDArray[np.bool_]) -> None:
    """Mirror those of the images [B, h, w, 3] left and right whose flip is set, in place."""
    mirrored = np.flatnonzero(flips)
    if mirrored.size:
        # A stack of images is one tall image, which is mirrored at once.
        stack = np.take(images, mirrored, axis=0, mode="clip")
        tall = stack.reshape(-1, images.shape[2], 3)
        cv2.flip(tall, 1, dst=tall)
        images[mirrored] = stack
