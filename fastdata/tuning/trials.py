"""Settings beside each other, in the real loop with the training step.

Every round gives each setting one block, and every other round goes backwards, so that a drift of
the machine meets all alike; what counts is the ratio within a round. A block begins with batches
that are not counted, while the workers of the setting before it finish what they have under way.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastdata.tuning.gpu import GpuWatch
from fastdata.tuning.probes import synchronise
from fastdata.tuning.subjects import Candidate, Feed, Subject

__all__ = ["Interval", "Pools", "Trial", "interval", "ratio", "run_block", "run_rounds"]

_RESAMPLES = 1000
_TAIL = 0.05  # on either side of a 90 % interval


@dataclass(frozen=True)
class Interval:
    """A median and what the measurements allow it to be: a 90 % bootstrap interval."""

    middle: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Median of at least one value, with its interval."""
    sampler = random.Random(0)
    medians = sorted(
        statistics.median(sampler.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    cut = int(_TAIL * _RESAMPLES)
    return Interval(statistics.median(values), medians[cut], medians[-1 - cut])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The rounds' ratios: median and interval; both have one value for each round."""
    return interval([a / b for a, b in zip(ours, theirs, strict=True)])


@dataclass
class Trial:
    """A setting and what it has shown.

    Attributes:
        candidate: the setting.
        predicted: samples a second, by the model.
        rates: samples a second of each block.
        beside: the current setting's rates in the same rounds; empty where it had none.
        waits: seconds that each batch was waited for.
        waiting: seconds waited in all.
        seconds: of all blocks.
        start_seconds: until its first batch; it is in none of the others.
        busy: GPU utilisation of each block, in [0, 1].
        sm_active: share of the GPU's multiprocessors at work, in [0, 1].
    """

    candidate: Candidate
    predicted: float
    rates: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    waiting: float = 0.0
    seconds: float = 0.0
    start_seconds: float = 0.0
    busy: list[float] = field(default_factory=list)
    sm_active: list[float] = field(default_factory=list)

    @property
    def error(self) -> float | None:
        """How far the prediction was off: predicted / measured - 1; None before a block."""
        return self.predicted / statistics.median(self.rates) - 1 if self.rates else None

    @property
    def gain(self) -> Interval | None:
        """The rate over the current setting's; None where they had no rounds together."""
        return ratio(self.rates, self.beside) if self.beside else None

    def wait(self, percent: float) -> float:
        """A percentile of the waits, in seconds."""
        return float(np.percentile(self.waits, percent)) if self.waits else 0.0


class Pools:
    """The feeds of the settings under trial. One that stands for several numbers of workers is
    started once, with the most."""

    def __init__(self, subjects: Iterable[Subject]) -> None:
        self._subjects = {subject.name: subject for subject in subjects}
        self._feeds: dict[tuple[Any, ...], tuple[int, Feed]] = {}

    def _key(self, candidate: Candidate) -> tuple[Any, ...]:
        shared = self._subjects[candidate.subject].shares_pool(candidate)
        workers = None if shared else candidate.workers
        one = candidate
        return one.subject, one.engine, one.prefetch, one.options, workers

    def start(self, candidates: Sequence[Candidate]) -> None:
        """Start what is not running yet."""
        for candidate in sorted(candidates, key=lambda one: -one.workers):
            key = self._key(candidate)
            size, feed = self._feeds.get(key, (-1, None))
            if size >= candidate.workers:
                continue
            if feed is not None:
                feed.close()
            with warnings.catch_warnings():  # of more workers than CPUs, which is what is tried
                warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
                feed = self._subjects[candidate.subject].open(candidate)
                self._feeds[key] = candidate.workers, feed
                feed.begin(candidate.workers)
                next(feed)
                feed.stop()

    def feed(self, candidate: Candidate) -> Feed:
        """The feed of a setting that was started."""
        return self._feeds[self._key(candidate)][1]

    def close(self) -> None:
        """End all of them, whatever goes wrong with one."""
        feeds, self._feeds = list(self._feeds.values()), {}
        error: BaseException | None = None
        for _, feed in feeds:
            try:
                feed.close()
            except BaseException as caught:
                error = caught
        if error is not None:
            raise error


def run_block(
    trial: Trial,
    feed: Feed,
    step: Callable[[Any], Any] | None,
    subject: Subject,
    seconds: float,
) -> None:
    """Load, and train where there is a step, for about so long, and note what it gave. The time
    counted runs from the end of one step to the end of another."""
    workers, device = trial.candidate.workers, subject.device
    turns = max(1, subject.epoch // subject.batch_size), max(1, workers)
    under_way = workers * trial.candidate.prefetch + 1
    feed.begin(workers)
    began = time.perf_counter()
    for _ in range(under_way):
        batch = next(feed)
        if step is not None:
            step(batch)
        if time.perf_counter() - began > seconds:
            break
    synchronise(device)
    done, waits = 0, 0.0
    with GpuWatch(device) as watch:
        began = time.perf_counter()
        while not done or not _is_whole(done, time.perf_counter() - began, seconds, turns):
            waited = time.perf_counter()
            batch = next(feed)
            waited = time.perf_counter() - waited
            trial.waits.append(waited)
            waits += waited
            if step is not None:
                step(batch)
            done += 1
        synchronise(device)
        now = time.perf_counter() - began
    trial.busy += [] if watch.busy is None else [watch.busy]
    trial.sm_active += [] if watch.sm_active is None else [watch.sm_active]
    trial.rates.append(done * subject.batch_size / now)
    trial.waiting += waits
    trial.seconds += now
    feed.stop()


def _is_whole(done: int, now: float, seconds: float, turns: tuple[int, ...]) -> bool:
    """Whether a block has lasted long enough and holds whole epochs, or else whole turns of the
    workers, whose batches come together; it goes on to the end of one that is near."""
    if now < seconds:
        return False
    for turn in turns:
        left = -done % turn
        if left * now / done <= seconds:
            return left == 0
    return True


def run_rounds(
    trials: Sequence[Trial],
    block: Callable[[Trial], None],
    rounds: int,
    more: Callable[[int], bool],
) -> None:
    """Give every trial a block in each round, every other round backwards.

    Args:
        trials: the settings.
        block: measures one of them once.
        rounds: the most.
        more: told the number of rounds that are done; whether there is to be another.
    """
    for number in range(rounds):
        if not more(number):
            return
        for trial in trials if number % 2 == 0 else reversed(trials):
            block(trial)
