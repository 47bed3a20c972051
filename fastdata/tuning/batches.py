"""A torch Dataset of batches for the pools of tune_dataloader, and one that times itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fastdata.engines.pool import iterate
from fastdata.tuning.model import NOTHING, Cost
from fastdata.tuning.probes import Clock, Lap

__all__ = [
    "Batches",
    "Filled",
    "Measured",
    "Tasks",
    "Timed",
    "mean_cost",
    "unchanged",
]


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean of at least one."""
    count = len(costs)
    return Cost(sum(cost.wall for cost in costs) / count, sum(cost.cpu for cost in costs) / count)


class Measured:
    """What one batch cost: the lap of each sample; the cost of one, and of collating it; how many
    threads worked; the batch's bytes."""

    def __init__(
        self,
        samples: list[Lap],
        sample: Cost,
        collate: Cost,
        threads: float = 1.0,
        size: int = 0,
    ) -> None:
        self.samples, self.sample, self.collate = samples, sample, collate
        self.threads, self.bytes = threads, size


class Timed(Dataset[Any]):
    """Makes batches, times that, and gives the times."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any], iterable: bool, batch_size: int
    ) -> None:
        self._dataset, self._collate = dataset, collate
        self._batch_size = batch_size
        self._iterable = iterable
        self._iterator: Iterator[Any] | None = None

    def __getitem__(self, indices: Any) -> Measured:
        single, batch = Clock(), Clock()
        data, samples = self._fetched(indices, single)
        if not data:
            return Measured([], NOTHING, NOTHING)
        with batch:
            collated = self._collate(data)
        return Measured(
            samples,
            single.cost(len(data) if single.laps == 1 else 1),
            batch.cost(len(data)),
            single.threads,
            _bytes(collated),
        )

    def _fetched(self, indices: Any, clock: Clock) -> tuple[list[Any], list[Lap]]:
        """The samples of a batch, and the lap of each."""
        data: list[Any] = []
        samples: list[Lap] = []
        together = getattr(self._dataset, "__getitems__", None)
        if together is not None and indices and not self._iterable:
            with clock:
                data = together(indices)
            return data, [Lap(clock.lap.seconds / len(data), clock.lap.quiet)] * len(data)
        for index in range(self._batch_size) if self._iterable else indices:
            try:
                with clock:
                    data.append(self._next() if self._iterable else self._dataset[index])
            except StopIteration:
                self._iterator = None  # the next batch begins anew
                break
            samples.append(clock.lap)
        return data, samples

    def _next(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return next(self._iterator)


class Batches(Dataset[Any]):
    """A dataset of batches: what a DataLoader's worker does, for one list of indices."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __getitem__(self, indices: list[int]) -> Any:
        if not indices:
            return None
        fetch = getattr(self._dataset, "__getitems__", None)
        samples = fetch(indices) if fetch else [self._dataset[index] for index in indices]
        return self._collate(samples)


class Tasks(Sampler[list[int]]):
    """Lists of indices, dealt out to the first workers of a pool; the others get empty ones."""

    def __init__(self, batches: Iterable[list[int]], workers: int) -> None:
        self._batches, self._workers, self._active = batches, workers, workers

    def use_workers(self, count: int) -> None:
        """Give work to so many from the next iteration on."""
        self._active = min(max(1, count), self._workers)

    def __iter__(self) -> Iterator[list[int]]:
        turns = cycle(range(self._workers))
        for batch in self._batches:
            while next(turns) >= self._active:
                yield []
            yield batch


class Filled:
    """The batches of a loader, without those of the workers that had nothing to do."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch in iterate(self._loader) if batch is not None)


def unchanged(batch: Any) -> Any:
    """The batch."""
    return batch


def _bytes(value: Any) -> int:
    """Bytes of the tensors in a batch."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0
