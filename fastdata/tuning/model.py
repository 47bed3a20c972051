"""The rate that costs a sample imply, for any number of workers, and what sets it.

Workers carry samples beside each other; the training process receives them one after the other,
beside which it runs the step; all share the CPUs. Each of these alone would allow a certain rate:
the lowest of these ceilings is the prediction. No ceiling is fitted to a trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NOTHING", "Cost", "Model"]


@dataclass(frozen=True)
class Cost:
    """Seconds per sample: from beginning to end, and of CPU time, of all threads."""

    wall: float
    cpu: float

    @property
    def blocked(self) -> float:
        """Seconds waited for something else than a CPU."""
        return max(0.0, self.wall - self.cpu)


NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True)
class Model:
    """What a sample costs whom.

    Attributes:
        worker: its making, wherever that is done.
        main: its receiving by the training process.
        cpus: that may be kept busy.
        step: what the training step takes of the host; all of it where it runs on the CPU.
        ceiling: samples a second that the step or the target allows; None: no such thing.
        pause: seconds at the start of each epoch in which nothing arrives.
        epoch: samples of an epoch.
        fixed: samples a second of an engine that has no workers; it sets all the rest aside.
    """

    worker: Cost
    main: Cost
    cpus: float
    step: Cost = NOTHING
    ceiling: float | None = None
    pause: float = 0.0
    epoch: int = 0
    fixed: float | None = None

    def ceilings(self, workers: int) -> dict[str, float]:
        """Samples a second that each part alone would allow, for a number of workers; 0 workers
        work in the training process."""
        found: dict[str, float] = {}
        if self.fixed is not None:
            found["device"] = self.fixed
        elif workers == 0:
            found["one process"] = _rate(self.worker.wall + self.main.wall + self.step.wall)
        else:
            found["workers"] = workers * _rate(self.worker.wall)
            found["main process"] = _rate(self.main.wall + self.step.wall)
        if self.fixed is None:
            found["CPUs"] = self.cpus * _rate(self.worker.cpu + self.main.cpu + self.step.cpu)
        if self.ceiling is not None:
            found["step"] = self.ceiling
        return found

    def steady(self, workers: int) -> float:
        """Samples a second within an epoch: the lowest ceiling."""
        return min(self.ceilings(workers).values())

    def rate(self, workers: int) -> float:
        """Predicted samples a second, over whole epochs."""
        steady = self.steady(workers)
        if not self.epoch or not workers:
            return steady
        return self.epoch / (self.epoch / steady + self.pause)

    def limits(self, workers: int) -> list[str]:
        """The ceilings' names, the lowest first."""
        found = self.ceilings(workers)
        return sorted(found, key=found.__getitem__)

    def best(self, counts: Iterable[int], enough: float = 0.99) -> int:
        """The fewest workers whose predicted rate is ``enough`` of the highest."""
        rates = {count: self.rate(count) for count in sorted(counts)}
        highest = max(rates.values())
        return next(count for count, rate in rates.items() if rate >= enough * highest)


def _rate(seconds: float) -> float:
    """Samples a second of what takes so long; far more than anything where it takes nothing."""
    return 1 / max(seconds, 1e-9)
