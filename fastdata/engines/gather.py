"""gather: threads of this process copy rows of the pixel array, ahead of time.

For a machine without a GPU, or a dataset that the GPU cannot read in place. On the CPU the threads
crop and resize straight into the batch; for a CUDA device they copy the rows that the boxes cover
into pinned memory, and a kernel does the rest. numpy and OpenCV release the interpreter's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.adjust import adjust, fill_colour
from fastdata.engines import Batch, Engine, Settings, batches_together
from fastdata.engines.ahead import Ahead, PinnedBuffer, PinnedRing
from fastdata.engines.disk import READ_AHEAD, ReadAhead
from fastdata.engines.pixels import CropStage, pixel_refusal
from fastdata.engines.transfer import Finisher
from fastdata.kernels import pack_rows
from fastdata.machine import available_cpus, cpus_of_a_rank
from fastdata.plan import BatchPlan, join_plans
from fastdata.resample import copy_boxes, resample, resampling
from fastdata.threads import Threads, cancel, results

__all__ = ["GatherEngine"]

_PREFETCH = 2
_LEAST_SHARE = 1 << 20  # bytes of images that are worth a thread's attention


class GatherEngine(Engine):
    """Threads gather rows; for memmap datasets on any device.

    ``num_workers`` is the number of threads (0: the training thread itself), ``prefetch_factor``
    the number of batches ahead.

    Options:
        read_ahead: whether the system is asked to read rows from the disk before they are copied;
            ``"auto"``, the default: where the dataset is more than memory.
    """

    options = (READ_AHEAD,)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        asked = settings.num_workers
        self.num_workers = cpus_of_a_rank(available_cpus()) if asked is None else asked
        self.prefetch_factor = settings.prefetch_factor or _PREFETCH
        self._prefetch = self.prefetch_factor if self.num_workers else 0
        on_cuda = settings.device.type == "cuda"
        self._target: _HostBatches | _DeviceBatches = (
            _DeviceBatches(settings, self._prefetch + 2) if on_cuda else _HostBatches(settings)
        )
        pixels = settings.dataset.pixels
        self._sample_bytes = pixels.nbytes // len(pixels)
        # What a batch costs beside its pixels is most of the time of small ones: several are one.
        side = settings.recipe.size or 0
        batch_bytes = settings.batch_size * max(self._sample_bytes, side * side * 3)
        self._together = 1 if on_cuda else batches_together(batch_bytes)
        self._read_ahead = ReadAhead(settings)
        self._threads: Threads | None = None

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        if settings.device.type == "cuda" and settings.recipe.antialias:
            return "antialias=True needs the workers engine on a CUDA device"
        return pixel_refusal(settings)

    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        self._target.pixels = self.settings.dataset.pixels  # anew after a close
        if self.num_workers and self._threads is None:
            self._threads = Threads(self.num_workers, "fastdata-gather")
        ahead = Ahead(self.settings.device, min(1, self._prefetch))
        return ahead.run(self._gathered(plans), self._target.finish)

    def _gathered(self, plans: Iterator[BatchPlan]) -> Generator[Any, None, None]:
        """Batches whose rows are there, in order; the next ones are being gathered."""
        started: deque[_Work] = deque()
        try:
            while group := list(islice(plans, self._together)):
                started.append(self._start(group))
                if len(started) > self._prefetch:
                    yield from self._target.parts(started.popleft().done())
            while started:
                yield from self._target.parts(started.popleft().done())
        finally:
            for work in started:  # the iteration was abandoned: its buffers are used again
                cancel(work.futures)

    def _start(self, plans: list[BatchPlan]) -> _Work:
        plan = join_plans(plans)
        self._read_ahead(plan)
        work = self._target.begin(plan)
        work.sizes = [len(one) for one in plans]
        fair = -(-len(plan) // max(1, self.num_workers))
        size = min(len(plan), max(fair, 1, _LEAST_SHARE // self._sample_bytes))
        shares = [range(at, min(at + size, len(plan))) for at in range(0, len(plan), size)]
        if self._threads is None:
            for share in shares:
                work.gather(share)
        else:
            work.futures += [self._threads.start(work.gather, share) for share in shares]
        return work

    def explain(self) -> list[str]:
        how = f"{self.num_workers} threads" if self.num_workers else "the training thread"
        lines = [f"engine gather: {how} of this process copy rows of the pixel array."]
        if self._prefetch:
            ahead = f"Up to {self._prefetch} batches are gathered ahead"
            if self._together > 1:
                ahead = f"{ahead}, times {self._together}, because they are small"
            lines.append(f"{ahead}.")
        return [*lines, *self._read_ahead.explain(), *self._target.explain()]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        self._target.pixels = self._target.pixels[:0]  # the map goes with its last view


@dataclass
class _Work:
    """Batches that are being gathered as one."""

    plan: BatchPlan
    gather: Callable[[range], None]
    sizes: list[int] = field(default_factory=list)
    images: NDArray[np.uint8] | None = None
    buffer: PinnedBuffer | None = None
    table: NDArray[np.int64] | None = None
    futures: list[Future[None]] = field(default_factory=list)

    def done(self) -> _Work:
        """Wait for all rows, and raise what went wrong with them."""
        results(self.futures)
        return self


_HostPart = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.int64]]
"""Images, labels and indices of one batch."""


class _HostBatches:
    """Batches on the CPU: a thread crops and resizes a share of the samples into place."""

    def __init__(self, settings: Settings) -> None:
        self.pixels: NDArray[np.uint8] = settings.dataset.pixels
        side = settings.recipe.size
        self._size = self.pixels.shape[1:3] if side is None else (side, side)
        self._how = resampling(settings.recipe)
        self._fill = fill_colour(settings.recipe)
        self._finisher = Finisher(settings.recipe, settings.device, settings.dtype)
        self._labels = settings.dataset.labels

    def begin(self, plan: BatchPlan) -> _Work:
        images = np.empty((len(plan), *self._size, 3), np.uint8)
        gather = self._copy if plan.unscaled(*self._size) else self._resample
        return _Work(plan, gather(plan, images), images=images)

    def _copy(self, plan: BatchPlan, out: NDArray[np.uint8]) -> Callable[[range], None]:
        assert plan.boxes is not None
        assert plan.flips is not None
        boxes, flips, pixels = plan.boxes.astype(np.int64), plan.flips, self.pixels

        def gather(share: range) -> None:
            part = slice(share.start, share.stop)
            copy_boxes(pixels, plan.indices[part], boxes[part], flips[part], out[part])
            self._adjust(plan, out, part)

        return gather

    def _resample(self, plan: BatchPlan, out: NDArray[np.uint8]) -> Callable[[range], None]:
        rows, pixels, how = plan.rows, self.pixels, self._how

        def gather(share: range) -> None:
            for slot in share:
                index, box, flip, reduction = rows[slot]
                resample(pixels[index], box, flip, out[slot], reduction=reduction, **how)
            self._adjust(plan, out, slice(share.start, share.stop))

        return gather

    def _adjust(self, plan: BatchPlan, out: NDArray[np.uint8], part: slice) -> None:
        if plan.adjustments is not None:
            adjust(out[part], plan.adjustments.take(part), self._fill)

    def parts(self, work: _Work) -> Iterator[_HostPart]:
        """The batches, whose tensors share nothing but a block of memory."""
        assert work.images is not None
        labels, start = self._labels[work.plan.indices], 0
        for size in work.sizes:
            part = slice(start, start + size)
            yield work.images[part], labels[part], work.plan.indices[part]
            start += size

    def finish(self, part: _HostPart) -> Batch:
        images, labels, indices = part
        made = self._finisher.from_array(images)
        return Batch(made, torch.from_numpy(labels), torch.from_numpy(indices), [])

    def explain(self) -> list[str]:
        return []


class _DeviceBatches:
    """Batches on a CUDA device: a thread copies the rows of a share of the samples into pinned
    memory, laid out as a staging buffer; the device does the rest."""

    def __init__(self, settings: Settings, buffers: int) -> None:
        self.pixels: NDArray[np.uint8] = settings.dataset.pixels
        self._device = settings.device
        self._crop = CropStage(settings)
        self._ring = PinnedRing(buffers)
        self._tables = PinnedRing(2 * buffers)

    def begin(self, plan: BatchPlan) -> _Work:
        height, width = self.pixels.shape[1:3]
        table = self._crop.table([plan])
        first, counts = pack_rows(table, (height, width))
        ends = np.cumsum(counts)
        buffer = self._ring.take(max(1, int(ends[-1])) * width * 3)
        source = self.pixels.reshape(-1, width * 3)
        target = buffer.array.reshape(-1, width * 3)

        def gather(share: range) -> None:
            part = slice(share.start, share.stop)
            begin = int(ends[share.start] - counts[share.start])
            sizes = counts[part]
            rows = np.repeat(first[part] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
            # One call for many rows: each return to the interpreter is a queue of threads.
            np.take(source, rows, axis=0, out=target[begin : begin + len(rows)], mode="clip")

        return _Work(plan, gather, buffer=buffer, table=table)

    def parts(self, work: _Work) -> Iterator[_Work]:
        """The one batch."""
        yield work

    def finish(self, work: _Work) -> Batch:
        assert work.buffer is not None
        assert work.table is not None
        staging = torch.empty(work.buffer.size, dtype=torch.uint8, device=self._device)
        work.buffer.upload(staging)
        table = self._crop.uploaded(work.table, self._tables)
        adjustments = self._crop.uploaded_adjustments(work.plan.adjustments, self._tables)
        images = self._crop.crop(staging, table, work.table, adjustments, staged=True)
        indices = torch.from_numpy(work.plan.indices)
        return Batch(images, self._crop.labels(table), indices, [])

    def explain(self) -> list[str]:
        return [self._crop.explain()]
