"""EpochPlanner: the plans of epoch after epoch, made ahead of the engine that carries them out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.plan import BatchPlan, Planning, is_one_row, plan_samples, split_plan
from fastdata.plan_process import PlanProcess
from fastdata.recipe import Recipe, draw_key
from fastdata.sampling import BatchSampler
from fastdata.threads import Threads, results

__all__ = ["EpochPlanner"]

_MOST_SAMPLES = 32_768  # planned at once: numpy's cost for each call is shared by many batches
_FIRST_SAMPLES = 4_096  # twice as many each time, so that an epoch begins at once

_Made = tuple[BatchPlan, list[int]]  # of several batches as of one, and how long each is


class EpochPlanner:
    """Plans some batches ahead, and the beginning of the next epoch: shuffling a large dataset
    takes longer than an engine can wait."""

    def __init__(
        self,
        sampler: BatchSampler,
        recipe: Recipe,
        sizes: NDArray[np.int32] | None,
        *,
        where: Planning,
    ) -> None:
        """
        Args:
            sampler: which samples the batches hold.
            recipe: what to do to them.
            sizes: int32 [N, 2] of the whole dataset, or None where they are not known in advance.
            where: where plans are made.
        """
        self._sampler = sampler
        self._make = _Maker(sampler, recipe, sizes)
        self._where = where
        self._process = PlanProcess(self._make)
        self._most = max(1, _MOST_SAMPLES // sampler.batch_size)
        self._first = max(1, _FIRST_SAMPLES // sampler.batch_size)
        self._ready: dict[tuple[int, int, int], Callable[[], _Made]] = {}

    def plans(self, seed: int, epoch: int, position: int) -> Generator[BatchPlan, None, None]:
        """The plans of an epoch's batches from ``position`` on.

        Raises:
            WorkerError: the process that makes them has ended.
        """
        ready = self._ready.pop((seed, epoch, position), None)
        self._ready.clear()
        made = ready() if ready else self._make(seed, epoch, position, 0, self._first)
        done, count, steps = 0, self._first, self._sampler.steps(position)
        threads = Threads(2, "fastdata-plan")
        try:
            while made[1]:
                done += len(made[1])
                following = None
                if self._where != "here" and done < steps:
                    count = min(2 * count, self._most)
                    following = self._begin(threads, seed, epoch, position, done, count)
                if done <= self._first:
                    self._prepare(threads, seed, epoch + 1, started=following is not None)
                yield from split_plan(*made)
                if done >= steps:
                    return
                if following is not None:
                    made = following()
                else:
                    made = self._make(seed, epoch, position, done, count)
        except GeneratorExit:
            raise
        except BaseException:
            self._ready.clear()  # the process that has begun it may be gone
            raise
        finally:
            threads.close()

    def _begin(self, threads: Threads, *arguments: int) -> Callable[[], _Made]:
        """Begin to make plans; what is returned waits for them."""
        if self._where == "process":
            return self._process.submit(*arguments).result
        under_way = [threads.start(self._make, *arguments)]
        return lambda: results(under_way)[0]

    def _prepare(self, threads: Threads, seed: int, epoch: int, *, started: bool) -> None:
        """Begin to plan the beginning of an epoch; in the process, where that has been started:
        one is not worth it for epochs that are planned at once."""
        key, arguments = (seed, epoch, 0), (seed, epoch, 0, 0, self._first)
        if self._where == "process" and started:
            self._ready[key] = self._process.submit(*arguments).result
            return

        def prepare() -> None:
            made = self._make(*arguments)
            self._ready[key] = lambda: made

        threads.start(prepare)

    def close(self) -> None:
        """End the process, if there is one; the next plans start another."""
        self._ready.clear()
        self._process.close()


class _Maker:
    """(seed, epoch, position, first, count) -> the plans of up to ``count`` steps from step
    ``first`` on, counted from ``position``."""

    def __init__(
        self, sampler: BatchSampler, recipe: Recipe, sizes: NDArray[np.int32] | None
    ) -> None:
        self._sampler = sampler
        self._recipe = recipe
        self._sizes = sizes

    def __call__(self, seed: int, epoch: int, position: int, first: int, count: int) -> _Made:
        positions = self._sampler.positions(position, first, count)
        key = draw_key(seed, epoch)
        if not positions:
            return BatchPlan(key, np.empty(0, np.int64)), []
        indices = self._sampler.indices(seed, epoch, np.concatenate(positions))
        plan = plan_samples(self._recipe, key, indices, self._sizes)
        return plan, [len(batch) for batch in positions]

    def __getstate__(self) -> dict[str, Any]:
        state, sizes = dict(self.__dict__), self._sizes
        if sizes is not None and is_one_row(sizes):  # it stays one where it is unpickled
            state["_sizes"] = (sizes[0], len(sizes))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        sizes = state["_sizes"]
        if isinstance(sizes, tuple):
            state["_sizes"] = np.broadcast_to(sizes[0], (sizes[1], 2))
        self.__dict__.update(state)
