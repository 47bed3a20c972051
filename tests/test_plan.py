"""BatchPlan: the plans of many batches at once are those of each batch alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fastdata.plan import BatchPlan, join_plans, plan_batches
from fastdata.recipe import PRESETS, Recipe, draw, draw_key

KEY = draw_key(3, 1)
SIZES = np.random.default_rng(0).integers(40, 1200, (50, 2)).astype(np.int32)
BATCHES = [np.array([7, 49, 0, 7]), np.array([3]), np.empty(0, np.int64), np.array([12, 11])]


@pytest.mark.parametrize("name", PRESETS)
def test_each_batch_is_drawn_as_if_it_were_alone(name: str) -> None:
    recipe = PRESETS[name]
    plans = plan_batches(recipe, KEY, BATCHES, SIZES)
    assert len(plans) == len(BATCHES)
    for plan, indices in zip(plans, BATCHES, strict=True):
        boxes, flips, reductions = draw(recipe, KEY, indices, SIZES[indices])
        assert plan.key == KEY
        assert np.array_equal(plan.indices, indices)
        assert len(plan) == len(indices)
        assert plan.boxes is not None
        assert plan.flips is not None
        assert plan.reductions is not None
        assert np.array_equal(plan.boxes, boxes)
        assert np.array_equal(plan.flips, flips)
        assert np.array_equal(plan.reductions, reductions)


def test_plans_without_sizes_are_completed_to_what_would_have_been_planned() -> None:
    recipe = PRESETS["imagenet-train"]
    known = plan_batches(recipe, KEY, BATCHES, SIZES)
    for plan, expected in zip(plan_batches(recipe, KEY, BATCHES, None), known, strict=True):
        assert (plan.boxes, plan.flips, plan.reductions) == (None, None, None)
        full = plan.with_sizes(recipe, SIZES[plan.indices])
        assert full.key == expected.key
        assert np.array_equal(full.indices, expected.indices)
        for name in ("boxes", "flips", "reductions"):
            assert np.array_equal(getattr(full, name), getattr(expected, name))
        assert plan.boxes is None  # completing makes a new plan


@pytest.mark.parametrize("sizes", [SIZES, None])
def test_joined_plans_are_the_plan_of_one_batch(sizes: np.ndarray | None) -> None:
    recipe = PRESETS["imagenet-train"]
    joined = join_plans(plan_batches(recipe, KEY, BATCHES, sizes))
    expected = plan_batches(recipe, KEY, [np.concatenate(BATCHES)], sizes)[0]
    assert joined.key == KEY
    for name in ("indices", "boxes", "flips", "reductions"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(expected, name))


@pytest.mark.parametrize("sizes", [SIZES, None])
def test_a_plan_of_some_samples_is_theirs(sizes: np.ndarray | None) -> None:
    recipe = replace(PRESETS["imagenet-train"], brightness=0.4)
    (plan,) = plan_batches(recipe, KEY, [np.array([7, 49, 0, 12])], sizes)
    (expected,) = plan_batches(recipe, KEY, [np.array([12, 49])], sizes)
    taken = plan.take(np.array([3, 1]))
    assert taken.key == KEY
    for name in ("indices", "boxes", "flips", "reductions"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(expected, name))
    assert taken.adjustments is not None
    assert expected.adjustments is not None
    np.testing.assert_array_equal(taken.adjustments.factors, expected.adjustments.factors)


def test_a_plan_is_unscaled_where_every_box_has_the_outputs_size() -> None:
    boxes = np.array([[0, 0, 32, 24], [-4, 3, 32, 24]], np.float32)
    plan = BatchPlan(KEY, np.arange(2), boxes, np.zeros(2, bool), np.ones(2, np.uint8))
    assert plan.unscaled(height=24, width=32)
    assert not plan.unscaled(height=32, width=24)
    boxes[1, 2] = 31
    assert not plan.unscaled(height=24, width=32)


@pytest.mark.parametrize(
    "recipe",
    [
        PRESETS["imagenet-train"],
        PRESETS["imagenet-eval"],
        PRESETS["cifar-train"],
        Recipe(size=60, hflip=0.5),
    ],
)
def test_one_size_for_all_is_as_good_as_one_for_each(recipe: Recipe) -> None:
    one = np.array([[300, 260]], np.int32)
    plans = plan_batches(recipe, KEY, BATCHES, np.broadcast_to(one, (50, 2)))
    written_out = plan_batches(recipe, KEY, BATCHES, np.tile(one, (50, 1)))
    pairs = zip([*plans, join_plans(plans)], [*written_out, join_plans(written_out)], strict=True)
    for plan, expected in pairs:
        np.testing.assert_array_equal(plan.boxes, expected.boxes)
        np.testing.assert_array_equal(plan.flips, expected.flips)
        np.testing.assert_array_equal(plan.reductions, expected.reductions)
        for side in (60, 300):
            assert plan.unscaled(side, side) == expected.unscaled(side, side)


def test_no_batches_are_no_plans() -> None:
    assert plan_batches(PRESETS["raw"], KEY, [], SIZES) == []
    assert plan_batches(PRESETS["raw"], KEY, [], None) == []


def test_a_plan_is_as_long_as_its_batch() -> None:
    assert len(BatchPlan(KEY, np.arange(5))) == 5
