"""What the training step alone allows: on a cached batch, and while workers run beside it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from fastdata.tuning.model import Cost
from fastdata.tuning.probes import Clock, synchronise
from fastdata.tuning.subjects import Feed, Subject
from fastdata.tuning.trials import Interval, interval

__all__ = ["StepRate", "time_beside", "time_step"]

_BLOCKS = 5
_WARM_UP = 3
Step = Callable[[Any], Any]


@dataclass(frozen=True)
class StepRate:
    """The step on a batch that is there already.

    Attributes:
        rate: samples a second, with its interval.
        host: what it takes of the training process; on a GPU that is launching kernels.
    """

    rate: Interval
    host: Cost


def time_step(
    step: Step, batch: Any, batch_size: int, seconds: float, device: torch.device
) -> StepRate:
    """Time a step for about so long, over the same batch again and again."""
    for _ in range(_WARM_UP):
        step(batch)
    synchronise(device)
    rates, hosts = [], []
    for _ in range(_BLOCKS):
        clock, steps = Clock(), 0
        began = time.perf_counter()
        while not steps or time.perf_counter() - began < seconds / _BLOCKS:
            # A GPU has nothing to do before a block, so its first step is launched without waiting.
            with clock if device.type == "cpu" or not steps else nullcontext():
                step(batch)
            steps += 1
        synchronise(device)
        rates.append(steps * batch_size / (time.perf_counter() - began))
        hosts.append(clock.cost(batch_size, alike=True))
    host = Cost(
        statistics.median(cost.wall for cost in hosts),
        statistics.median(cost.cpu for cost in hosts),
    )
    return StepRate(interval(rates), host)


def time_beside(
    step: Step,
    batch: Any,
    feed: Feed,
    workers: int,
    alone: StepRate,
    subject: Subject,
    seconds: float,
) -> Interval:
    """The same while a feed runs and its batches are thrown away: as fast as it can, but no faster
    than the step alone could use them."""
    over = threading.Event()
    failure: list[BaseException] = []
    period = subject.batch_size / alone.rate.middle

    def throw_away() -> None:
        try:
            feed.begin(workers)
            due = time.perf_counter()
            while not over.is_set():
                next(feed)
                due = max(due + period, time.perf_counter())
                over.wait(due - time.perf_counter())
        except BaseException as error:
            failure.append(error)
        finally:
            feed.stop()

    thread = threading.Thread(target=throw_away, name="fastdata-contention", daemon=True)
    thread.start()
    try:
        rate = time_step(step, batch, subject.batch_size, seconds, subject.device).rate
    finally:
        over.set()
        thread.join()
    if failure:
        raise failure[0]
    return rate
