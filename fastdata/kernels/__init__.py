"""Kernels: crop, reduce, resize, flip and normalise a batch in one pass over its output; where a
recipe asks for it, colours and erasing in a second one.

``crop`` and ``adjust`` exist twice, with one signature: in ``crop_triton.py`` and
``adjust_triton.py``, and in ``crop_torch.py`` and ``adjust_torch.py``, the references that they are
tested against and what runs where Triton is missing. Both are told about a batch by one table, see
:func:`crop_table` and :func:`adjust_table`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastdata.adjust import Adjustments
from fastdata.plan import BatchPlan, join_plans

__all__ = ["ADJUST_COLUMNS", "COLUMNS", "adjust_table", "crop_table", "pack_rows", "staging_stride"]

ADJUST_COLUMNS = 8
COLUMNS = 8
"""Of the table: where the image begins in the source, left, top, width and height of its box,
flip + 2 * reduction, its index in the dataset, and where it begins in a staging buffer."""


def crop_table(plans: Sequence[BatchPlan], image_bytes: int) -> NDArray[np.int64]:
    """The table of several batches, one after the other: a few numpy calls for all of them.

    Args:
        plans: of the batches, N samples in all.
        image_bytes: size of an image in the source, which holds the dataset's images in a row.

    Returns:
        int64 [N, COLUMNS].
    """
    plan = join_plans(plans)
    assert plan.boxes is not None
    assert plan.flips is not None
    assert plan.reductions is not None
    slots = np.concatenate([np.arange(len(one)) for one in plans])
    columns = np.empty((COLUMNS, len(plan)), np.int64)  # a column's writes are one run
    np.multiply(plan.indices, image_bytes, out=columns[0])
    columns[1:5] = plan.boxes.T  # whole numbers, but for recipes with antialias
    np.multiply(plan.reductions, 2, out=columns[5])
    columns[5] += plan.flips
    columns[6] = plan.indices
    # In staging an image begins at the same remainder of 4, so that it is copied by whole words.
    np.bitwise_and(columns[0], 3, out=columns[7])
    columns[7] += slots * staging_stride(image_bytes)
    return np.ascontiguousarray(columns.T)


def pack_rows(
    table: NDArray[np.int64], image_size: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lay out a staging buffer that holds only the rows of a batch's boxes, one image after the
    other without gaps: sets the table's last column accordingly.

    Args:
        table: of one batch, see :func:`crop_table`.
        image_size: height and width of the source's images.

    Returns:
        For each sample the first of its rows, counted through all images of the source, and how
        many there are: int64 [B] each. A box that lies beside its image has none.
    """
    height, width = image_size
    top, bottom = np.maximum(table[:, 2], 0), np.minimum(table[:, 2] + table[:, 4], height)
    counts = np.maximum(bottom - top, 0)
    table[:, 7] = (np.cumsum(counts) - counts - top) * (width * 3)
    return table[:, 6] * height + top, counts


def adjust_table(adjustments: Adjustments) -> NDArray[np.float32]:
    """float32 [N, ADJUST_COLUMNS]: factors of brightness, contrast and saturation, and left, top,
    right and bottom of what is erased, in whole numbers."""
    table = np.zeros((len(adjustments.factors), ADJUST_COLUMNS), np.float32)
    table[:, :3] = adjustments.factors
    table[:, 3:7] = adjustments.erased
    table[:, 5:7] += table[:, 3:5]
    return table


def staging_stride(image_bytes: int) -> int:
    """Bytes between two images in a staging buffer: room for an image at any remainder of 4, and
    for the rest of its last word."""
    return (image_bytes + 3 + 15) // 16 * 16 + 16
