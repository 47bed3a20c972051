"""Recipes: what they accept, and the crops, flips and reductions that they draw.

torchvision is the reference for the distributions and for the geometry.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from fastdata.errors import UsageError
from fastdata.hashing import derive_key, hash64, uniform
from fastdata.recipe import PRESETS, Draws, Recipe, draw, draw_key, sample_seeds

# antialias leaves boxes as they were drawn: without it they go to the reduction's grid.
RANDOM = Recipe(size=224, crop="random_resized", antialias=True)
SHAPES = [(500, 375), (97, 61), (900, 700), (700, 1300), (4000, 3000), (224, 224), (40, 32)]


def sizes_of(width: int, height: int, count: int) -> NDArray[np.int32]:
    return np.tile(np.array([[width, height]], np.int32), (count, 1))


def draw_many(recipe: Recipe, width: int, height: int, count: int, seed: int = 0) -> Draws:
    return draw(recipe, draw_key(seed, 0), np.arange(count), sizes_of(width, height, count))


def chi_square(counts: NDArray[np.int64]) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def bound(cells: int) -> float:
    """Five standard deviations above the mean of chi-square for that many equally likely cells."""
    return cells - 1 + 5 * math.sqrt(2 * (cells - 1))


# --- what a recipe accepts ------------------------------------------------------------------------


def test_presets_are_the_customary_ones() -> None:
    names = ["imagenet-train", "imagenet-eval", "cifar-train", "cifar-eval", "raw"]
    assert list(PRESETS) == names
    imagenet = {"size": 224, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    cifar = {"size": 32, "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
    box = {"crop": "random_resized", "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}
    assert Recipe.preset("imagenet-train") == Recipe(**imagenet, **box, hflip=0.5)
    assert Recipe.preset("imagenet-eval") == Recipe(**imagenet, crop="center", crop_fraction=0.875)
    assert Recipe.preset("cifar-train") == Recipe(**cifar, crop="random_pad", pad=4, hflip=0.5)
    assert Recipe.preset("cifar-eval") == Recipe(**cifar, crop="none")
    assert Recipe.preset("raw") == Recipe(size=None, crop="none", hflip=0.0, dtype="uint8")


def test_a_preset_is_found_by_name_a_recipe_is_kept_and_none_is_raw() -> None:
    own = Recipe(size=64)
    assert Recipe.preset(own) is own
    assert Recipe.preset(None) == Recipe.preset("raw")
    with pytest.raises(UsageError, match=r"'imagenet'.*imagenet-train, imagenet-eval, .*raw"):
        Recipe.preset("imagenet")


def test_only_recipes_that_draw_are_random() -> None:
    assert [PRESETS[name].random for name in PRESETS] == [True, False, True, False, False]
    assert Recipe(size=8, hflip=0.1).random
    assert not Recipe(size=8, hflip=0.0).random


def test_a_recipe_cannot_be_changed_but_replaced() -> None:
    recipe = Recipe(size=8)
    with pytest.raises(FrozenInstanceError):
        recipe.size = 9
    assert replace(recipe, size=9).size == 9
    assert len({recipe, Recipe(size=8), replace(recipe, size=9)}) == 2


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("crop", {"crop": "centre", "size": 8}),
    ("crop", {"crop": "random", "size": 8}),
    ("dtype", {"dtype": "float64"}),
    ("size", {"size": 0}),
    ("size", {"size": -224}),
    ("size", {"crop": "center"}),
    ("size", {"crop": "random_resized"}),
    ("size", {"crop": "random_pad"}),
    ("scale", {"scale": (0.0, 1.0)}),
    ("scale", {"scale": (0.5, 0.4)}),
    ("scale", {"scale": (0.5, 1.1)}),
    ("scale", {"scale": (math.nan, 1.0)}),
    ("ratio", {"ratio": (0.0, 1.0)}),
    ("ratio", {"ratio": (2.0, 1.0)}),
    ("ratio", {"ratio": (1.0, math.inf)}),
    ("hflip", {"hflip": -0.1}),
    ("hflip", {"hflip": 1.1}),
    ("hflip", {"hflip": math.nan}),
    ("std", {"mean": (0.5, 0.5, 0.5)}),
    ("std", {"std": (0.5, 0.5, 0.5)}),
    ("std", {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.0, 0.5)}),
    ("std", {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5)}),
    ("mean", {"mean": (0.5,), "std": (0.5, 0.5, 0.5)}),
    ("pad", {"pad": -1}),
    ("crop_fraction", {"crop_fraction": 0.0}),
    ("crop_fraction", {"crop_fraction": 1.01}),
]


@pytest.mark.parametrize(("name", "values"), REFUSED, ids=[str(values) for _, values in REFUSED])
def test_a_value_out_of_its_range_is_refused_by_name(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"Recipe: expected .*, got {name}="):
        Recipe(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"size": 1, "crop": "center", "crop_fraction": 1.0},
        {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "hflip": 1.0, "pad": 0},
        {"dtype": "bfloat16", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)},
    ],
)
def test_the_ends_of_the_ranges_are_accepted(values: dict[str, Any]) -> None:
    recipe = Recipe(**values)
    assert all(getattr(recipe, name) == value for name, value in values.items())


# --- random draws ---------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [*PRESETS.values(), RANDOM], ids=[*PRESETS, "antialias"])
def test_draws_have_their_declared_types_also_for_no_samples(recipe: Recipe) -> None:
    for count in (0, 1, 5):
        draws = draw_many(recipe, 300, 200, count)
        assert (draws.boxes.dtype, draws.boxes.shape) == (np.float32, (count, 4))
        assert (draws.flips.dtype, draws.flips.shape) == (np.bool_, (count,))
        assert (draws.reductions.dtype, draws.reductions.shape) == (np.uint8, (count,))


@pytest.mark.parametrize("name", PRESETS)
def test_a_samples_draw_depends_on_nothing_but_key_index_and_size(name: str) -> None:
    recipe, generator = PRESETS[name], np.random.default_rng(0)
    indices = generator.permutation(10**12 + np.arange(200))
    sizes = generator.integers(40, 1200, (200, 2)).astype(np.int32)
    together = draw(recipe, 77, indices, sizes)
    order = generator.permutation(200)
    shuffled = draw(recipe, 77, indices[order], sizes[order])
    for one, other in zip(together, shuffled, strict=True):
        assert np.array_equal(one[order], other)
    for i in range(0, 200, 20):
        alone = draw(recipe, 77, indices[i : i + 1], sizes[i : i + 1])
        for one, other in zip(together, alone, strict=True):
            assert np.array_equal(one[i : i + 1], other)


def test_other_epochs_seeds_and_samples_are_drawn_anew() -> None:
    keys = [draw_key(0, 0), draw_key(0, 1), draw_key(1, 0)]
    assert len(set(keys)) == 3
    sizes = sizes_of(500, 375, 1000)
    boxes = [draw(RANDOM, key, np.arange(1000), sizes).boxes for key in keys]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (boxes[one] == boxes[other]).all(axis=1).mean() < 0.01
        assert abs(np.corrcoef(boxes[one][:, 2], boxes[other][:, 2])[0, 1]) < 5 / 1000**0.5
    assert len(np.unique(boxes[0], axis=0)) > 990
    assert abs(np.corrcoef(boxes[0][:-1, 2], boxes[0][1:, 2])[0, 1]) < 5 / 1000**0.5


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_random_boxes_lie_inside_with_the_area_and_ratio_asked_for(width: int, height: int) -> None:
    recipe = replace(RANDOM, scale=(0.2, 0.7), ratio=(0.6, 1.4))
    left, top, w, h = draw_many(recipe, width, height, 3000).boxes.T.astype(np.float64)
    for values in (left, top, w, h):
        assert np.array_equal(values, np.rint(values))
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left + w <= width).all()
    assert (top + h <= height).all()
    # Width and height were rounded by up to half a pixel each.
    assert ((w + 0.5) * (h + 0.5) >= 0.2 * width * height).all()
    assert ((w - 0.5) * (h - 0.5) <= 0.7 * width * height).all()
    assert ((w + 0.5) / (h - 0.5) >= 0.6).all()
    assert ((w - 0.5) / (h + 0.5) <= 1.4).all()


def kolmogorov_smirnov(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The largest gap between two empirical distribution functions."""
    points = np.sort(np.concatenate([one, other]))
    below = [np.searchsorted(np.sort(x), points, "right") / x.size for x in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize(("width", "height"), [(500, 375), (300, 700), (64, 64)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 1.0)])
