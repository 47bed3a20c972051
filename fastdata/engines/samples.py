"""The samples of one plan on the CPU: reading, decoding and resampling them into their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fastdata.dataset import Dataset
from fastdata.decode import Decode, PixelBuffer, decode_any, reduced
from fastdata.errors import FastdataError, StorageError
from fastdata.files import SYSTEM_FAULTS
from fastdata.formats import Reader
from fastdata.header import HeaderReader
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe
from fastdata.resample import copy_boxes, mirror, resample, resampling

__all__ = ["NO_SIZE", "EncodedSamples", "PixelSamples", "fault_of"]

_SMALL = 64 * 64  # pixels: a batch of them is one array
_READ_AT_ONCE = 32  # samples, each of which may hold a file open
NO_SIZE = (1, 1)  # stands in for a sample whose header cannot be read


class EncodedSamples:
    """The samples of a plan in a format of encoded images."""

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        decode: Decode,
        plan: BatchPlan,
        faults: dict[int, str],
        headers: HeaderReader,
    ) -> None:
        self._decode = decode
        self._how = resampling(recipe)
        self._reader: Reader = dataset.reader
        self._early: dict[int, bytes] = {}  # slot -> data that was read for its header
        self._unusual: set[int] = set()
        if dataset.plain:
            self.sizes = dataset.sizes[plan.indices].tolist()
        else:
            self.sizes = self._read_headers(plan, faults, headers)
            plan = plan.with_sizes(recipe, np.array(self.sizes, np.int32))
        self.plan = plan
        # Where the image is scaled first, the filter sees pixels below the box. And a decoder that
        # stops early is nearly blind to damage, which nobody has looked for in a plain folder.
        scaled_first = recipe.antialias and recipe.crop == "center"
        self._whole = scaled_first or not dataset.plain

    def _read_headers(
        self, plan: BatchPlan, faults: dict[int, str], headers: HeaderReader
    ) -> list[tuple[int, int]]:
        sizes = []
        for slot, index in enumerate(plan.indices.tolist()):
            try:
                data = bytes(self._reader.read(index))
                header = headers.read(data)
            except (OSError, ValueError) as error:
                faults[slot] = fault_of(error)
                sizes.append(NO_SIZE)
                continue
            self._early[slot] = data
            sizes.append((header.width, header.height))
            if not header.plain:
                self._unusual.add(slot)
        return sizes

    def draw_small(
        self, out: NDArray[np.uint8], buffer: PixelBuffer, faults: dict[int, str]
    ) -> bool:
        """Put all samples into ``out``, uint8 [B, H, W, 3], where all are small images of one size
        and none is scaled: of a small image's time the calls for it are a large part.

        Returns:
            Whether all were read and drawn; if not, :meth:`draw` has to.
        """
        plan, (width, height) = self.plan, self.sizes[0]
        one_size = self.sizes.count(self.sizes[0]) == len(self.sizes)
        if faults or self._unusual or not one_size or width * height > _SMALL:
            return False
        if not plan.unscaled(*out.shape[1:3]):
            return False
        assert plan.boxes is not None
        assert plan.flips is not None
        whole = out.shape[1:3] == (height, width) and not plan.boxes[:, :2].any()
        stack = out if whole else buffer.shaped(width, len(plan) * height)
        stack = stack.reshape(len(plan), height, width, 3)
        for first in range(0, len(plan), _READ_AT_ONCE):
            try:
                encoded = self._read(range(first, min(first + _READ_AT_ONCE, len(plan))))
            except OSError:
                return False  # one by one it is found whose fault that is
            for slot, data in enumerate(encoded, first):
                image = stack[slot]
                try:
                    pixels = self._decode(data, (width, height), 1, image)
                    if pixels is not image:
                        image[:] = pixels
                except (OSError, ValueError) as error:
                    faults[slot] = fault_of(error)
        if whole:
            mirror(out, plan.flips)
        else:
            boxes = plan.boxes.astype(np.int64)
            copy_boxes(stack, np.arange(len(plan)), boxes, plan.flips, out)
        return True

    def _read(self, slots: range) -> Sequence[bytes | memoryview]:
        if self._early:
            return [self._early.pop(slot) for slot in slots]
        return self._reader.read_many(self.plan.indices[slots.start : slots.stop])

    def draw(self, slot: int, out: NDArray[np.uint8], buffer: PixelBuffer) -> None:
        """Put the sample of ``slot`` into ``out``, uint8 [H, W, 3].

        Raises:
            OSError, ValueError: it cannot be read, or is damaged.
        """
        _, box, flip, _ = self.plan.rows[slot]
        width, height = self.sizes[slot]
        whole = box == (0, 0, width, height) and out.shape == (height, width, 3)
        if whole and slot not in self._unusual:
            pixels = self._decode(self._data(slot), (width, height), out=out)
            if pixels is out:
                if flip:
                    cv2.flip(out, 1, dst=out)
                return
            reduction = 1
        else:
            pixels, box, reduction = self._decoded(slot, buffer)
        resample(pixels, box, flip, out, reduction=reduction, **self._how)

    def cut(
        self, slot: int, memory: NDArray[np.uint8], side: int, buffer: PixelBuffer
    ) -> tuple[int, int]:
        """Put the crop of the sample of ``slot`` into the beginning of ``memory``, uint8 [bytes],
        neither scaled to ``side`` nor mirrored; scaled only where there is no room for it else.

        Returns:
            Its width and height.

        Raises:
            OSError, ValueError: the sample cannot be read, or is damaged.
        """
        pixels, box, reduction = self._decoded(slot, buffer)
        left, top, width, height = map(int, box)
        if reduction == 1 and 3 * width * height <= len(memory):
            out = memory[: 3 * width * height].reshape(height, width, 3)
            np.copyto(out, pixels[top : top + height, left : left + width])
            return width, height
        out = memory[: 3 * side * side].reshape(side, side, 3)
        resample(pixels, box, False, out, reduction=reduction, **self._how)
        return side, side

    def _data(self, slot: int) -> bytes | memoryview:
        return self._early.pop(slot) if self._early else self._reader.read(self.plan.rows[slot][0])

    def _decoded(self, slot: int, buffer: PixelBuffer) -> tuple[NDArray[np.uint8], Any, int]:
        """The sample's pixels, its box in them, and by what they are still to be reduced."""
        data, (_, box, _, reduction) = self._data(slot), self.plan.rows[slot]
        if slot in self._unusual:
            return decode_any(data, self._decode), box, reduction
        size = self.sizes[slot]
        left, top, w, h = box
        rows = None if self._whole else max(1, int(top + h))
        memory = buffer.shaped(*reduced(size, reduction))
        pixels = self._decode(data, size, reduction, memory, rows)
        if reduction > 1:
            # The JPEG's own scaling replaces the box average; the box is on its grid.
            box = (left / reduction, top / reduction, w / reduction, h / reduction)
        return pixels, box, 1


