"""Reading, decoding and resampling the samples of one plan on the CPU, into one array.

This is the work of one worker process, and of the reference that other engines are compared with:
no per-sample tensors and no collate; each image is decoded and scaled straight into its place.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.adjust import Adjustments, adjust, fill_colour
from fastdata.dataset import Dataset
from fastdata.decode import Decode, PixelBuffer
from fastdata.engines import Settings, Skipped
from fastdata.engines.packed import pack_crops
from fastdata.engines.samples import NO_SIZE, EncodedSamples, PixelSamples, fault_of
from fastdata.engines.slots import Slots
from fastdata.errors import DataError, ImageError, UsageError
from fastdata.header import HeaderReader
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe, sample_seeds
from fastdata.registry import DECODERS, DEFAULT_DECODER, load
from fastdata.seeding import seed_generators

__all__ = ["Fetcher", "HostBatch"]


class HostBatch:
    """A batch on its way to the process that trains.

    Attributes:
        images: uint8 tensor [B, H, W, 3] in shared memory; with a user's transform what it made;
            None where they lie in a slot.
        shape: of the images in the slot; of packed crops, the bytes in use.
        slot: its number, of those that the fetcher was given.
        table: of packed crops, see :func:`fastdata.engines.packed.pack_crops`.
        adjustments: that packed crops are still to get.
        labels, indices: numpy arrays [B].
        skipped: samples at fault.
    """

    def __init__(
        self,
        images: Any,
        labels: NDArray[np.int64],
        indices: NDArray[np.int64],
        skipped: list[Skipped],
        shape: tuple[int, ...] = (),
        slot: int | None = None,
        table: NDArray[np.int64] | None = None,
        adjustments: Adjustments | None = None,
    ) -> None:
        self.table = table
        self.adjustments = adjustments
        self.images = images
        self.shape = shape
        self.slot = slot
        self.labels = labels
        self.indices = indices
        self.skipped = skipped

    def pin_memory(self) -> HostBatch:
        """Called by torch's DataLoader where the batch goes on to a CUDA device."""
        if self.images is not None:
            self.images = torch.utils.data._utils.pin_memory.pin_memory(self.images)  # type: ignore[no-untyped-call]
        return self