def test_random_boxes_are_distributed_as_torchvisions(
    width: int, height: int, scale: tuple[float, float]
) -> None:
    count = 3000
    torch.manual_seed(0)
    image = torch.empty(1, height, width)
    drawn = [RandomResizedCrop.get_params(image, list(scale), [3 / 4, 4 / 3]) for _ in range(count)]
    top, left, h, w = np.array(drawn, np.float64).T
    ours = draw_many(replace(RANDOM, scale=scale), width, height, count).boxes.astype(np.float64)
    # 1.95 * sqrt(2 / n) is the two-sample test's critical value at a level of 0.001.
    limit = 1.95 * math.sqrt(2 / count)
    for mine, theirs in (
        (ours[:, 0], left),
        (ours[:, 1], top),
        (ours[:, 2], w),
        (ours[:, 3], h),
        (ours[:, 2] * ours[:, 3], w * h),
        (ours[:, 2] / ours[:, 3], w / h),
        (ours[:, 0] + ours[:, 2] / 2, left + w / 2),
    ):
        assert kolmogorov_smirnov(mine, theirs) < limit
        assert abs(mine.mean() - theirs.mean()) < 5 * theirs.std() * math.sqrt(2 / count)


@pytest.mark.parametrize(
    ("width", "height"), [(600, 20), (20, 600), (1, 50), (50, 1), (3001, 17), (17, 3001)]
)
def test_an_image_too_long_for_any_box_gets_torchvisions_central_box(
    width: int, height: int
) -> None:
    # No box with 8 % of the area and a ratio of up to 4/3 fits, so all tries fail, theirs and ours.
    top, left, h, w = RandomResizedCrop.get_params(
        torch.empty(1, height, width), [0.08, 1.0], [3 / 4, 4 / 3]
    )
    boxes = draw_many(RANDOM, width, height, 50).boxes
    assert boxes.tolist() == [[left, top, w, h]] * 50


