"""Recipe: what is done to a sample, and the random draws that it implies.

A recipe is executed in two halves. :func:`draw` decides crop boxes, flips and reduction factors
in numpy, before any pixel is touched; an engine then carries them out. So every engine gives the
same crops, and a sample's crop depends on (seed, epoch, dataset index, image size) alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import UsageError
from fastdata.hashing import derive_key, hash64, uniform

__all__ = ["PRESETS", "Draws", "Recipe", "draw", "draw_key", "sample_seeds"]

_DRAW = 2  # purpose words of the keys of this module, see hashing.derive_key
_SAMPLE_SEED = 3
_CROPS = ("random_resized", "random_pad", "center", "none")
_DTYPES = ("uint8", "float16", "bfloat16", "float32")
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_ATTEMPTS = 10  # tries of a random resized crop before its fallback, as in torchvision
_TRIES = ((0,), (1, 2), tuple(range(3, _ATTEMPTS)))  # made at once: most samples need one
_LANES_PER_ATTEMPT = 4
_LANE_FLIP = _ATTEMPTS * _LANES_PER_ATTEMPT


@dataclass(frozen=True)
class Recipe:
    """What to do to a sample.

    Attributes:
        size: side of the square output in pixels; None keeps every image's own size (with
            ``crop="none"`` only), and then all images of a batch must have the same size.
        crop: ``"random_resized"``: a box of random area and aspect ratio, scaled to ``size``
            (torchvision's RandomResizedCrop); ``"random_pad"``: zero-pad by ``pad``, then a
            random ``size`` x ``size`` box, unscaled (RandomCrop with padding); ``"center"``: the
            short side is scaled to ``size / crop_fraction`` and the central ``size`` x ``size``
            box taken; ``"none"``: the whole image, scaled to ``size`` x ``size``.
        scale: range of the box's area as a share of the image's, for ``random_resized``.
        ratio: range of the box's width / height, for ``random_resized``.
        hflip: probability of a horizontal flip, in [0, 1].
        mean, std: per channel, of pixels in [0, 1]; None leaves floats in [0, 1].
        antialias: False: reduce by a power of two, then bilinear; True: torchvision's result.
        dtype: ``"uint8"``, ``"float16"``, ``"bfloat16"`` or ``"float32"``; None is float16 on
            CUDA and float32 on the CPU. uint8 is never normalised.
        pad: zero padding on every side in pixels, for ``random_pad``.
        crop_fraction: see ``center``; 0.875 is the customary 224 of 256.
        brightness, contrast, saturation: the most that a random factor differs from 1, as in
            torchvision's ColorJitter (factors in [max(0, 1 - value), 1 + value]), but always in
            this order; 0 changes nothing.
        erase: probability that a box of the output is erased (torchvision's RandomErasing), in
            [0, 1]; its pixels become the mean, or black where there is none.
        erase_scale, erase_ratio: ranges of that box's share of the output and of its
            height / width.

    Raises:
        UsageError: a value is out of its range; the message names it.
    """

    size: int | None = None
    crop: str = "none"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float = 0.0
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    antialias: bool = False
    dtype: str | None = None
    pad: int = 4
    crop_fraction: float = 0.875
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    erase: float = 0.0
    erase_scale: tuple[float, float] = (0.02, 0.33)
    erase_ratio: tuple[float, float] = (0.3, 3.3)

    def __post_init__(self) -> None:
        def require(condition: bool, expected: str, name: str) -> None:
            if not condition:
                raise UsageError(f"Recipe: expected {expected}, got {name}={getattr(self, name)!r}")

        for name in ("size", "pad"):
            value = getattr(self, name)
            require(value is None or isinstance(value, int), "a whole number", name)
        for name in ("scale", "ratio", "erase_scale", "erase_ratio"):
            require(len(getattr(self, name)) == 2, "(low, high)", name)
        require(self.crop in _CROPS, f"crop to be one of {', '.join(_CROPS)}", "crop")
        require(self.dtype is None or self.dtype in _DTYPES, f"one of {_DTYPES} or None", "dtype")
        require(self.size is None or self.size >= 1, "size of at least 1 pixel, or None", "size")
        require(
            self.size is not None or self.crop == "none",
            f"a size, which crop={self.crop!r} needs",
            "size",
        )
        for name in ("scale", "erase_scale"):
            low, high = getattr(self, name)
            require(0 < low <= high <= 1, "0 < low <= high <= 1", name)
        for name in ("ratio", "erase_ratio"):
            low, high = getattr(self, name)
            require(0 < low <= high < math.inf, "0 < low <= high", name)
        require(0 <= self.hflip <= 1, "a probability in [0, 1]", "hflip")
        require((self.mean is None) == (self.std is None), "mean and std together", "std")
        require(self.mean is None or len(self.mean) == 3, "a mean for each of 3 channels", "mean")
        require(self.std is None or len(self.std) == 3, "a std for each of 3 channels", "std")
        require(self.std is None or min(self.std) > 0, "positive standard deviations", "std")
        require(self.pad >= 0, "pad of at least 0 pixels", "pad")
        require(0 < self.crop_fraction <= 1, "a share in (0, 1]", "crop_fraction")
        for name in ("brightness", "contrast", "saturation"):
            require(0 <= getattr(self, name) < math.inf, "a change of at least 0", name)
        require(0 <= self.erase <= 1, "a probability in [0, 1]", "erase")
        require(self.size is not None or not self.erase, "a size, which erase needs", "size")

    @property
    def random(self) -> bool:
        """Whether the recipe draws anything: then it is for training, and loaders shuffle."""
        return self.crop.startswith("random") or self.hflip > 0 or self.adjusts

    @property
    def adjusts(self) -> bool:
        """Whether it changes colours or erases."""
        return max(self.brightness, self.contrast, self.saturation, self.erase) > 0

    @classmethod
    def preset(cls, recipe: str | Recipe | None) -> Recipe:
        """A recipe by its preset's name; a recipe is returned as it is, None is ``raw``."""
        if isinstance(recipe, Recipe):
            return recipe
        name = "raw" if recipe is None else recipe
        if not isinstance(name, str) or name not in PRESETS:
            raise UsageError(
                f"no recipe is named {name!r}; expected one of {', '.join(PRESETS)}, or a Recipe"
            )
        return PRESETS[name]


_IMAGENET = Recipe(size=224, crop="center", mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
_CIFAR = Recipe(size=32, crop="none", mean=_CIFAR_MEAN, std=_CIFAR_STD)
PRESETS: dict[str, Recipe] = {
    "imagenet-train": replace(_IMAGENET, crop="random_resized", hflip=0.5),
    "imagenet-eval": _IMAGENET,
    "cifar-train": replace(_CIFAR, crop="random_pad", hflip=0.5),
    "cifar-eval": _CIFAR,
    "raw": Recipe(dtype="uint8"),
}


class Draws(NamedTuple):
    """What :func:`draw` decides for N samples.

    Attributes:
        boxes: float32 [N, 4]: left, top, width, height in pixels of the image. Whole numbers
            and multiples of the reduction factor, except for ``center`` with antialias, where
            they are what the crop of the scaled image covers. Outside the image only for
            ``random_pad``: there the pixels are zero.
        flips: bool [N]: mirror left and right after the crop.
        reductions: uint8 [N]: 1, 2, 4 or 8; the image is first shrunk by it.
    """

    boxes: NDArray[np.float32]
    flips: NDArray[np.bool_]
    reductions: NDArray[np.uint8]


def draw_key(seed: int, epoch: int) -> int:
    """The key of all draws of an epoch."""
    return derive_key(seed, _DRAW, epoch)


def sample_seeds(key: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit seed for each sample's own random number generators, uint64 [N]."""
    return hash64(derive_key(key, _SAMPLE_SEED), indices.astype(np.uint64))


def draw(recipe: Recipe, key: int, indices: NDArray[np.int64], sizes: NDArray[np.int32]) -> Draws:
    """Decide crop, flip and reduction of samples.

    Args:
        recipe: what to do.
        key: of the epoch, see :func:`draw_key`.
        indices: int64 [N], dataset indices.
        sizes: int32 [N, 2], width and height of each image in pixels.
    """
    keys = hash64(key, indices.astype(np.uint64))
    boxes, reductions = _boxes(recipe, keys, sizes)
    if recipe.hflip > 0:
        flips = uniform(keys, _LANE_FLIP) < recipe.hflip
    else:
        flips = np.zeros(len(indices), dtype=np.bool_)
    return Draws(boxes, flips, reductions)


def _boxes(
    recipe: Recipe, keys: NDArray[np.uint64], sizes: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Boxes and reductions, as in :class:`Draws`."""
    count = len(keys)
    if count > 1 and sizes.strides[0] == 0 and recipe.crop in ("none", "center"):
        # One size and nothing to draw: the same box for all, seen again for each.
        box, reduction = _boxes(recipe, keys[:1], sizes[:1])
        return np.broadcast_to(box, (count, 4)), np.broadcast_to(reduction, count)
    width, height = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)
    boxes: NDArray[np.int64] | NDArray[np.float64]
    if recipe.crop == "random_resized":
        boxes = _random_resized(recipe, keys, width, height)
    elif recipe.crop == "random_pad":
        boxes = _random_pad(recipe, keys, width, height)
    elif recipe.crop == "center":
        boxes = _center(recipe, width, height)
    else:
        boxes = np.stack([np.zeros_like(width), np.zeros_like(width), width, height], axis=1)
    reductions = np.ones(count, dtype=np.uint8)
    if recipe.size is not None and recipe.crop != "random_pad" and not recipe.antialias:
        boxes, reductions = _reduce(recipe.size, boxes)
    return boxes.astype(np.float32), reductions


def _random_resized(
    recipe: Recipe, keys: NDArray[np.uint64], width: NDArray[np.int64], height: NDArray[np.int64]
) -> NDArray[np.int64]:
    """torchvision's rule: up to ten tries of (area, log ratio), else the central largest box."""
    low_log, high_log = math.log(recipe.ratio[0]), math.log(recipe.ratio[1])
    low_scale, high_scale = recipe.scale
    boxes = np.empty((len(keys), 4), dtype=np.int64)
    left = np.arange(len(keys))  # samples without a box so far; usually few after the first try
    for tries in _TRIES:
        key, w_max, h_max = keys.take(left), width.take(left), height.take(left)
        lane = np.array(tries)[:, None] * _LANES_PER_ATTEMPT
        area = (w_max * h_max) * (low_scale + (high_scale - low_scale) * uniform(key, lane))
        aspect = np.exp(low_log + (high_log - low_log) * uniform(key, lane + 1))
        w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (w > 0) & (w <= w_max) & (h > 0) & (h <= h_max)
        found = fits.any(axis=0)
        chosen = np.flatnonzero(found)
        first = fits.argmax(axis=0).take(chosen)
        w, h = w[first, chosen], h[first, chosen]
        key, lane = key.take(chosen), lane[first, 0]
        x = _below(key, lane + 2, w_max.take(chosen) - w + 1)
        y = _below(key, lane + 3, h_max.take(chosen) - h + 1)
        boxes[left.take(chosen)] = np.stack([x, y, w, h], axis=1)
        left = left[~found]
        if not left.size:
            return boxes
    w_max, h_max = width[left], height[left]
    shape = w_max / h_max
    w, h = w_max.copy(), h_max.copy()
    narrow, wide = shape < recipe.ratio[0], shape > recipe.ratio[1]
    h[narrow] = np.rint(w_max[narrow] / recipe.ratio[0]).astype(np.int64)
    w[wide] = np.rint(h_max[wide] * recipe.ratio[1]).astype(np.int64)
    # torchvision would round the side of an image one or two pixels wide to nothing.
    w, h = np.maximum(w, 1), np.maximum(h, 1)
    boxes[left] = np.stack([(w_max - w) // 2, (h_max - h) // 2, w, h], axis=1)
    return boxes


def _random_pad(
    recipe: Recipe, keys: NDArray[np.uint64], width: NDArray[np.int64], height: NDArray[np.int64]
) -> NDArray[np.int64]:
    size, pad = _side(recipe), recipe.pad
    # Where the padded image is still smaller than the output, the box is centred on it.
    room_x, room_y = width + 2 * pad - size, height + 2 * pad - size
    x = np.where(room_x >= 0, _below(keys, 0, np.maximum(room_x + 1, 1)) - pad, room_x // 2 - pad)
    y = np.where(room_y >= 0, _below(keys, 1, np.maximum(room_y + 1, 1)) - pad, room_y // 2 - pad)
    return np.stack([x, y, np.full_like(x, size), np.full_like(y, size)], axis=1)


def _center(
    recipe: Recipe, width: NDArray[np.int64], height: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The source box of "short side to size / crop_fraction, then the central size x size"."""
    size = _side(recipe)
    resized = math.floor(size / recipe.crop_fraction)
    short = np.minimum(width, height)
    # torchvision truncates the long side of the resized image and rounds the crop's corner.
    resized_w = np.where(width <= height, resized, resized * width // short)
    resized_h = np.where(height <= width, resized, resized * height // short)
    left, top = np.rint((resized_w - size) / 2), np.rint((resized_h - size) / 2)
    scale_x, scale_y = width / resized_w, height / resized_h
    box = np.stack([left * scale_x, top * scale_y, size * scale_x, size * scale_y], axis=1)
    if recipe.antialias:
        return box
    whole = np.rint(box)
    np.maximum(whole[:, 2:], 1, out=whole[:, 2:])
    # Rounding must not push the box over the image's edge.
    whole[:, 0] = np.clip(whole[:, 0], 0, width - whole[:, 2])
    whole[:, 1] = np.clip(whole[:, 1], 0, height - whole[:, 3])
    return whole


def _reduce(
    size: int, boxes: NDArray[np.int64] | NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The largest factor of 1, 2, 4, 8 that leaves the box at least ``size``, and the box on that
    factor's grid, so that it has whole coordinates in the reduced image too."""
    whole = boxes.astype(np.int64)
    short = np.minimum(whole[:, 2], whole[:, 3])
    shift = np.zeros(len(whole), np.uint8)
    for factor in (2, 4, 8):
        shift += short >= factor * size
    if shift.any():
        whole &= -np.left_shift(1, shift, dtype=np.int64)[:, None]  # down to a multiple of it
    return whole, np.left_shift(1, shift, dtype=np.uint8)


def _below(
    keys: NDArray[np.uint64], lane: int | NDArray[np.int64], bound: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Uniform integers in [0, bound), int64 [N]."""
    return (uniform(keys, lane) * bound).astype(np.int64)


def _side(recipe: Recipe) -> int:
    if recipe.size is None:  # __post_init__ has refused this for every crop but "none"
        raise UsageError(f"crop={recipe.crop!r} needs a size")
    return recipe.size
