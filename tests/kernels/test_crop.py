"""The kernels against numpy: boxes, reduction, bilinear, mirror, normalisation.

Triton's run on the GPU where there is one, else in its interpreter, on the CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata.kernels import COLUMNS, crop_table, staging_stride
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")

HEIGHT, WIDTH, COUNT = 37, 45, 7
SCALE, BIAS = np.array([0.02, 0.018, 0.017]), np.array([-2.1, -2.0, -1.8])
RECIPES = {
    "random-resized": Recipe(size=11, crop="random_resized", hflip=0.5),
    "enlarging": Recipe(size=21, crop="random_resized", scale=(0.01, 0.08), hflip=0.5),
    "padded": Recipe(size=12, crop="random_pad", pad=14, hflip=0.5),
    "center": Recipe(size=13, crop="center"),
    "reduced by 2": Recipe(size=14, crop="none", hflip=0.5),
    "reduced by 8": Recipe(size=2, crop="none", hflip=0.5),
}


@pytest.fixture(scope="module")
def images() -> NDArray[np.uint8]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)


def expected(image: NDArray[np.uint8], plan: BatchPlan, slot: int, side: int) -> NDArray[Any]:
    """What the rules of resampling make of a sample, float64 levels."""
    assert plan.boxes is not None
    assert plan.flips is not None
    assert plan.reductions is not None
    left, top, width, height = plan.boxes[slot].astype(int).tolist()
    factor, margin = int(plan.reductions[slot]), 64
    padded = np.pad(image.astype(np.float64), [(margin, margin), (margin, margin), (0, 0)])
    crop = padded[margin + top : margin + top + height, margin + left : margin + left + width]
    h, w = height // factor, width // factor
    crop = crop.reshape(h, factor, w, factor, 3).mean(axis=(1, 3))
    for axis, length in ((0, h), (1, w)):
        at = np.clip((np.arange(side) + 0.5) * length / side - 0.5, 0, length - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, length - 1)
        weight = (at - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        crop = np.take(crop, low, axis) * (1 - weight) + np.take(crop, high, axis) * weight
    return crop[:, ::-1] if plan.flips[slot] else crop


def make_plan(recipe: Recipe, key: int = 3) -> BatchPlan:
    indices = np.array([3, 0, 6, 1, 5], np.int64)
    sizes = np.tile(np.array([WIDTH, HEIGHT], np.int32), (len(indices), 1))
    return BatchPlan(key, indices).with_sizes(recipe, sizes)


def packed_rows(images: NDArray[np.uint8], table: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The rows of the boxes, one after the other, as the gather engine lays them out."""
    rows, length = [], 0
    for row in table:
        top, bottom = max(row[2], 0), min(row[2] + row[4], HEIGHT)
        row[7] = (length - top) * WIDTH * 3
        rows.append(images[row[6], top : max(top, bottom)].reshape(-1))
        length += max(0, bottom - top)
    return np.concatenate([*rows, np.zeros(8, np.uint8)])


@pytest.mark.parametrize("module", ["crop_triton", "crop_torch"])
@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        *(("whole", dtype) for dtype in (torch.uint8, torch.float32, torch.float16)),
        *((source, torch.uint8) for source in ("staged", "packed")),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_is_what_the_rules_say(
    name: str, dtype: torch.dtype, source: str, module: str, images: NDArray[np.uint8]
) -> None:
    kernels = importlib.import_module(f"fastdata.kernels.{module}")
    recipe, image_bytes = RECIPES[name], HEIGHT * WIDTH * 3
    side = recipe.size or 0
    plan = make_plan(recipe)
    host = crop_table([plan], image_bytes)
    pixels = torch.from_numpy(images.reshape(-1).copy())
    if source == "packed":
        pixels = torch.from_numpy(packed_rows(images, host))
    pixels, table = pixels.to(DEVICE), torch.from_numpy(host).to(DEVICE)
    if source == "staged":
        triton = importlib.import_module("fastdata.kernels.crop_triton")
        staging = torch.full(
            (len(plan) * staging_stride(image_bytes),), 99, dtype=torch.uint8, device=DEVICE
        )
        triton.stage(pixels.data_ptr(), table, (HEIGHT, WIDTH), staging)
        pixels = staging
    affine = torch.from_numpy(np.stack([SCALE, BIAS])).float().to(DEVICE)
    out = torch.zeros((len(plan), side, side, 3), dtype=dtype, device=DEVICE)
    kernels.crop(pixels, table, host, (HEIGHT, WIDTH), out, affine, staged=source != "whole")
    found = out.cpu().double().numpy()
    if dtype != torch.uint8:
        found = (found - BIAS) / SCALE  # back to levels
    for slot, index in enumerate(plan.indices.tolist()):
        error = np.abs(found[slot] - expected(images[index], plan, slot, side))
        rounding = 0.15 if dtype == torch.float16 else 1e-3
        assert error.max() <= 0.5 + rounding


def test_the_plans_of_these_tests_are_of_every_kind() -> None:
    plans = {name: make_plan(recipe) for name, recipe in RECIPES.items()}
    factors = {int(f) for plan in plans.values() for f in plan.reductions}  # type: ignore[union-attr]
    assert factors == {1, 2, 8}
    flips = {bool(flip) for plan in plans.values() for flip in plan.flips}  # type: ignore[union-attr]
    assert flips == {False, True}
    boxes = plans["padded"].boxes
    assert boxes is not None
    assert boxes[:, :2].min() < 0


def test_several_batches_have_one_table() -> None:
    plans = [make_plan(RECIPES["random-resized"], key) for key in (1, 2)]
    table = crop_table(plans, 1001)
    assert table.shape == (10, COLUMNS)
    for number, plan in enumerate(plans):
        part = table[5 * number : 5 * number + 5]
        np.testing.assert_array_equal(part, crop_table([plan], 1001))
        np.testing.assert_array_equal(part[:, 0], plan.indices * 1001)
        np.testing.assert_array_equal(part[:, 1:5], plan.boxes)
        np.testing.assert_array_equal(part[:, 5] >> 1, plan.reductions)
        np.testing.assert_array_equal(part[:, 5] & 1, plan.flips)
        np.testing.assert_array_equal(part[:, 6], plan.indices)
        starts = part[:, 7]
        np.testing.assert_array_equal(starts % 4, part[:, 0] % 4)
        assert (np.diff(starts) >= 1001).all()
        assert starts[-1] + 1001 + 3 <= 5 * staging_stride(1001)