def test_an_image_within_the_ratios_that_takes_no_box_is_taken_whole() -> None:
    # The only box of the whole area with a ratio in range is the image itself, and a try hits its
    # exact shape with a probability below 0.1 %.
    recipe = replace(RANDOM, scale=(1.0, 1.0))
    boxes = draw_many(recipe, 4000, 3200, 200).boxes
    whole = (boxes == [0, 0, 4000, 3200]).all(axis=1)
    assert whole.mean() > 0.95
    torch.manual_seed(0)
    image = torch.empty(1, 3200, 4000)
    drawn = [RandomResizedCrop.get_params(image, [1.0, 1.0], [3 / 4, 4 / 3]) for _ in range(20)]
    assert drawn.count((0, 0, 3200, 4000)) > 15


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    low=st.sampled_from([0.1, 0.75, 1.0, 3.0]),
    high=st.sampled_from([0.2, 1.0, 4 / 3, 4.0]),
    size=st.sampled_from([1, 4, 32]),
    antialias=st.booleans(),
)
@example(width=1, height=1, low=3.0, high=4.0, size=4, antialias=False)
def test_random_boxes_of_small_images_are_inside_and_never_empty(
    width: int, height: int, low: float, high: float, size: int, antialias: bool
) -> None:
    ratio = (min(low, high), max(low, high))
    recipe = Recipe(size=size, crop="random_resized", ratio=ratio, antialias=antialias)
    left, top, w, h = draw_many(recipe, width, height, 20).boxes.T
    assert left.min() >= 0
    assert top.min() >= 0
    assert (left + w).max() <= width
    assert (top + h).max() <= height
    assert w.min() >= 1
    assert h.min() >= 1


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("crop", ["random_resized", "random_pad", "center", "none"])
def test_flips_are_as_frequent_as_asked_for(probability: float, crop: str) -> None:
    count = 20_000
    recipe = Recipe(size=32, crop=crop, hflip=probability)
    flips = draw_many(recipe, 64, 48, count).flips
    spread = 5 * math.sqrt(count * probability * (1 - probability))
    assert abs(flips.sum() - count * probability) <= spread


def test_flips_have_nothing_to_do_with_boxes() -> None:
    draws = draw_many(replace(RANDOM, hflip=0.5), 500, 375, 20_000)
    for column in range(4):
        correlation = np.corrcoef(draws.flips, draws.boxes[:, column])[0, 1]
        assert abs(correlation) < 5 / 20_000**0.5


def fraction(key: int, lane: int) -> float:
    """Output ``lane`` of SplitMix64 in [0, 1); tests/test_hashing.py has the published vectors."""
    return float(uniform(key, np.array([lane], np.uint64))[0])


