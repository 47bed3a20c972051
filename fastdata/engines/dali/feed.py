"""What goes into a pipeline of DALI's: encoded images and their boxes, plan after plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia import nvimgcodec

from fastdata.dataset import Dataset
from fastdata.engines.samples import NO_SIZE
from fastdata.errors import FastdataError
from fastdata.header import Header, HeaderReader
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe

__all__ = ["Begun", "Feed", "Iteration"]


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
        self._headers = HeaderReader()
        self._checked = np.zeros(len(dataset), np.bool_)
        self._single = np.zeros(len(dataset), np.int32)  # see Header.single; of those checked

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
            data = self._dataset.reader.read_many(plan.indices)
        except FastdataError:
            raise
        except (OSError, ValueError):  # who reads them one by one can say which it is
            return [], Begun(plan, np.arange(len(plan)))
        encoded = [np.frombuffer(one, np.uint8) for one in data]
        if self._dataset.plain:
            aside = self._unparsable(plan, encoded)
            single = self._single[plan.indices]
            for slot in np.flatnonzero(single).tolist():
                encoded[slot] = _as_single(encoded[slot], int(single[slot]))
            return encoded, Begun(plan, aside)
        sizes, bad = [], []
        for slot, one in enumerate(data):
            header = self._header(bytes(one))
            sizes.append(NO_SIZE if header is None else (header.width, header.height))
            if header is None or not header.plain or not _channels(encoded[slot], sizes[-1]):
                bad.append(slot)
            elif header.single:
                encoded[slot] = _as_single(encoded[slot], header.single)
        plan = plan.with_sizes(self._recipe, np.array(sizes, np.int32))
        return encoded, Begun(plan, np.array(bad, np.int64))

    def _unparsable(self, plan: BatchPlan, encoded: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
        """Slots of a converted dataset's plan whose headers were damaged since."""
        new = np.flatnonzero(~self._checked[plan.indices])
        if not new.size:
            return new
        unsound = []
        for slot in new.tolist():
            index = plan.indices[slot]
            channels = _channels(encoded[slot], tuple(self._dataset.sizes[index].tolist()))
            if channels == 1:
                header = self._header(encoded[slot].tobytes())
                channels = 0 if header is None else 1
                self._single[index] = 0 if header is None else header.single
            if channels:
                self._checked[index] = True
            else:
                unsound.append(slot)
        return np.array(unsound, np.int64)

    def _header(self, data: bytes) -> Header | None:
        """Its header; None where it has none that is sound."""
        try:
            return self._headers.read(data)
        except (OSError, ValueError):
            return None


def _channels(encoded: NDArray[np.uint8], size: tuple[int, int]) -> int:
    """How many components a JPEG has by its header; 0 where DALI cannot parse that, or finds
    another size (width, height) in it.

    One that it cannot parse, or a box outside of the image, does not raise in DALI's threads: it
    ends the process. This is its own parser.
    """
    try:
        stream = nvimgcodec.CodeStream(encoded)
        sound = stream.codec_name == "jpeg" and (stream.width, stream.height) == size
        return int(stream.num_channels) if sound else 0
    except RuntimeError:
        return 0


def _as_single(encoded: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """A grey JPEG whose sampling factors, at ``offset``, are 1x1: the GPU's hardware decoder takes
    others at their word, and makes a heap of tiles of the image."""
    changed = encoded.copy()
    changed[offset] = 0x11
    return changed