class Fetcher:
    """Carries out plans one at a time; picklable, and cheap to send to a worker process."""

    def __init__(
        self,
        settings: Settings,
        *,
        shared: bool,
        slots: Slots | None = None,
        packed: bool = False,
    ) -> None:
        """
        Args:
            settings: dataset, recipe, transform and the error policy are used.
            shared: put images in shared memory, for another process to receive.
            slots: put them in a slot of these instead.
            packed: leave it to the device to scale crops.
        """
        self._dataset: Dataset = settings.dataset
        self._recipe: Recipe = settings.recipe
        self._transform: Callable[[NDArray[np.uint8]], Any] | None = settings.transform
        self._training = settings.training
        self._skip_errors = settings.skip_errors
        self._fill = fill_colour(settings.recipe)
        self._decoder: str = settings.options.get("decoder", DEFAULT_DECODER)
        self._decode: Decode | None = None
        self._buffer = PixelBuffer()
        self._headers = HeaderReader()
        self._shared = shared
        self._slots = slots
        self._packed = packed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffer": PixelBuffer(), "_decode": None}

    def __call__(self, plan: BatchPlan, into: int | None = None) -> HostBatch:
        """Make the batch of ``plan``, in the slot ``into`` if one is named.

        Raises:
            ImageError: a sample is at fault and errors are not skipped.
            UsageError: images of different sizes and a recipe that does not scale them.
            DataError: a training batch without one good sample.
        """
        if self._decode is None:
            self._decode = load(DECODERS, self._decoder, "decoder")
        faults: dict[int, str] = {}
        samples: EncodedSamples | PixelSamples
        if self._dataset.encoded:
            samples = EncodedSamples(
                self._dataset, self._recipe, self._decode, plan, faults, self._headers
            )
        else:
            samples = PixelSamples(self._dataset, self._recipe, plan)
        if self._transform is not None:
            return self._transformed(samples, faults)
        shape = self._shape(samples, faults)
        whole = (len(plan), *shape, 3)
        images = None if into is not None else self._allocate(whole)
        array = self._array(images, into, whole)
        if not samples.draw_small(array, self._buffer, faults):
            if self._packed and into is not None and isinstance(samples, EncodedSamples):
                return self._pack(samples, faults, into)
            for slot, out in enumerate(array):
                if slot not in faults:
                    try:
                        samples.draw(slot, out, self._buffer)
                    except (OSError, ValueError) as error:
                        faults[slot] = fault_of(error)
        if plan.adjustments is not None:
            adjust(array, plan.adjustments, self._fill)
        kept = self._kept(samples.plan, faults)
        if faults and self._training:
            array[list(faults)] = array[kept[next(iter(faults))]]
        elif faults:
            array[: len(kept)] = array[kept]
            images = None if images is None else images[: len(kept)]
        batch = self._finish(images, samples.plan, kept, faults)
        batch.slot, batch.shape = into, (len(kept), *shape, 3)
        return batch

    def _pack(self, samples: EncodedSamples, faults: dict[int, str], into: int) -> HostBatch:
        assert self._slots is not None
        assert self._recipe.size is not None
        memory, side = self._slots.memory(into), self._recipe.size
        table, used = pack_crops(samples, memory, side, self._buffer, faults)
        kept = self._kept(samples.plan, faults)
        batch = self._finish(None, samples.plan, kept, faults)
        batch.slot, batch.shape, batch.table = into, (used,), table[kept]
        if samples.plan.adjustments is not None:
            batch.adjustments = samples.plan.adjustments.take(kept)
        return batch

    def _shape(
        self, samples: EncodedSamples | PixelSamples, faults: dict[int, str]
    ) -> tuple[int, int]:
        """Height and width of the output."""
        if self._recipe.size is not None:
            return self._recipe.size, self._recipe.size
        good = [slot for slot in range(len(samples.plan)) if slot not in faults]
        width, height = samples.sizes[good[0]] if good else NO_SIZE
        for slot in good:
            if tuple(samples.sizes[slot]) != (width, height):
                other_width, other_height = samples.sizes[slot]
                name = self._dataset.name_of(int(samples.plan.indices[slot]))
                raise UsageError(
                    f"the recipe keeps each image's own size, and the images of a batch differ: "
                    f"expected {width}x{height} pixels, found {other_width}x{other_height} in "
                    f"{name}; use a recipe with a size, or convert with --size"
                )
        return height, width

    def _array(
        self, images: torch.Tensor | None, slot: int | None, shape: tuple[int, ...]
    ) -> NDArray[np.uint8]:
        if images is not None:
            array: NDArray[np.uint8] = images.numpy()
            return array
        assert self._slots is not None
        assert slot is not None
        return self._slots.array(slot, shape)

    def _allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        if not self._shared:
            return torch.empty(shape, dtype=torch.uint8)
        # As torch's own collate does in a worker: written where the other process reads it. Memory
        # without a name takes nothing of /dev/shm, and none is left there by a process that is
        # killed.
        size = int(np.prod(shape, dtype=np.int64))
        descriptor = os.memfd_create("fastdata")
        try:
            os.ftruncate(descriptor, size)
            storage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, size)  # type: ignore[attr-defined]
        finally:
            os.close(descriptor)
        return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)

    def _kept(self, plan: BatchPlan, faults: dict[int, str]) -> NDArray[np.int64]:
        """Which slot of the plan each slot of the batch shows."""
        slots = np.arange(len(plan))
        if not faults:
            return slots
        if not self._skip_errors:
            slot = min(faults)
            reason = f'{faults[slot]}; repair or remove it, or use on_error="skip"'
            raise ImageError(self._dataset.name_of(int(plan.indices[slot])), reason)
        good = np.delete(slots, list(faults))
        if not self._training:
            return good
        if not good.size:
            slot = min(faults)
            raise DataError(
                f"not one of the {len(plan)} samples of a batch can be used; the first: "
                f"{self._dataset.name_of(int(plan.indices[slot]))}: {faults[slot]}"
            )
        slots[list(faults)] = good[0]
        return slots

    def _finish(
        self, images: Any, plan: BatchPlan, kept: NDArray[np.int64], faults: dict[int, str]
    ) -> HostBatch:
        skipped = []
        for slot in sorted(faults):
            index = int(plan.indices[slot])
            skipped.append(Skipped(index, self._dataset.name_of(index), faults[slot]))
        indices = plan.indices[kept]
        return HostBatch(images, self._dataset.labels[indices], indices, skipped)

    def _transformed(
        self, samples: EncodedSamples | PixelSamples, faults: dict[int, str]
    ) -> HostBatch:
        """Hand each image to the user's transform and stack what comes back."""
        assert self._transform is not None
        size, results = self._recipe.size, {}
        adjustments = samples.plan.adjustments
        seeds = sample_seeds(samples.plan.key, samples.plan.indices).tolist()
        # Where this is the training process, the generators' states are the user's.
        before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
        try:
            for slot in range(len(samples.plan)):
                if slot in faults:
                    continue
                width, height = (size, size) if size is not None else samples.sizes[slot]
                image = np.empty((height, width, 3), np.uint8)
                try:
                    samples.draw(slot, image, self._buffer)
                except (OSError, ValueError) as error:
                    faults[slot] = fault_of(error)
                    continue
                if adjustments is not None:
                    adjust(image[None], adjustments.take(slice(slot, slot + 1)), self._fill)
                seed_generators(seeds[slot])
                try:
                    results[slot] = self._transform(image)
                except Exception as error:
                    if hasattr(error, "add_note"):  # Python 3.11
                        name = self._dataset.name_of(int(samples.plan.indices[slot]))
                        error.add_note(f"in transform= of {name}")
                    raise
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.default_generator.set_state(before[2])
        kept = self._kept(samples.plan, faults)
        rows = [results[slot] for slot in kept.tolist()]
        images = torch.utils.data.default_collate(rows) if rows else None
        return self._finish(images, samples.plan, kept, faults)
