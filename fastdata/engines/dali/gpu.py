"""dali: DALI's GPU decoder, and the kernel of the engine ``direct`` for the rest."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, pipeline_def, types
from torch.utils.dlpack import from_dlpack

from fastdata.engines import Batch, Settings, Unavailable
from fastdata.engines.ahead import PinnedRing
from fastdata.engines.dali.base import DaliBase, Done, built, corners, decoded_crops
from fastdata.engines.dali.options import decoder_options, nvjpeg_notes, wheel_refusal
from fastdata.engines.pixels import CropStage
from fastdata.errors import UsageError
from fastdata.kernels import COLUMNS
from fastdata.machine import cpus_of_a_rank
from fastdata.plan import BatchPlan

__all__ = ["DaliEngine"]

_MOST_THREADS = 16
_SHARE = 0.75  # of the CPUs; more only get in the way of the training and of who reads files


class DaliEngine(DaliBase):
    """The GPU's JPEG decoder by DALI, and the kernel of the engine ``direct`` for the rest.

    ``num_workers`` is the number of DALI's threads that decode, ``prefetch_factor`` the number of
    batches that it has under way; of a plain folder as many are read ahead, by threads of their
    own, a quarter of the CPUs and at least two. Warnings of its decoder about single images are
    not printed, unless the environment has another ``DALI_NVIMGCODEC_LOG_LEVEL`` than 1. Damage
    within a JPEG's data is decoded without a word; the conversion has looked for it, and files of
    a plain folder that have no end are not given to it.

    Options, which are those of DALI's decoder (``fn.decoders.image_slice``) and where they are not
    given follow from the dataset's sizes:
        hw_decoder_load: share of the images that the hardware decoder gets, 0..1.
        device_memory_padding, host_memory_padding: bytes of each thread's buffers.
        preallocate_width_hint, preallocate_height_hint: of the hardware decoder, in pixels.
        hybrid_huffman_threshold: pixels from which the GPU does the Huffman decoding, too.
        jpeg_fancy_upsampling: whether colours are interpolated as every other engine does it;
            DALI's own default, False, lets the hardware decoder take more images.
    """

    options = (
        "hw_decoder_load",
        "device_memory_padding",
        "host_memory_padding",
        "preallocate_width_hint",
        "preallocate_height_hint",
        "hybrid_huffman_threshold",
        "jpeg_fancy_upsampling",
    )
    _backend = "mixed"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._crop = CropStage(settings)
        self._tables, self._adjustments = PinnedRing(2), PinnedRing(2)
        self._held: deque[tuple[Any, torch.cuda.Event]] = deque()
        self.decoder_options = decoder_options(settings)
        try:
            self.pipeline = self._build()
        except RuntimeError as error:  # DALI's: what this machine lacks shows now
            if settings.options:
                raise UsageError(f"DALI refuses, with {settings.options}: {error}") from error
            raise Unavailable(f"DALI cannot be used here: {error}") from error

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        if settings.device.type != "cuda":
            return "it needs a CUDA device; dali-cpu does not"
        return super().refusal(settings)

    def _threads(self) -> int:
        return min(_MOST_THREADS, max(1, int(_SHARE * cpus_of_a_rank(self._cpus))))

    @staticmethod
    def _geometry(settings: Settings) -> Any:
        return corners

    def _build(self) -> Pipeline:
        def graph() -> Any:
            geometry = [(types.INT32, 1)] * 2
            images, _ = decoded_crops(self._feed, geometry, self._backend, **self.decoder_options)
            return images

        device = self.settings.device
        on_gpu = device.type == "cuda"
        index = (device.index or 0) if on_gpu else None
        if on_gpu:
            wheel_refusal()
        return built(self, pipeline_def(graph), index)

    def _run(self, pipeline: Pipeline) -> Any:
        if self.settings.device.type != "cuda":
            return super()._run(pipeline)
        (images,) = pipeline.run(torch.cuda.current_stream(self.settings.device))
        return images

    def _finish(self, done: Done) -> Batch:
        if done.whole is not None:
            return self._finish_whole(done.whole)
        plan, device = done.begun.plan, self.settings.device
        table = _packed_table(plan, done.begun.given)
        sizes = 3 * table[:, 3] * table[:, 4]
        crops = from_dlpack(done.images.as_reshaped_tensor([int(sizes.sum())]))
        source = crops
        if done.aside is not None:
            made = done.aside.images.reshape(len(done.begun.aside), -1)
            side = done.aside.images.shape[1]
            slots = done.begun.aside
            table[slots, 0] = len(crops) + np.arange(len(slots)) * made.shape[1]
            table[slots, 3:6] = side, side, 2  # scaled and mirrored already
            source = torch.cat([crops, made.reshape(-1).to(device)])
        on_device = self._crop.uploaded(table, self._tables)
        adjustments = self._crop.uploaded_adjustments(plan.adjustments, self._adjustments)
        images = self._crop.crop(source, on_device, table, adjustments, packed=True)
        if device.type == "cuda":  # DALI may use the crops' memory again once nobody holds them
            self._held.append((crops, torch.cuda.current_stream(device).record_event()))
            while self._held and self._held[0][1].query():  # type: ignore[no-untyped-call]
                self._held.popleft()
        labels = self._crop.labels(on_device)
        return Batch(images, labels, torch.from_numpy(plan.indices), [])

    def explain(self) -> list[str]:
        lines = ["engine dali: NVIDIA DALI decodes the crops on the GPU.", *super().explain()]
        options = ", ".join(f"{name} {value}" for name, value in self.decoder_options.items())
        lines += [f"Its decoder has {options}.", *nvjpeg_notes(self.decoder_options)]
        return [*lines, self._crop.explain()]

    def close(self) -> None:
        super().close()
        if self._held:
            torch.cuda.synchronize(self.settings.device)  # nothing may read what is released
            self._held.clear()


def _packed_table(plan: BatchPlan, given: NDArray[np.int64]) -> NDArray[np.int64]:
    """The kernel's table for crops that lie one after the other, int64 [B, COLUMNS]; of the slots
    that are not ``given``, only the index."""
    assert plan.boxes is not None
    assert plan.flips is not None
    assert plan.reductions is not None
    table = np.zeros((len(plan), COLUMNS), np.int64)
    table[:, 6] = plan.indices
    table[given, 3:5] = plan.boxes[given, 2:]
    table[given, 5] = 2 * plan.reductions[given].astype(np.int64) + plan.flips[given]
    sizes = 3 * table[given, 3] * table[given, 4]
    table[given, 0] = np.cumsum(sizes) - sizes
    return table
