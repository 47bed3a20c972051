"""BatchPlan: all that an engine is told about a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.recipe import Recipe, draw

__all__ = ["BatchPlan", "join_plans", "plan_batches"]


@dataclass(frozen=True)
class BatchPlan:
    """What a batch of B samples contains, decided before any pixel is touched.

    Attributes:
        key: of the epoch's draws; with an index it names all of a sample's random numbers.
        indices: int64 [B], dataset indices.
        boxes, flips, reductions: see :class:`fastdata.recipe.Draws`; None where the image sizes
            are not known in advance (a plain folder): whoever reads the headers calls
            :meth:`with_sizes`, and gets what would have been planned.
    """

    key: int
    indices: NDArray[np.int64]
    boxes: NDArray[np.float32] | None = None
    flips: NDArray[np.bool_] | None = None
    reductions: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self) -> list[tuple[int, Any, bool, int]]:
        """(index, box, flip, reduction) of each sample as plain Python values, which a loop over
        single samples handles faster than arrays."""
        assert self.boxes is not None
        assert self.flips is not None
        assert self.reductions is not None
        boxes: list[Any] = self.boxes.tolist()
        columns = self.indices.tolist(), map(tuple, boxes), self.flips.tolist()
        return list(zip(*columns, self.reductions.tolist(), strict=True))

    def unscaled(self, height: int, width: int) -> bool:
        """Whether every box has the size of the output, so that pixels are only copied."""
        assert self.boxes is not None
        return bool((self.boxes[:, 2:] == (width, height)).all())

    def with_sizes(self, recipe: Recipe, sizes: NDArray[np.int32]) -> BatchPlan:
        """The same plan with its draws made for images of ``sizes`` (int32 [B, 2])."""
        boxes, flips, reductions = draw(recipe, self.key, self.indices, sizes)
        return replace(self, boxes=boxes, flips=flips, reductions=reductions)


def join_plans(plans: list[BatchPlan]) -> BatchPlan:
    """The plan of several batches of an epoch as of one."""
    if len(plans) == 1:
        return plans[0]
    columns = [(plan.indices, plan.boxes, plan.flips, plan.reductions) for plan in plans]
    joined: list[Any] = [
        None if parts[0] is None else np.concatenate(parts) for parts in zip(*columns, strict=True)
    ]
    return BatchPlan(plans[0].key, *joined)


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
    if sizes is None or not batches:
        return [BatchPlan(key, indices) for indices in batches]
    indices = np.concatenate(batches)
    boxes, flips, reductions = draw(recipe, key, indices, sizes[indices])
    plans, start = [], 0
    for batch in batches:
        part = slice(start, start + len(batch))
        plans.append(BatchPlan(key, batch, boxes[part], flips[part], reductions[part]))
        start += len(batch)
    return plans
