"""Colour jitter and random erasing: what comes after a sample's crop and flip.

As with crops, what is done is decided before any pixel is touched, by :func:`draw_adjustments`, and
carried out on the CPU by :func:`adjust`, on a GPU by :mod:`fastdata.kernels`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fastdata.hashing import derive_key, hash64, uniform
from fastdata.recipe import Recipe

__all__ = ["Adjustments", "adjust", "draw_adjustments", "fill_colour"]

_ADJUST = 5  # the purpose word of these draws' keys, see hashing.derive_key
_LANE_ERASE = 3  # after those of the three factors
_ATTEMPTS = 10  # tries of a box before nothing is erased, as in torchvision
_LANES_PER_ATTEMPT = 4


class Adjustments(NamedTuple):
    """What is done to N samples after their crop and flip, in this order.

    Attributes:
        factors: float32 [N, 3], of brightness, contrast and saturation; 1 changes nothing.
        erased: int32 [N, 4]: left, top, width and height of a box of the output that is filled
            with one colour; width 0: none.
    """

    factors: NDArray[np.float32]
    erased: NDArray[np.int32]

    def take(self, part: slice | NDArray[Any]) -> Adjustments:
        """Those of a part of the samples."""
        return Adjustments(self.factors[part], self.erased[part])


def draw_adjustments(recipe: Recipe, key: int, indices: NDArray[np.int64]) -> Adjustments | None:
    """Decide colours and erasing of samples; None where the recipe has neither.

    Args:
        recipe: what to do.
        key: of the epoch, see :func:`fastdata.recipe.draw_key`.
        indices: int64 [N], dataset indices.
    """
    if not recipe.adjusts:
        return None
    keys = hash64(derive_key(key, _ADJUST), indices.astype(np.uint64))
    factors = np.ones((len(indices), 3), np.float32)
    for column, change in enumerate((recipe.brightness, recipe.contrast, recipe.saturation)):
        if change > 0:
            low = max(0.0, 1 - change)
            factors[:, column] = low + (1 + change - low) * uniform(keys, column)
    return Adjustments(factors, _draw_erased(recipe, keys))


def _draw_erased(recipe: Recipe, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """torchvision's rule: up to ten tries of (area, log ratio), else nothing is erased."""
    erased = np.zeros((len(keys), 4), np.int32)
    if not recipe.erase or recipe.size is None:
        return erased
    side, (low, high) = recipe.size, recipe.erase_scale
    log_low, log_high = map(math.log, recipe.erase_ratio)
    left = np.flatnonzero(uniform(keys, _LANE_ERASE) < recipe.erase)  # samples without a box so far
    for attempt in range(_ATTEMPTS):
        lane, key = _LANE_ERASE + 1 + attempt * _LANES_PER_ATTEMPT, keys[left]
        area = side * side * (low + (high - low) * uniform(key, lane))
        aspect = np.exp(log_low + (log_high - log_low) * uniform(key, lane + 1))
        h = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        w = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (h < side) & (w < side)
        x = (uniform(key, lane + 2) * np.maximum(side - w + 1, 1)).astype(np.int64)
        y = (uniform(key, lane + 3) * np.maximum(side - h + 1, 1)).astype(np.int64)
        erased[left[fits]] = np.stack([x, y, w, h], axis=1)[fits]
        left = left[~fits]
        if not left.size:
            break
    return erased


def fill_colour(recipe: Recipe) -> tuple[int, int, int]:
    """What erased pixels become: the level nearest to the recipe's mean, which is about 0 once it
    is normalised; black without a mean."""
    red, green, blue = (round(255 * mean) for mean in recipe.mean or (0.0, 0.0, 0.0))
    return red, green, blue


def adjust(
    images: NDArray[np.uint8], adjustments: Adjustments, colour: tuple[int, int, int]
) -> None:
    """Adjust images in place.

    The formulas are those of torchvision's adjust_brightness, adjust_contrast and
    adjust_saturation, on levels of 0..255 that are rounded and clipped after each of them:
    ``brightness * x``; ``contrast * x + (1 - contrast) * mean``, of the image's mean grey; and
    ``saturation * x + (1 - saturation) * grey``.

    Args:
        images: uint8 [N, H, W, 3], C-contiguous.
        adjustments: of each of them.
        colour: of erased pixels.
    """
    rows = zip(images, adjustments.factors.tolist(), adjustments.erased.tolist(), strict=True)
    for image, (brightness, contrast, saturation), (left, top, width, height) in rows:
        if brightness != 1:
            cv2.addWeighted(image, brightness, image, 0, 0, dst=image)
        if contrast != 1:
            mean = cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0]
            cv2.addWeighted(image, contrast, image, 0, (1 - contrast) * mean, dst=image)
        if saturation != 1:
            grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
            cv2.addWeighted(image, saturation, grey, 1 - saturation, 0, dst=image)
        if width:
            image[top : top + height, left : left + width] = colour