def scalar_draw(key: int, width: int, height: int) -> list[int]:
    """torchvision's get_params, one number after the other; four numbers a try, ten tries."""
    for lane in range(0, 40, 4):
        area = width * height * (0.08 + 0.92 * fraction(key, lane))
        low, high = math.log(3 / 4), math.log(4 / 3)
        aspect = math.exp(low + (high - low) * fraction(key, lane + 1))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            x = int(fraction(key, lane + 2) * (width - w + 1))
            return [x, int(fraction(key, lane + 3) * (height - h + 1)), w, h]
    raise AssertionError("the sizes below always take a box")


def test_crops_and_flips_never_change_between_releases() -> None:
    # A resumed epoch, and a run that is repeated with a newer release, must draw the same.
    sizes = np.array([[500, 375], [97, 61], [700, 1300]], np.int32)
    indices = np.arange(300) * 7
    draws = draw(replace(RANDOM, hflip=0.5), draw_key(11, 5), indices, np.tile(sizes, (100, 1)))
    epoch = derive_key(11, 2, 5)  # 2 is the purpose word of draws
    for i, index in enumerate(indices.tolist()):
        key = int(hash64(epoch, np.array([index], np.uint64))[0])
        width, height = sizes[i % 3].tolist()
        assert draws.boxes[i].tolist() == scalar_draw(key, width, height)
        assert draws.flips[i] == (fraction(key, 40) < 0.5)


def test_every_sample_has_a_seed_of_its_own() -> None:
    seeds = sample_seeds(draw_key(0, 0), np.arange(10_000))
    assert seeds.dtype == np.uint64
    assert np.unique(seeds).size == 10_000
    assert sample_seeds(draw_key(0, 0), np.array([17, 3])).tolist() == seeds[[17, 3]].tolist()
    assert not np.intersect1d(seeds, sample_seeds(draw_key(0, 1), np.arange(10_000))).size
    assert not np.intersect1d(seeds, sample_seeds(draw_key(1, 0), np.arange(10_000))).size
    # Nor the key of its own crop, or the user's numbers would be related to the box.
    assert not np.intersect1d(
        seeds, hash64(draw_key(0, 0), np.arange(10_000).astype(np.uint64))
    ).size


# --- random_pad -----------------------------------------------------------------------------------


def test_a_padded_crop_is_equally_often_at_every_place() -> None:
    # 32 + 2 * 4 - 32 leaves 9 places in each direction.
    draws = draw_many(PRESETS["cifar-train"], 32, 32, 81 * 100)
    x, y = draws.boxes[:, 0].astype(np.int64), draws.boxes[:, 1].astype(np.int64)
    assert (x.min(), x.max(), y.min(), y.max()) == (-4, 4, -4, 4)
    assert chi_square(np.bincount((x + 4) * 9 + y + 4, minlength=81)) < bound(81)
    assert (draws.boxes[:, 2:] == 32).all()
    assert (draws.reductions == 1).all()


@pytest.mark.parametrize(("width", "height", "pad"), [(40, 36, 4), (33, 50, 0), (300, 32, 2)])
def test_a_padded_crop_stays_within_the_padding(width: int, height: int, pad: int) -> None:
    recipe = Recipe(size=32, crop="random_pad", pad=pad)
    x, y = draw_many(recipe, width, height, 5000).boxes[:, :2].T
    assert set(y.tolist()) == set(range(-pad, height + pad - 32 + 1))
    assert (x.min(), x.max()) == (-pad, width + pad - 32)
    # Large images are not reduced: the box is cut at the image's own scale.
    assert (draw_many(recipe, 900, 700, 10).reductions == 1).all()


@pytest.mark.parametrize(("width", "height"), [(20, 20), (21, 10), (23, 200), (1, 1)])
def test_an_image_smaller_than_the_crop_even_with_padding_is_centred(
    width: int, height: int
) -> None:
    boxes = draw_many(PRESETS["cifar-train"], width, height, 100).boxes
    for low, side in ((boxes[:, 0], width), (boxes[:, 1], height)):
        if side + 8 < 32:
            before, after = -low, low + 32 - side  # black on either side
            assert (np.abs(before - after) <= 1).all()


# --- center ---------------------------------------------------------------------------------------


