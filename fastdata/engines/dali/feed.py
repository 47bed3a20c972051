"""What goes into a pipeline of DALI's: encoded images and their boxes, plan after plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.engines.dali.encoded import Columns, EncodedImages
from fastdata.errors import FastdataError
from fastdata.plan import BatchPlan

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
        images: what the pipeline gets in place of encoded images, in its first columns.
    """

    def __init__(
        self,
        images: EncodedImages,
        geometry: Callable[[BatchPlan], Sequence[NDArray[Any]]],
    ) -> None:
        """
        Args:
            images: of the dataset.
            geometry: the pipeline's other inputs for a plan.
        """
        self.current = Iteration(iter(()))
        self.images = images
        self._geometry = geometry

    def __call__(self) -> tuple[Any, ...]:
        """The inputs of the next batch; called by the pipeline, in the training thread."""
        current = self.current
        try:
            for plan in current.plans:
                columns, begun = self._begin(plan)
                current.begun.append(begun)
                if begun.fed:
                    part = begun.plan.take(begun.given) if len(begun.aside) else begun.plan
                    return *columns, *self._geometry(part)
        except Exception as error:
            current.error = error  # raised where the batch would have come
        current.plans = iter(())
        raise StopIteration

    def _begin(self, plan: BatchPlan) -> tuple[Columns, Begun]:
        try:
            columns, plan, aside = self.images.take(plan)
        except FastdataError:
            raise
        except (OSError, ValueError):  # who reads them one by one can say which it is
            return [], Begun(plan, np.arange(len(plan)))
        return columns, Begun(plan, aside)

    def close(self) -> None:
        """End what the images have started; the next plan starts it again."""
        self.current = Iteration(iter(()))
        self.images.close()