class PixelSamples:
    """The samples of a plan in a format of pixels."""

    def __init__(self, dataset: Dataset, recipe: Recipe, plan: BatchPlan) -> None:
        self._pixels = dataset.pixels
        self._how = resampling(recipe)
        self.plan = plan
        self.sizes: list[tuple[int, int]] = dataset.sizes[plan.indices].tolist()

    def draw_small(
        self, out: NDArray[np.uint8], buffer: PixelBuffer, faults: dict[int, str]
    ) -> bool:
        """Put all samples into ``out``, uint8 [B, H, W, 3], where none is scaled."""
        plan = self.plan
        if not plan.unscaled(*out.shape[1:3]):
            return False
        assert plan.boxes is not None
        assert plan.flips is not None
        copy_boxes(self._pixels, plan.indices, plan.boxes.astype(np.int64), plan.flips, out)
        return True

    def draw(self, slot: int, out: NDArray[np.uint8], buffer: PixelBuffer) -> None:
        """Put the sample of ``slot`` into ``out``, uint8 [H, W, 3]."""
        index, box, flip, reduction = self.plan.rows[slot]
        resample(self._pixels[index], box, flip, out, reduction=reduction, **self._how)


def fault_of(error: OSError | ValueError) -> str:
    """What is wrong with a sample, in words; raises where it is not the sample that is at fault."""
    if isinstance(error, FastdataError):
        raise error
    if isinstance(error, OSError):
        if error.errno in SYSTEM_FAULTS:
            raise StorageError(f"cannot read a sample: {error}; check the disk") from error
        return error.strerror or str(error)
    return str(error)
