"""Engines: BatchPlan -> batch.

One file an engine, listed in :data:`fastdata.registry.ENGINES`. What a batch contains is decided
by its plan; engines differ in who touches the pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.dataset import Dataset
from fastdata.plan import BatchPlan, Planning
from fastdata.recipe import Recipe

__all__ = ["Batch", "Engine", "Settings", "Skipped", "Unavailable", "batches_together"]

_TOGETHER, _MOST_BYTES_TOGETHER = 16, 6 << 20


@dataclass(frozen=True)
class Settings:
    """What an engine is told once.

    Attributes:
        dataset: where the samples come from.
        batch_size: the most samples of a batch.
        recipe: what to do to them.
        transform: the user's callable on a uint8 HWC array, or None.
        device: where batches end up.
        dtype: of the images: torch.uint8 is left as it is, others are normalised.
        training: decides what ``on_error="skip"`` does, see :class:`Batch`.
        skip_errors: whether samples that are at fault are skipped.
        num_workers, prefetch_factor: of processes; None chooses.
        tuned: whether num_workers comes from a profile, for the explanation.
        options: the engine's own.
    """

    dataset: Dataset
    batch_size: int
    recipe: Recipe
    transform: Callable[[NDArray[np.uint8]], Any] | None
    device: torch.device
    dtype: torch.dtype
    training: bool
    skip_errors: bool
    num_workers: int | None
    prefetch_factor: int | None
    options: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False


@dataclass(frozen=True)
class Skipped:
    """A sample that ``on_error="skip"`` left out.

    Attributes:
        index: its dataset index.
        name: where it lies.
        reason: what is wrong with it.
        count: how often it was left out.
    """

    index: int
    name: str
    reason: str
    count: int = 1


class Batch(NamedTuple):
    """A finished batch.

    Attributes:
        images: on the device, [B, 3, H, W] in channels_last memory; what the user's transform
            made, stacked, where there is one.
        labels: [B] or [B, K] on the device, of the dataset's dtype; [B, 0] where there are none.
        indices: int64 [B], dataset indices, on the CPU.
        skipped: samples at fault. In evaluation they are missing from the batch, which may leave
            it empty; in training the batch's first good sample and its label fill the slot.
    """

    images: Any
    labels: torch.Tensor
    indices: torch.Tensor
    skipped: list[Skipped]


def batches_together(batch_bytes: int) -> int:
    """How many batches are made as one, of up to 6 MB: of small ones, what each costs beside its
    pixels, in calls and messages, is much of the time. As many more are in memory at once."""
    return max(1, min(_TOGETHER, _MOST_BYTES_TOGETHER // batch_bytes))


class Unavailable(Exception):
    """An engine that could do the work cannot do it here; the message says why. The loader takes
    the next engine then, and explains."""


class Engine(ABC):
    """Carries out plans."""

    options: ClassVar[tuple[str, ...]] = ()
    """Names of ``engine_options`` that it knows."""
    planning: Planning = "thread"
    """Where its batches are planned. Where all that it does for a batch is a few calls, sharing the
    interpreter with a thread costs more than planning between them."""
    num_workers: int = 0
    """How many processes or threads it has taken; 0: none beside the training's."""
    prefetch_factor: int = 1
    """How far ahead it works, in its own unit."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            UsageError: an option is at fault.
            Unavailable: the machine does not allow it.
        """
        self.settings = settings
        self.pipeline: Any = None  # of a library that does the work, where that is one thing

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        """Why the engine cannot do this work on any machine; None where it can."""
        return None

    @abstractmethod
    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        """Carry out plans, in their order; an iteration that was begun earlier is abandoned.

        Raises:
            ImageError: a sample is at fault and errors are not skipped.
            WorkerError: a process of the engine died.
        """

    def use_workers(self, count: int) -> bool:
        """Leave all but ``count`` workers without work from the next iteration on; whether the
        engine can do that."""
        return False

    @abstractmethod
    def explain(self) -> list[str]:
        """What the engine does with which settings and why, in sentences."""

    @abstractmethod
    def close(self) -> None:
        """End processes and release memory; calling it again does nothing."""
