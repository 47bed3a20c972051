"""Kernels: crop, reduce, resize, flip and normalise a batch in one pass over its output.

``crop`` exists twice, with one signature: in :mod:`fastdata.kernels.crop_triton`, and in
:mod:`fastdata.kernels.crop_torch`, the reference that it is tested against and what runs where
Triton is missing. Both are told about a batch by one table, see :func:`crop_table`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdata.plan import BatchPlan

__all__ = ["COLUMNS", "crop_table", "staging_stride"]

COLUMNS = 8
"""Of the table: where the image begins in the source, left, top, width and height of its box,
flip + 2 * reduction, its index in the dataset, and where it begins in a staging buffer."""


def crop_table(plan: BatchPlan, image_bytes: int, table: NDArray[np.int64]) -> None:
    """Fill the table of a batch.

    Args:
        plan: of B samples.
        image_bytes: size of an image in the source, which holds the dataset's images in a row.
        table: int64 [B, COLUMNS].
    """
    assert plan.boxes is not None
    assert plan.flips is not None
    assert plan.reductions is not None
    np.multiply(plan.indices, image_bytes, out=table[:, 0])
    table[:, 1:5] = plan.boxes  # whole numbers, but for recipes with antialias
    np.multiply(plan.reductions, 2, out=table[:, 5], casting="unsafe")
    table[:, 5] += plan.flips
    table[:, 6] = plan.indices
    # In staging an image begins at the same remainder of 4, so that it is copied by whole words.
    table[:, 7] = np.arange(len(plan), dtype=np.int64) * staging_stride(image_bytes)
    table[:, 7] += table[:, 0] & 3


def staging_stride(image_bytes: int) -> int:
    """Bytes between two images in a staging buffer: room for an image at any remainder of 4, and
    for the rest of its last word."""
    return (image_bytes + 3 + 15) // 16 * 16 + 16
