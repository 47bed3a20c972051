"""A plan's encoded images, as a pipeline of DALI's is given them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.plan import BatchPlan

__all__ = ["Begun", "EncodedImages", "Slots"]

Slots = NDArray[np.int64]


@dataclass
class Begun:
    """A plan whose images were read.

    Attributes:
        plan: with its draws.
        aside: int64, its slots that the pipeline is not given: of images that are no plain JPEGs,
            or what DALI cannot parse.
        encoded: the images of all other slots, as ``fn.external_source`` takes a batch.
        failure: why the images could not be read at once; then all slots are aside.
    """

    plan: BatchPlan
    aside: Slots
    encoded: Any = ()
    failure: Exception | None = None

    @classmethod
    def unread(cls, plan: BatchPlan, failure: Exception) -> Begun:
        """A plan of which nothing could be read."""
        return cls(plan, np.arange(len(plan)), failure=failure)

    @property
    def fed(self) -> bool:
        """Whether the pipeline has something of it."""
        return len(self.aside) < len(self.plan)

    @property
    def given(self) -> Slots:
        """The slots that the pipeline has."""
        return np.delete(np.arange(len(self.plan)), self.aside)


class EncodedImages(ABC):
    """The encoded images of plans."""

    @abstractmethod
    def begin(self, plans: Iterator[BatchPlan]) -> Iterator[Begun]:
        """The plans with their images, in order. What cannot be read is no error here: who reads
        samples one by one can say which it is."""

    def explain(self) -> list[str]:
        """Lines about who reads."""
        return []

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """End what was started; the next plan starts it again."""
