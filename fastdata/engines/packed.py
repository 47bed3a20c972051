"""Packed crops: what workers send where the device scales.

A worker decodes and cuts; scaling, mirroring and normalising are the kernel's. A crop of a small
image is no larger than the output, so no more bytes travel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdata.decode import PixelBuffer
from fastdata.engines import Settings
from fastdata.engines.samples import EncodedSamples, fault_of
from fastdata.kernels import COLUMNS

__all__ = ["can_pack", "pack_crops", "slot_bytes"]

_SPARE = 1.25  # of a slot: crops differ, and some larger than the output find room, too


def can_pack(settings: Settings) -> bool:
    """Whether the device can finish crops of this dataset and recipe."""
    recipe = settings.recipe
    return (
        settings.dataset.encoded
        and settings.transform is None
        and recipe.size is not None
        and recipe.crop != "random_pad"
        and not recipe.antialias
    )


def slot_bytes(batch_size: int, side: int) -> int:
    """Room for the crops of a batch: at least for all of them at the size of the output."""
    return int(batch_size * side * side * 3 * _SPARE)


def pack_crops(
    samples: EncodedSamples,
    memory: NDArray[np.uint8],
    side: int,
    buffer: PixelBuffer,
    faults: dict[int, str],
) -> tuple[NDArray[np.int64], int]:
    """Put the crops of a plan into memory, one after the other.

    Args:
        samples: of the plan.
        memory: uint8 [bytes], see :func:`slot_bytes`.
        side: of the output.
        buffer: for the decoder.
        faults: slots of the plan that have failed; those that fail here are added.

    Returns:
        The table for the kernel, int64 [B, COLUMNS], and how many bytes are used.
    """
    plan = samples.plan
    assert plan.flips is not None
    table = np.zeros((len(plan), COLUMNS), np.int64)
    table[:, 5] = 2 + plan.flips  # nothing is left to be reduced
    table[:, 6] = plan.indices
    place, least = 0, side * side * 3
    for slot in range(len(plan)):
        if slot in faults:
            continue
        # Every crop behind this one has room at the size of the output.
        end = len(memory) - least * (len(plan) - 1 - slot)
        try:
            width, height = samples.cut(slot, memory[place:end], side, buffer)
        except (OSError, ValueError) as error:
            faults[slot] = fault_of(error)
            continue
        table[slot, [0, 3, 4]] = place, width, height
        place += 3 * width * height
    return table, place
