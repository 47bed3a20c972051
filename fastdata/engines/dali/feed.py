"""What goes into a pipeline of DALI's: encoded images and their boxes, plan after plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.dataset import Dataset
from fastdata.engines.dali.headers import Headers
from fastdata.errors import FastdataError
from fastdata.machine import available_cpus, cpus_of_a_rank
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe
from fastdata.reused import ReusedMemory
from fastdata.threads import Threads, results

__all__ = ["Begun", "Feed", "Iteration"]

_MOST_READERS = 8  # threads: they mostly wait, for the disk or to copy what the system has read


@dataclass
class Begun:
    """A plan that was taken.

    Attributes:
        plan: with its draws.
        aside: int64, its slots that the pipeline was not given: images that are no plain JPEGs,
            or what DALI cannot parse.
    """

    plan: BatchPlan
    aside: NDArray[np.int64]

    @property
    def fed(self) -> bool:
        """Whether the pipeline has something of it."""
        return len(self.aside) < len(self.plan)

    @property
    def given(self) -> NDArray[np.int64]:
        """The slots that the pipeline has."""
        return np.delete(np.arange(len(self.plan)), self.aside)


class Iteration:
    """Plans, and those of them that were begun and not given out yet."""

    def __init__(self, plans: Iterator[BatchPlan]) -> None:
        self.plans = plans
        self.begun: deque[Begun] = deque()
        self.error: Exception | None = None

    def again(self) -> None:
        """Begin anew what was begun: the pipeline that had it is gone."""
        self.plans = chain([one.plan for one in self.begun], self.plans)
        self.begun = deque()


class Feed:
    """The source of a pipeline, which holds it: so it does not hold the engine.

    Attributes:
        current: the iteration whose plans are taken.
        readers: threads that read a plain folder's files.
    """

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        geometry: Callable[[BatchPlan], Sequence[NDArray[Any]]],
    ) -> None:
        """
        Args:
            dataset: of encoded images.
            recipe: whose draws complete a plan of images that had no size yet.
            geometry: the pipeline's other inputs for a plan.
        """
        self.current = Iteration(iter(()))
        self._dataset = dataset
        self._recipe = recipe
        self._geometry = geometry
        self._headers = Headers(dataset)
        self.readers = min(_MOST_READERS, max(2, cpus_of_a_rank(available_cpus()) // 2))
        self._threads: Threads | None = None
        self._memory = ReusedMemory()

    def __call__(self) -> tuple[Any, ...]:
        """The inputs of the next batch; called by the pipeline, in the training thread."""
        current = self.current
        try:
            for plan in current.plans:
                encoded, begun = self._begin(plan)
                current.begun.append(begun)
                if begun.fed:
                    given = begun.given
                    part = begun.plan.take(given) if len(begun.aside) else begun.plan
                    return [encoded[slot] for slot in given], *self._geometry(part)
        except Exception as error:
            current.error = error  # raised where the batch would have come
        current.plans = iter(())
        raise StopIteration

    def _begin(self, plan: BatchPlan) -> tuple[list[NDArray[np.uint8]], Begun]:
        """The encoded images, in the maps of their files where there are any, and what is begun."""
        try:
            encoded = self._read(plan.indices)
        except FastdataError:
            raise
        except (OSError, ValueError):  # who reads them one by one can say which it is
            return [], Begun(plan, np.arange(len(plan)))
        if self._dataset.plain:
            single, bad = self._headers.check(plan.indices, encoded)
        else:
            sizes, single, bad = self._headers.read(plan.indices, encoded)
            plan = plan.with_sizes(self._recipe, sizes)
        for slot in np.flatnonzero(single).tolist():
            encoded[slot] = _as_single(encoded[slot], int(single[slot]))
        return encoded, Begun(plan, bad)

    def _read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        read = partial(self._dataset.reader.read_into, self._memory)
        if self._dataset.plain:  # they are mapped, and DALI's threads read them
            return read(indices)
        if self._threads is None:
            self._threads = Threads(self.readers, "fastdata-read")
        shares = np.array_split(indices, self.readers)
        reading = [self._threads.start(read, share) for share in shares if len(share)]
        return [encoded for share in results(reading) for encoded in share]

    def close(self) -> None:
        """End the threads that read files; the next plan starts others."""
        self.current = Iteration(iter(()))
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        self._memory = ReusedMemory()


def _as_single(encoded: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """A grey JPEG whose sampling factors, at ``offset``, are 1x1: the GPU's hardware decoder takes
    others at their word, and makes a heap of tiles of the image."""
    changed = encoded.copy()
    changed[offset] = 0x11
    return changed