def torchvisions_box(width: int, height: int, resize: int, size: int) -> NDArray[np.float64]:
    """The box of Resize(resize) and CenterCrop(size) in the source, from torchvision's shapes."""
    resized = tv.resize(torch.empty(1, height, width, dtype=torch.uint8), [resize])
    h, w = resized.shape[1:]
    corner = int(tv.center_crop(torch.arange(h * w).reshape(1, h, w), [size, size])[0, 0, 0])
    top, left = divmod(corner, w)
    x, y = width / w, height / h
    return np.array([left * x, top * y, size * x, size * y])


CENTER_SHAPES = [
    *SHAPES,
    (256, 256),
    (512, 512),
    (75, 100),
    (333, 257),
    (257, 333),
    (1000, 75),
    (60, 1001),
    (481, 321),
]


@pytest.mark.parametrize(("width", "height"), CENTER_SHAPES)
@pytest.mark.parametrize(("size", "fraction", "resize"), [(224, 0.875, 256), (160, 0.95, 168)])
def test_center_boxes_are_those_of_torchvisions_resize_and_center_crop(
    width: int, height: int, size: int, fraction: float, resize: int
) -> None:
    expected = torchvisions_box(width, height, resize, size)
    recipe = Recipe(size=size, crop="center", crop_fraction=fraction, antialias=True)
    exact = draw_many(recipe, width, height, 2)
    assert np.allclose(exact.boxes, expected, rtol=1e-6, atol=1e-4)
    assert (exact.reductions == 1).all()
    # Without antialias: to whole pixels, then to the reduction's grid, and never outside.
    box, factor = (
        values[0] for values in draw_many(replace(recipe, antialias=False), width, height, 1)[::2]
    )
    assert np.array_equal(box, np.rint(box))
    assert (np.abs(box - expected) < 0.5 + 1e-3 + (factor - 1)).all()
    assert box[:2].min() >= 0
    assert box[0] + box[2] <= width
    assert box[1] + box[3] <= height


def test_a_center_box_of_a_small_image_is_inside_and_not_empty() -> None:
    shapes = [(1, 1000), (1000, 1), (1, 1), (2, 3), (4, 4), (7, 9)]
    for (width, height), fraction in itertools.product(shapes, (0.1, 0.3, 0.875, 1.0)):
        recipe = replace(PRESETS["imagenet-eval"], crop_fraction=fraction)
        box = draw_many(recipe, width, height, 1).boxes[0]
        assert box[2:].min() >= 1
        assert box[:2].min() >= 0
        assert box[0] + box[2] <= width
        assert box[1] + box[3] <= height


# --- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 64, 224])
@pytest.mark.parametrize("crop", ["random_resized", "none"])
def test_the_reduction_is_the_largest_that_leaves_the_box_at_least_the_output(
    size: int, crop: str
) -> None:
    found = set()
    for width, height in [*SHAPES, (1000, 950), (5, 4), (3, 2), (1, 1)]:
        recipe = Recipe(size=size, crop=crop, antialias=True)
        before = draw_many(recipe, width, height, 300).boxes
        after = draw_many(replace(recipe, antialias=False), width, height, 300)
        for old, new, factor in zip(*(before, after.boxes, after.reductions), strict=True):
            largest = max(f for f in (1, 2, 4, 8) if f == 1 or min(old[2:]) >= f * size)
            assert factor == largest
            assert new.tolist() == [value // factor * factor for value in old.tolist()]
            assert factor == 1 or min(new[2:]) / factor >= size
            found.add(int(factor))
    assert found == {1, 2, 4, 8}  # the sizes bring up all of them


@pytest.mark.parametrize(
    ("shape", "factor"),
    [((900, 700), 2), ((1024, 1024), 4), ((4000, 3000), 8), ((640, 480), 1), ((512, 512), 2)],
)
def test_center_boxes_of_large_images_are_reduced(shape: tuple[int, int], factor: int) -> None:
    draws = draw_many(PRESETS["imagenet-eval"], *shape, 1)
    # The box is 7/8 of the short side: 612, 896, 2625, 420 and 448 pixels against 224.
    assert draws.reductions.tolist() == [factor]
    assert (draws.boxes % factor == 0).all()
    assert (draws.boxes[:, 2:] >= factor * 224).all()


def test_without_a_size_the_whole_image_is_kept() -> None:
    draws = draw_many(PRESETS["raw"], 4001, 2999, 1)
    assert draws.boxes.tolist() == [[0, 0, 4001, 2999]]
    assert draws.reductions.tolist() == [1]
    assert draws.flips.tolist() == [False]
