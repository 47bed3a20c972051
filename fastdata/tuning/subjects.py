"""What is tuned, and a setting of it that runs."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fastdata.errors import UsageError
from fastdata.tuning.limits import Need
from fastdata.tuning.model import Cost

__all__ = ["Candidate", "Feed", "Probes", "Subject"]


@dataclass(frozen=True)
class Candidate:
    """One setting of one subject.

    Attributes:
        subject: name of the data that it loads.
        engine: name of the engine; ``"dataloader"`` for torch's.
        workers: processes or threads.
        prefetch: tasks that each prepares ahead.
        options: further arguments, such as the engine's own or pin_memory.
    """

    subject: str
    engine: str
    workers: int
    prefetch: int
    options: tuple[tuple[str, Any], ...] = ()

    def words(self) -> str:
        """The setting for people, without the subject."""
        given = [(name, value) for name, value in self.options if value not in (None, False)]
        extra = "".join(f", {name}={value}" for name, value in given)
        return f"{self.engine}, {self.workers} workers, prefetch {self.prefetch}{extra}"


@dataclass(frozen=True)
class Probes:
    """What a sample costs, measured in one process and with one worker.

    Attributes:
        stages: stage -> its cost.
        missing: stage -> why it could not be measured.
        worker: all that a worker does for a sample.
        main: all that the training process does to receive one.
        threads: that a worker's work keeps busy.
        typical, slowest: seconds of the median sample and of the slowest that was seen.
        slow_share: share of the time that goes to samples of over 10 times the median's.
        one: samples a second of one worker, its batches thrown away.
        start: seconds until its first batch.
        fixed: samples a second where there are no workers: the device does it all.
        worker_bytes: memory that a worker has of its own.
        worker_files: files that the training process opens for one.
        batch_bytes: of a batch on its way.
        in_shm: whether batches on their way lie in ``/dev/shm``.
        pinned_gain: seconds per sample that pinned memory saves on the way to the device; None:
            not measured.
    """

    stages: dict[str, Cost]
    missing: dict[str, str]
    worker: Cost
    main: Cost
    threads: float
    typical: float
    slowest: float
    slow_share: float
    one: float
    start: float
    fixed: float | None = None
    worker_bytes: int = 0
    worker_files: int = 0
    batch_bytes: int = 0
    in_shm: bool = False
    pinned_gain: float | None = None

    def need(self, candidate: Candidate) -> Need:
        """What a setting takes."""
        under_way = self.batch_bytes * (candidate.workers * candidate.prefetch + 2)
        return Need(
            memory=candidate.workers * self.worker_bytes + under_way,
            shm=under_way if self.in_shm and candidate.workers else 0,
            files=64 + candidate.workers * self.worker_files,
        )


@dataclass
class Feed:
    """A running loader, epoch after epoch without an end.

    Attributes:
        source: what is iterated, one epoch at a time.
        limit: told the number of workers that are to work, before an iteration.
        end: ends its processes.
        opened: when its making began, by time.perf_counter.
        start_seconds: from then until the very first batch; None before.
    """

    source: Iterable[Any]
    limit: Callable[[int], object]
    end: Callable[[], None]
    opened: float
    start_seconds: float | None = None
    _batches: Iterator[Any] = field(default_factory=lambda: iter(()))

    def begin(self, workers: int) -> None:
        """Iterate from now on with so many workers."""
        self.stop()
        self.limit(workers)
        self._batches = self._endless()

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self.start_seconds is None:
            self.start_seconds = time.perf_counter() - self.opened
        return batch

    def _endless(self) -> Iterator[Any]:
        for epoch in itertools.count():
            empty = True
            for batch in self.source:
                empty = False
                yield batch
            if empty:
                raise UsageError(
                    f"epoch {epoch} of the data has not one batch; expected at least one: use a "
                    "smaller batch_size"
                )

    def stop(self) -> None:
        """Abandon the iteration; the processes stay."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def close(self) -> None:
        """End all of it; calling it again does nothing."""
        self.stop()
        self.end()


class Subject(ABC):
    """Data that is loaded, in batches, by settings of which one is to be found.

    Attributes:
        name: for people and in results.
        batch_size: samples of a batch.
        epoch: samples of an epoch.
        pauses: whether nothing is under way when an epoch begins.
        device: where batches end up.
        engines: those that can run here.
        refused: engine -> why it cannot.
        convert_seconds: what making the data took, or would take for all of it; 0 where it is
            there; None: not measured.
    """

    name: str
    batch_size: int
    epoch: int
    pauses: bool = True
    device: torch.device
    engines: list[str]
    refused: dict[str, str]
    convert_seconds: float | None

    @abstractmethod
    def incumbent(self) -> Candidate:
        """What is in use when nothing is tuned."""

    @abstractmethod
    def base(self, engine: str, probes: Probes) -> Candidate:
        """The setting of an engine from which others differ in their number of workers."""

    def refinements(self, candidate: Candidate) -> list[Candidate]:
        """Settings to try beside one that was the fastest, of what no model foresees."""
        return []

    @abstractmethod
    def probe(self, engine: str, seconds: float) -> Probes:
        """Measure what a sample costs, for about so many seconds."""

    @abstractmethod
    def open(self, candidate: Candidate) -> Feed:
        """Make a loader with the setting, with no process running yet."""

    @abstractmethod
    def shares_pool(self, candidate: Candidate) -> bool:
        """Whether one loader can stand for several numbers of workers."""

    @abstractmethod
    def arguments(self, candidate: Candidate) -> dict[str, Any]:
        """The arguments to give for a setting."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the subject holds."""
