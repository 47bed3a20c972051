"""Clocks, and what batches cost on their way: in one worker, and to the device."""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch

from fastdata.tuning.model import Cost
from fastdata.tuning.subjects import Feed

__all__ = [
    "COLD", "COLLATE", "CROP", "DECODE", "FETCH", "HEADER", "PIN", "RECEIVE", "TO_DEVICE",
    "Clock", "Lap", "OneWorker", "Spread", "probe_device", "probe_one_worker", "spread",
    "synchronise",
]  # fmt: skip

COLD, FETCH, HEADER = "fetch, cold", "fetch", "header"
DECODE, CROP = "decode", "crop and resize"
COLLATE, RECEIVE = "collate", "receive"
PIN, TO_DEVICE = "pin", "host to device"
_SLOW = 10  # times the median: a slow sample
_NO_GPU = "no CUDA device is used"


class Lap(NamedTuple):
    """Wall seconds of some work, and whether they are its own: see :class:`Clock`."""

    seconds: float
    quiet: bool


class Clock:
    """Times laps of the same work: wall seconds, and CPU seconds of all threads.

    What a thread loses when somebody else gets its CPU is no waiting of the work's own. Where it
    never gave the CPU up by itself, it did not wait at all; where both happened, nobody knows, and
    such laps are left out, unless they are the most.

    Attributes:
        lap: the last one.
    """

    def __init__(self) -> None:
        self._quiet: list[tuple[float, float]] = []
        self._disturbed: list[tuple[float, float]] = []
        self._all_cpu = self._own_cpu = 0.0
        self.lap = Lap(0.0, True)

    def __enter__(self) -> Clock:
        self._usage = resource.getrusage(resource.RUSAGE_THREAD)
        self._began = time.perf_counter(), time.process_time(), time.thread_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        now = time.perf_counter(), time.process_time(), time.thread_time()
        wall, cpu, own = (end - begin for end, begin in zip(now, self._began, strict=True))
        self._all_cpu += cpu
        self._own_cpu += own
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        waited = usage.ru_nvcsw > self._usage.ru_nvcsw
        if not waited:
            wall = min(wall, own)
        quiet = not waited or usage.ru_nivcsw == self._usage.ru_nivcsw
        (self._quiet if quiet else self._disturbed).append((wall, cpu))
        self.lap = Lap(wall, quiet)

    @property
    def laps(self) -> int:
        """How often the work was done."""
        return len(self._quiet) + len(self._disturbed)

    @property
    def threads(self) -> float:
        """How many threads do the work: the CPU time of all, in that of this one."""
        return self._all_cpu / self._own_cpu if self._own_cpu else 1.0

    def cost(self, samples: int = 1, *, alike: bool = False) -> Cost:
        """Seconds per sample, of at least one lap.

        Args:
            samples: of each lap.
            alike: whether laps are alike, so that the median is what one takes; else the mean.
        """
        used = self._quiet
        if len(self._quiet) < len(self._disturbed):
            used = self._quiet + self._disturbed
        middle = statistics.median if alike else statistics.fmean
        wall, cpu = (middle(column) for column in zip(*used, strict=True))
        return Cost(wall / samples, cpu / samples)


@dataclass(frozen=True)
class Spread:
    """How unlike samples are: seconds of the median and of the slowest one, and the share of the
    time that goes to samples of over 10 times the median's."""

    typical: float
    slowest: float
    slow_share: float


def spread(laps: Sequence[Lap]) -> Spread:
    """The spread of single samples' seconds, of which there is at least one; of those that were
    not disturbed, where they are the most."""
    quiet = [lap.seconds for lap in laps if lap.quiet]
    disturbed = [lap.seconds for lap in laps if not lap.quiet]
    values = np.array(quiet if len(quiet) >= len(disturbed) else quiet + disturbed)
    typical = float(np.median(values))
    slow = values[values > _SLOW * typical].sum() / max(values.sum(), 1e-12)
    return Spread(typical, float(values.max()), float(slow))


def probe_device(
    batch: torch.Tensor, device: torch.device
) -> tuple[dict[str, Cost], dict[str, str], float | None]:
    """Pinning, and the copy to the device.

    Args:
        batch: uint8 [B, ...] on the host.
        device: where it goes.

    Returns:
        stage -> its cost; stage -> why it has none; and the seconds per sample that copying from
        pinned memory saves, or None.
    """
    if device.type != "cuda":
        return {}, dict.fromkeys((PIN, TO_DEVICE), _NO_GPU), None
    rounds, samples = 5, len(batch)
    pinned = torch.empty_like(batch, pin_memory=True)
    target = torch.empty_like(batch, device=device)
    clocks = {"pageable": Clock(), PIN: Clock(), TO_DEVICE: Clock()}
    for turn in range(rounds + 1):
        if turn == 1:  # the first one was to warm up
            clocks = {name: Clock() for name in clocks}
        with clocks[PIN]:
            pinned.copy_(batch)
        with clocks[TO_DEVICE]:
            target.copy_(pinned, non_blocking=True)
            synchronise(device)
        with clocks["pageable"]:
            target.copy_(batch)
            synchronise(device)
    costs = {name: clock.cost(samples, alike=True) for name, clock in clocks.items()}
    pageable = costs.pop("pageable")
    return costs, {}, pageable.wall - costs[TO_DEVICE].wall


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class OneWorker:
    """What a loader with one worker does: the training process's cost of a sample, samples a
    second, seconds to the first batch, a worker's own bytes of memory, files opened for it."""

    main: Cost
    rate: float
    start: float
    worker_bytes: int
    worker_files: int


def probe_one_worker(feed: Feed, samples: int, seconds: float, device: torch.device) -> OneWorker:
    """Run a feed with one worker and throw its batches of ``samples`` samples away."""
    files, children = _open_files(), set(multiprocessing.active_children())
    feed.begin(1)
    for _ in range(3):  # what was ready at the start says nothing
        next(feed)
    synchronise(device)
    batches, own, cpu = 0, time.thread_time(), time.process_time()
    began = time.perf_counter()
    while not batches or time.perf_counter() < began + seconds:
        next(feed)
        batches += 1
    synchronise(device)
    wall, done = time.perf_counter() - began, batches * samples
    own, cpu = time.thread_time() - own, time.process_time() - cpu
    started = [child for child in multiprocessing.active_children() if child not in children]
    return OneWorker(
        main=Cost(own / done, cpu / done),
        rate=done / wall,
        start=feed.start_seconds or 0.0,
        worker_bytes=max((_private_bytes(child.pid) for child in started), default=0),
        worker_files=max(0, _open_files() - files) if started else 0,
    )


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _private_bytes(process: int | None) -> int:
    """Memory that a process shares with nobody."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
