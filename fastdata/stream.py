"""BatchStream: an engine's batches, epoch after epoch, without a gap where one epoch ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import islice
from weakref import WeakSet

from fastdata.engines import Batch, Engine
from fastdata.plan import BatchPlan
from fastdata.planner import EpochPlanner
from fastdata.sampling import BatchSampler

__all__ = ["BatchStream"]


_streams: WeakSet[BatchStream] = WeakSet()


class BatchStream:
    """Goes on with the next epoch's batches before anybody asks for them, as far as the engine
    works ahead: else all its workers would stand still at the end of each epoch, and the training
    until the next one's first batch is made.

    It holds nothing of the loader, whose end is what ends the engine's processes.
    """

    def __init__(self, engine: Engine, planner: EpochPlanner, sampler: BatchSampler) -> None:
        """
        Args:
            engine, planner: make the batches and their plans.
            sampler: how many they are.
        """
        self._engine = engine
        self._planner = planner
        self._sampler = sampler
        self._running: _Running | None = None
        self._pid = os.getpid()
        _streams.add(self)

    def batches(self, seed: int, epoch: int, position: int) -> Generator[Batch, None, None]:
        """The batches of an epoch from ``position`` on. An iteration that does not come to its end
        also ends what is under way."""
        running, begin = self._running, (seed, epoch, position)
        if running is None or running.next != begin:
            self.close()
            plans = self._plans(*begin)
            running = self._running = _Running(plans, self._engine.batches(plans))
        running.next = None  # in the middle of an epoch
        try:
            if self._sampler.shuffle:
                yield from islice(running.batches, self._sampler.steps(position))
                running.next = (seed, epoch + 1, 0)
            else:
                yield from running.batches
        finally:
            if running.next is None:
                running.close()

    def _plans(self, seed: int, epoch: int, position: int) -> Generator[BatchPlan, None, None]:
        while True:
            with closing(self._planner.plans(seed, epoch, position)) as plans:
                yield from plans
            if not self._sampler.shuffle:
                return
            epoch, position = epoch + 1, 0

    def close(self) -> None:
        """End what is under way."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    @property
    def is_inherited(self) -> bool:
        """Whether a fork has left it here: its threads and processes are its parent's."""
        return self._pid != os.getpid()


class _Running:
    """Batches under way.

    Attributes:
        batches: of the engine.
        next: seed, epoch and position of the one that comes next; None within an epoch.
    """

    def __init__(self, plans: Generator[BatchPlan, None, None], batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.next: tuple[int, int, int] | None = None
        self._plans = plans

    def close(self) -> None:
        # Both, and now: the traceback of an error would keep the planner's threads until it is
        # collected.
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()
        self._plans.close()


@atexit.register
def _close_all() -> None:
    """A program may end in the middle of an epoch. Later, what closing needs is gone."""
    for stream in list(_streams):
        if not stream.is_inherited:
            with suppress(Exception):  # one may be in use; nobody is left to be told
                stream.close()
