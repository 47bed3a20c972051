"""Colour jitter and erasing: what is drawn, and what it does to pixels, against torchvision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import RandomErasing
from torchvision.transforms.v2 import functional as tv

from fastdata.adjust import Adjustments, adjust, draw_adjustments, fill_colour
from fastdata.recipe import PRESETS, Recipe, draw, draw_key

JITTER = Recipe(size=64, brightness=0.4, contrast=0.4, saturation=1.5)
MANY = 4000


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """A random picture, coarse and with noise, uint8 [height, width, 3]."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (4, 5, 3), np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    noise = generator.normal(0, 9, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def drawn(recipe: Recipe, count: int = MANY, seed: int = 0, epoch: int = 0) -> Adjustments:
    found = draw_adjustments(recipe, draw_key(seed, epoch), np.arange(count))
    assert found is not None
    return found


def one(factors: list[float], erased: list[int] | None = None) -> Adjustments:
    return Adjustments(
        np.array([factors], np.float32), np.array([erased or [0, 0, 0, 0]], np.int32)
    )


def torchvisions(pixels: NDArray[np.uint8], factors: list[float]) -> NDArray[Any]:
    """The same by torchvision's float formulas, in levels."""
    image = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    image = tv.adjust_brightness(image, factors[0])
    image = tv.adjust_contrast(image, factors[1])
    image = tv.adjust_saturation(image, factors[2])
    return image.permute(1, 2, 0).double().numpy() * 255


# --- what is drawn --------------------------------------------------------------------------------


def test_presets_adjust_nothing() -> None:
    for recipe in PRESETS.values():
        assert not recipe.adjusts
        assert draw_adjustments(recipe, draw_key(0, 0), np.arange(5)) is None


def test_factors_are_uniform_in_torchvisions_ranges() -> None:
    found = drawn(JITTER).factors
    assert found.dtype == np.float32
    # ColorJitter: [max(0, 1 - value), 1 + value]
    for column, (low, high) in enumerate([(0.6, 1.4), (0.6, 1.4), (0.0, 2.5)]):
        values = found[:, column]
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * MANY)
    correlations = np.corrcoef(found.T) - np.eye(3)
    assert np.abs(correlations).max() < 5 / math.sqrt(MANY)


def test_what_a_recipe_does_not_change_has_a_factor_of_one() -> None:
    found = drawn(Recipe(size=8, contrast=0.3), 50)
    assert (found.factors[:, [0, 2]] == 1).all()
    assert (found.factors[:, 1] != 1).all()
    assert not found.erased.any()


def test_erased_boxes_are_distributed_as_torchvisions() -> None:
    recipe = Recipe(size=97, erase=0.6)
    found = drawn(recipe).erased
    assert found.dtype == np.int32
    boxes = found[found[:, 2] > 0]
    assert abs(len(boxes) / MANY - 0.6) < 5 * math.sqrt(0.6 * 0.4 / MANY)
    assert not found[found[:, 2] == 0].any()
    left, top, width, height = boxes.T
    assert min(left.min(), top.min()) >= 0
    assert max((left + width).max(), (top + height).max()) <= 97
    assert min(width.min(), height.min()) > 0
    torch.manual_seed(0)
    blank = torch.zeros(3, 97, 97)
    theirs = [
        RandomErasing.get_params(blank, (0.02, 0.33), (0.3, 3.3), value=None)[:4]
        for _ in range(len(boxes))
    ]
    y, x, h, w = np.array(theirs).T
    for ours, other in ((left, x), (top, y), (width, w), (height, h), (width * height, w * h)):
        spread = math.hypot(ours.std(), other.std()) / math.sqrt(len(boxes))
        assert abs(ours.mean() - other.mean()) < 5 * spread
        assert 0.9 < ours.std() / other.std() < 1.1


