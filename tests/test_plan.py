"""BatchPlan: the plans of many batches at once are those of each batch alone."""

from __future__ import annotations

import numpy as np
import pytest

from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import PRESETS, draw, draw_key

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


def test_no_batches_are_no_plans() -> None:
    assert plan_batches(PRESETS["raw"], KEY, [], SIZES) == []
    assert plan_batches(PRESETS["raw"], KEY, [], None) == []


def test_a_plan_is_as_long_as_its_batch() -> None:
    assert len(BatchPlan(KEY, np.arange(5))) == 5
