"""What a sample of a dataset of ours costs in each stage, in one process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.dataset import Dataset
from fastdata.decode import Decode, PixelBuffer, decode_any, reduced
from fastdata.errors import ImageError
from fastdata.formats import Reader
from fastdata.header import Header, HeaderReader
from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import Recipe, draw_key
from fastdata.registry import DECODERS, DEFAULT_DECODER, load
from fastdata.resample import resample, resampling
from fastdata.tuning.model import Cost
from fastdata.tuning.probes import CROP, DECODE, FETCH, HEADER, Clock, Lap

__all__ = ["StageProbe", "plan_some", "probe_cold"]

_COLD_SAMPLES = 64


class StageProbe:
    """Reads, decodes and resamples samples of a dataset one by one, as an engine does, and times
    each of these."""

    def __init__(
        self, dataset: Dataset, recipe: Recipe, batch_size: int, *, skip: bool = False
    ) -> None:
        """
        Args:
            dataset, recipe, batch_size: what is loaded.
            skip: pass samples over that are at fault; else they raise ImageError.
        """
        self._dataset, self._recipe, self._skip = dataset, recipe, skip
        self._decode: Decode = load(DECODERS, DEFAULT_DECODER, "decoder")
        self._headers, self._buffer = HeaderReader(), PixelBuffer()
        self._batch = min(batch_size, len(dataset))
        self._clocks = {name: Clock() for name in (FETCH, HEADER, DECODE, CROP)}
        self.samples: list[Lap] = []

    def run(self, seconds: float) -> None:
        """Go on for so long, and for one batch at least."""
        until = time.perf_counter() + seconds
        order = np.random.default_rng(0)
        while not self.samples or time.perf_counter() < until:
            indices = order.choice(len(self._dataset), self._batch, replace=False)
            self._samples(indices.astype(np.int64), until)

    def stages(self) -> dict[str, Cost]:
        """Stage -> its cost."""
        return {name: clock.cost() for name, clock in self._clocks.items() if clock.laps}

    def total(self) -> Cost:
        """All stages together."""
        costs = self.stages().values()
        return Cost(sum(cost.wall for cost in costs), sum(cost.cpu for cost in costs))

    def missing(self) -> dict[str, str]:
        """Stage -> why it has no cost."""
        kind = self._dataset.format
        return {} if self._dataset.encoded else {DECODE: f"{kind} holds pixels: nothing to decode"}

    def _samples(self, indices: NDArray[np.int64], until: float) -> None:
        recipe = self._recipe
        taken, data, headers, read = [], [], [], []
        began = time.perf_counter()
        for index in indices.tolist():
            try:
                with Clock() as clock:
                    with self._clocks[FETCH]:
                        one = self._fetch(index)
                    header = self._header(index, one)
            except ImageError:
                if not self._skip:
                    raise
                continue
            taken.append(index)
            data.append(one)
            headers.append(header)
            read.append(clock.lap)
            if time.perf_counter() - began > max(0.0, until - began) / 2:
                break  # slow storage: some samples must also be decoded within the time
        if not taken:
            return
        sizes = np.array([size for size, _ in headers], np.int32)
        (plan,) = plan_batches(recipe, draw_key(0, 0), [np.array(taken, np.int64)], None)
        plan = plan.with_sizes(recipe, sizes)
        for slot, row in enumerate(plan.rows):
            try:
                with Clock() as clock:
                    self._draw(data[slot], sizes[slot].tolist(), headers[slot][1], row)
            except ImageError:
                if not self._skip:
                    raise
            seconds = read[slot].seconds + clock.lap.seconds
            self.samples.append(Lap(seconds, read[slot].quiet and clock.lap.quiet))

    def _fetch(self, index: int) -> Any:
        if self._dataset.encoded:
            return self._dataset.read(index)  # a copy: a map's pages must be touched
        return np.array(self._dataset.pixels[index])

    def _header(self, index: int, data: Any) -> tuple[tuple[int, int], Header | None]:
        if not self._dataset.encoded:
            return (data.shape[1], data.shape[0]), None
        if self._dataset.plain:
            width, height = self._dataset.sizes[index].tolist()
            return (width, height), None
        try:
            with self._clocks[HEADER]:
                header = self._headers.read(data)
        except ValueError as error:
            raise ImageError(self._dataset.name_of(index), str(error)) from error
        return (header.width, header.height), header

    def _draw(
        self,
        data: Any,
        size: tuple[int, int],
        header: Header | None,
        row: tuple[int, Any, bool, int],
    ) -> None:
        index, box, flip, reduction = row
        side = self._recipe.size
        if isinstance(data, np.ndarray):
            pixels = data
        else:
            with self._clocks[DECODE]:
                try:
                    if header is not None and not header.plain:
                        pixels = decode_any(data, self._decode)
                    else:
                        memory = self._buffer.shaped(*reduced(size, reduction))
                        pixels = self._decode(data, size, reduction, memory)
                        box = tuple(value / reduction for value in box)
                        reduction = 1
                except ValueError as error:
                    raise ImageError(self._dataset.name_of(index), str(error)) from error
        with self._clocks[CROP]:
            height, width = pixels.shape[:2] if side is None else (side, side)
            out = np.empty((height, width, 3), np.uint8)
            resample(pixels, box, flip, out, reduction=reduction, **resampling(self._recipe))


def probe_cold(reader: Reader, indices: NDArray[np.int64]) -> Cost | str:
    """What fetching a sample costs that is in no cache of the system; why that cannot be measured.

    The system is asked to forget these samples first, which it may refuse; the count of bytes that
    it has read from storage since tells whether it did.
    """
    clock, size = Clock(), 0
    before = _storage_bytes()
    try:
        for index in indices[:_COLD_SAMPLES].tolist():
            path, offset, length = reader.location(index)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)
                with clock:
                    size += len(os.pread(file, length, offset))
            finally:
                os.close(file)
    except OSError as error:
        return f"a sample cannot be read: {error}"
    after = _storage_bytes()
    if before is None or after is None:
        return "the system does not count what it reads from storage"
    if after - before < size / 2:
        return "the system kept the samples in its page cache"
    return clock.cost()


def _storage_bytes() -> int | None:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None)


def plan_some(dataset: Dataset, recipe: Recipe, batch_size: int, turn: int) -> BatchPlan:
    """A plan of random samples, as a loader makes it; another one each turn."""
    count = min(batch_size, len(dataset))
    indices = np.random.default_rng(turn).choice(len(dataset), count, replace=False)
    sizes = dataset.sizes if dataset.plain else None
    (plan,) = plan_batches(recipe, draw_key(0, turn), [indices.astype(np.int64)], sizes)
    return plan
