"""What goes into a pipeline of DALI's: encoded images and their boxes, plan after plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from fastdata.engines.dali.encoded import Begun, EncodedImages
from fastdata.plan import BatchPlan

__all__ = ["Feed", "Iteration"]


class Iteration:
    """Plans with their images, and those of them that are under way.

    Attributes:
        begun: given to the pipeline, or to be made aside, and not given out yet.
        error: what ended the plans; for where the next batch would have come.
    """

    def __init__(self, plans: Iterator[Begun]) -> None:
        self._plans = plans
        self.begun: deque[Begun] = deque()
        self.error: Exception | None = None

    def next(self) -> Begun | None:
        """Begin the next plan; None behind the last one, and where there is an error."""
        try:
            begun = next(self._plans, None)
        except Exception as error:
            begun, self.error = None, error
        if begun is None:
            self._plans = iter(())
        else:
            self.begun.append(begun)
        return begun

    def again(self) -> None:
        """Begin anew what was begun: the pipeline that had it is gone."""
        self._plans = chain(self.begun, self._plans)
        self.begun = deque()


class Feed:
    """The source of a pipeline, which holds it: so it does not hold the engine.

    Attributes:
        current: the iteration whose plans are taken.
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
        self._images = images
        self._geometry = geometry

    def start(self, plans: Iterator[BatchPlan]) -> Iteration:
        """Another iteration, which is the current one from now on."""
        self.current = Iteration(self._images.begin(plans))
        return self.current

    def __call__(self) -> tuple[Any, ...]:
        """The inputs of the next batch; called by the pipeline, in the training thread."""
        while (begun := self.current.next()) is not None:
            if begun.fed:
                part = begun.plan.take(begun.given) if len(begun.aside) else begun.plan
                return begun.encoded, *self._geometry(part)
        raise StopIteration

    def explain(self) -> list[str]:
        """Lines about who reads."""
        return self._images.explain()

    def close(self) -> None:
        """End what was started; another iteration starts it again."""
        self.start(iter(()))
        self._images.close()
