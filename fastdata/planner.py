"""EpochPlanner: the plans of epoch after epoch, made ahead of the engine that carries them out."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import Recipe, draw_key
from fastdata.sampling import BatchSampler

__all__ = ["EpochPlanner"]

_MOST_SAMPLES = 32_768  # planned at once: numpy's cost for each call is shared by many batches
_FIRST_SAMPLES = 4_096  # twice as many each time, so that an epoch begins at once
_THREADS = "fastdata-plan"


class EpochPlanner:
    """Plans some batches ahead, and the beginning of the next epoch: shuffling a large dataset
    takes longer than an engine can wait."""

    def __init__(
        self,
        sampler: BatchSampler,
        recipe: Recipe,
        sizes: NDArray[np.int32] | None,
        *,
        threaded: bool,
    ) -> None:
        """
        Args:
            sampler: which samples the batches hold.
            recipe: what to do to them.
            sizes: int32 [N, 2] of the whole dataset, or None where they are not known in advance.
            threaded: plan in a thread, while batches are made; else when plans are asked for.
        """
        self._sampler = sampler
        self._recipe = recipe
        self._sizes = sizes
        self._threaded = threaded
        self._most = max(1, _MOST_SAMPLES // sampler.batch_size)
        self._first = max(1, _FIRST_SAMPLES // sampler.batch_size)
        self._ready: dict[tuple[int, int, int], list[BatchPlan]] = {}

    def plans(self, seed: int, epoch: int, position: int) -> Generator[BatchPlan, None, None]:
        """The plans of an epoch's batches from ``position`` on."""
        ready = self._ready.pop((seed, epoch, position), None)
        self._ready.clear()
        plans = ready or self._plan(seed, epoch, position, 0, self._first)
        done, count = 0, self._first
        pool = ThreadPoolExecutor(2, _THREADS)
        try:
            while plans:
                done += len(plans)
                if self._threaded:
                    count = min(2 * count, self._most)
                    following = pool.submit(self._plan, seed, epoch, position, done, count)
                if done <= self._first:
                    pool.submit(self._prepare, seed, epoch + 1)
                yield from plans
                if self._threaded:
                    plans = following.result()
                else:
                    plans = self._plan(seed, epoch, position, done, count)
        finally:
            # An abandoned iterator is collected in any thread, also in one of these.
            here = threading.current_thread().name.startswith(_THREADS)
            pool.shutdown(wait=not here, cancel_futures=True)

    def _prepare(self, seed: int, epoch: int) -> None:
        self._ready[seed, epoch, 0] = self._plan(seed, epoch, 0, 0, self._first)

    def _plan(
        self, seed: int, epoch: int, position: int, first: int, count: int
    ) -> list[BatchPlan]:
        """The plans of up to ``count`` steps from step ``first`` on, counted from ``position``."""
        positions = self._sampler.positions(position, first, count)
        if not positions:
            return []
        indices = self._sampler.indices(seed, epoch, np.concatenate(positions))
        ends = list(accumulate(map(len, positions), initial=0))
        batches = [indices[begin:end] for begin, end in pairwise(ends)]
        return plan_batches(self._recipe, draw_key(seed, epoch), batches, self._sizes)