def test_boxes_keep_the_ranges_of_the_recipe() -> None:
    recipe = Recipe(size=200, erase=1, erase_scale=(0.1, 0.2), erase_ratio=(2, 3))
    _, _, width, height = drawn(recipe).erased.T
    assert (width > 0).all()
    assert 0.1 * 0.95 < (width * height).min() / 200**2 < 0.11
    assert 0.19 < (width * height).max() / 200**2 < 0.2 * 1.05
    assert (height / width).min() > 2 * 0.95
    assert (height / width).max() < 3 * 1.05


def test_a_box_that_never_fits_is_not_erased() -> None:
    # As high as wide and of nearly all the area: not smaller than the image, which torchvision asks
    recipe = Recipe(size=4, erase=1, erase_scale=(0.99, 1), erase_ratio=(1, 1))
    assert not drawn(recipe, 50).erased.any()


def test_draws_depend_on_seed_epoch_and_sample_alone() -> None:
    recipe = Recipe(size=32, brightness=0.4, erase=0.5)
    first = drawn(recipe, 40)
    for other in (drawn(recipe, 40, seed=1), drawn(recipe, 40, epoch=1)):
        assert (first.factors[:, 0] != other.factors[:, 0]).mean() > 0.9
    some = np.array([30, 2, 2], np.int64)
    again = draw_adjustments(recipe, draw_key(0, 0), some)
    assert again is not None
    np.testing.assert_array_equal(again.factors, first.factors[some])
    np.testing.assert_array_equal(again.erased, first.erased[some])


def test_crops_and_flips_are_those_of_the_recipe_without() -> None:
    plain = Recipe(size=32, crop="random_resized", hflip=0.5)
    sizes = np.tile(np.array([[90, 70]], np.int32), (20, 1))
    key, indices = draw_key(0, 0), np.arange(20)
    full = Recipe(size=32, crop="random_resized", hflip=0.5, saturation=1, erase=1)
    for one, two in zip(
        draw(plain, key, indices, sizes), draw(full, key, indices, sizes), strict=True
    ):
        np.testing.assert_array_equal(one, two)


# --- what it does ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factors",
    [
        [1, 1, 1],
        [0.3, 1, 1],
        [1.9, 1, 1],
        [0, 1, 1],
        [1, 0.4, 1],
        [1, 1.8, 1],
        [1, 0, 1],
        [1, 1, 0.2],
        [1, 1, 1.9],
        [1, 1, 0],
        [1.3, 0.7, 1.4],
        [0.7, 1.4, 0.6],
    ],
)
def test_pixels_are_torchvisions(factors: list[float]) -> None:
    pixels = np.stack([picture(61, 47, seed=5), picture(61, 47, seed=6)])
    found = pixels.copy()
    both = Adjustments(np.array([factors] * 2, np.float32), np.zeros((2, 4), np.int32))
    adjust(found, both, (0, 0, 0))
    for image, source in zip(found, pixels, strict=True):
        # Half a level for each rounding, which later steps multiply; half a level of grey.
        tolerance = 0.5 * (1 + factors[1] * factors[2] + factors[2]) + 0.75
        assert np.abs(image - torchvisions(source, factors)).max() <= tolerance


def test_nothing_changes_where_all_factors_are_one() -> None:
    pixels = picture(20, 10)[None]
    found = pixels.copy()
    adjust(found, one([1, 1, 1]), (1, 2, 3))
    np.testing.assert_array_equal(found, pixels)


def test_a_box_is_filled_and_nothing_beside_it() -> None:
    pixels = picture(20, 20)[None]
    found = pixels.copy()
    adjust(found, one([1, 1, 1], [3, 5, 7, 2]), (124, 116, 104))
    expected = pixels.copy()
    expected[0, 5:7, 3:10] = (124, 116, 104)
    np.testing.assert_array_equal(found, expected)


def test_the_fill_is_the_mean_to_the_nearest_level_else_black() -> None:
    assert fill_colour(PRESETS["imagenet-train"]) == (124, 116, 104)  # 123.7, 116.3, 103.5
    assert fill_colour(Recipe(size=8)) == (0, 0, 0)
