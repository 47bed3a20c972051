"""BatchPlan: all that an engine is told about a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastdata.adjust import Adjustments, draw_adjustments
from fastdata.recipe import Recipe, draw

__all__ = [
    "BatchPlan",
    "Planning",
    "is_one_row",
    "join_adjustments",
    "join_plans",
    "plan_batches",
    "plan_samples",
    "split_plan",
]

Planning = Literal["here", "thread", "process"]
"""Where plans are made: by the training's thread when they are asked for; or beside it, in another
thread or in a process."""


@dataclass(frozen=True)
class BatchPlan:
    """What a batch of B samples contains, decided before any pixel is touched.

    Attributes:
        key: of the epoch's draws; with an index it names all of a sample's random numbers.
        indices: int64 [B], dataset indices.
        boxes, flips, reductions: see :class:`fastdata.recipe.Draws`; None where the image sizes
            are not known in advance (a plain folder): whoever reads the headers calls
            :meth:`with_sizes`, and gets what would have been planned.
        adjustments: what comes after crop and flip; None where the recipe has nothing of it.
    """

    key: int
    indices: NDArray[np.int64]
    boxes: NDArray[np.float32] | None = None
    flips: NDArray[np.bool_] | None = None
    reductions: NDArray[np.uint8] | None = None
    adjustments: Adjustments | None = None

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def rows(self) -> list[tuple[int, Any, bool, int]]:
        """(index, box, flip, reduction) of each sample as plain Python values, which a loop over
        single samples handles faster than arrays. To make them takes as long as some small images
        do."""
        assert self.boxes is not None
        assert self.flips is not None
        assert self.reductions is not None
        boxes: list[Any] = self.boxes.tolist()
        columns = self.indices.tolist(), map(tuple, boxes), self.flips.tolist()
        return list(zip(*columns, self.reductions.tolist(), strict=True))

    def unscaled(self, height: int, width: int) -> bool:
        """Whether every box has the size of the output, so that pixels are only copied."""
        assert self.boxes is not None
        boxes = self.boxes[:1] if is_one_row(self.boxes) else self.boxes
        return bool((boxes[:, 2:] == (width, height)).all())

    def take(self, slots: NDArray[np.int64]) -> BatchPlan:
        """The plan of some of its samples."""
        columns = (self.boxes, self.flips, self.reductions)
        boxes, flips, reductions = (None if each is None else each[slots] for each in columns)
        adjustments = None if self.adjustments is None else self.adjustments.take(slots)
        taken: Any = (boxes, flips, reductions, adjustments)
        return BatchPlan(self.key, self.indices[slots], *taken)

    def with_sizes(self, recipe: Recipe, sizes: NDArray[np.int32]) -> BatchPlan:
        """The same plan with its draws made for images of ``sizes`` (int32 [B, 2])."""
        boxes, flips, reductions = draw(recipe, self.key, self.indices, sizes)
        return replace(self, boxes=boxes, flips=flips, reductions=reductions)


def join_plans(plans: Sequence[BatchPlan]) -> BatchPlan:
    """The plan of several batches of an epoch as of one."""
    if len(plans) == 1:
        return plans[0]
    columns = [(plan.indices, plan.boxes, plan.flips, plan.reductions) for plan in plans]
    indices, boxes, flips, reductions = map(_join, zip(*columns, strict=True))
    adjustments = join_adjustments(plans)
    return BatchPlan(plans[0].key, indices, boxes, flips, reductions, adjustments)


def _join(parts: Sequence[Any]) -> Any:
    if parts[0] is None:
        return None
    if all(map(is_one_row, parts)):
        return np.broadcast_to(parts[0][:1], (sum(map(len, parts)), *parts[0].shape[1:]))
    return np.concatenate(parts)


def join_adjustments(plans: Sequence[BatchPlan]) -> Adjustments | None:
    """The adjustments of several batches of an epoch, one after the other."""
    parts = [plan.adjustments for plan in plans if plan.adjustments is not None]
    if not parts:
        return None
    factors, erased = zip(*parts, strict=True)
    return Adjustments(np.concatenate(factors), np.concatenate(erased))


def plan_batches(
    recipe: Recipe,
    key: int,
    batches: list[NDArray[np.int64]],
    sizes: NDArray[np.int32] | None,
) -> list[BatchPlan]:
    """Plan several batches at once, which costs hardly more than one.

    Args:
        recipe: what to do to a sample.
        key: of the epoch, see :func:`fastdata.recipe.draw_key`.
        batches: dataset indices of each batch, int64 arrays.
        sizes: int32 [N, 2] of the whole dataset, or None where they are not known in advance.
    """
    if not batches:
        return []
    plan = plan_samples(recipe, key, np.concatenate(batches), sizes)
    return split_plan(plan, [len(batch) for batch in batches])


def plan_samples(
    recipe: Recipe, key: int, indices: NDArray[np.int64], sizes: NDArray[np.int32] | None
) -> BatchPlan:
    """:func:`plan_batches`, of all samples as of one batch."""
    adjustments = draw_adjustments(recipe, key, indices)
    if sizes is None:
        return BatchPlan(key, indices, adjustments=adjustments)
    boxes, flips, reductions = draw(recipe, key, indices, _sizes_of(sizes, indices))
    return BatchPlan(key, indices, boxes, flips, reductions, adjustments)


def split_plan(plan: BatchPlan, lengths: Sequence[int]) -> list[BatchPlan]:
    """The plans of batches of ``lengths`` samples, one after the other in ``plan``."""
    every: list[Any] = [plan.indices, plan.boxes, plan.flips, plan.reductions]
    columns = [column for column in every if column is not None]
    plans, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        one = BatchPlan(plan.key, *(column[part] for column in columns))
        if plan.adjustments is not None:
            one = replace(one, adjustments=plan.adjustments.take(part))
        plans.append(one)
        start += length
    return plans


def _sizes_of(sizes: NDArray[np.int32], indices: NDArray[np.int64]) -> NDArray[np.int32]:
    """The rows ``indices`` of ``sizes``."""
    if is_one_row(sizes):  # which ``take`` would first write out for each sample
        return np.broadcast_to(sizes[0], (len(indices), 2))
    return sizes.take(indices, axis=0)


def is_one_row(column: NDArray[Any]) -> bool:
    """Whether it is one row, seen again for each sample, as where all images are of one size."""
    return column.strides[0] == 0
