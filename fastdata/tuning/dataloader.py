"""tune_dataloader: the same for any torch Dataset, with torch's own DataLoader."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    default_collate,
)

from fastdata.arguments import expect_type, parse_device
from fastdata.engines.pool import end_workers, iterate
from fastdata.errors import UsageError
from fastdata.profile import Profile
from fastdata.tuning.batches import (
    Batches,
    Filled,
    Measured,
    Tasks,
    Timed,
    mean_cost,
    unchanged,
)
from fastdata.tuning.evidence import profile_of
from fastdata.tuning.model import Cost
from fastdata.tuning.probes import (
    COLD,
    COLLATE,
    RECEIVE,
    probe_device,
    probe_one_worker,
    spread,
)
from fastdata.tuning.search import Search
from fastdata.tuning.subjects import Candidate, Feed, Probes, Subject
from fastdata.tuning.tune import check_goal

__all__ = ["tune_dataloader"]

_ENGINE = "dataloader"
_SAMPLE = "sample"  # fetch, decode and transform: what dataset[i] does
_PREFETCH = 2  # DataLoader's own default
_TIMEOUT = 120.0  # seconds for a batch: a worker may hang, as forked ones do that use OpenMP
_PIN, _PERSISTENT, _CONTEXT = "pin_memory", "persistent_workers", "multiprocessing_context"


def tune_dataloader(
    dataset: Any,
    batch_size: int,
    *,
    step: Callable[[Any], Any] | None = None,
    target_rate: float | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    sampler: Iterable[int] | None = None,
    drop_last: bool = True,
    worker_init_fn: Callable[[int], None] | None = None,
    device: str | torch.device | None = None,
    budget: float = 60.0,
    num_workers: int = 0,
    prefetch_factor: int = _PREFETCH,
    pin_memory: bool = False,
    multiprocessing_context: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Profile:
    """Find the arguments of a torch DataLoader for any dataset, by measurement.

    The method is that of :func:`fastdata.tune`::

        profile = tune_dataloader(dataset, 256, step=train_on_one_batch)
        loader = DataLoader(dataset, 256, shuffle=True, **profile.setting)

    Args:
        dataset: a torch Dataset, map-style or iterable.
        batch_size: samples of a batch.
        step: the training step: called with a batch as the DataLoader gives it, on the host; it
            moves the batch to the device itself.
        target_rate: samples a second to reach, in place of a step.
        collate_fn, sampler, drop_last, worker_init_fn: as for the DataLoader, which the training
            gives them to as well. sampler=None shuffles.
        device: where the step takes batches; None is the CPU.
        budget: seconds to spend; starting processes comes on top.
        num_workers, prefetch_factor, pin_memory, multiprocessing_context: those in use now.
        report: told what is going on, a line at a time.

    Returns:
        A profile whose ``setting`` is num_workers, prefetch_factor, pin_memory, persistent_workers
        and multiprocessing_context. It is not kept: nothing names a dataset that is not ours.

    Raises:
        UsageError: an argument is at fault, or no setting fits this machine.
        RuntimeError: no batch came for two minutes.
        Exception: whatever the dataset or the step raise. No process is left then.
    """
    check_goal(step, target_rate, budget)
    for name, value in (
        ("batch_size", batch_size),
        ("num_workers", num_workers),
        ("prefetch_factor", prefetch_factor),
    ):
        expect_type(name, value, int)
    if batch_size < 1:
        raise UsageError(f"expected batch_size to be at least 1, got {batch_size}")
    subject = _TorchSubject(
        dataset,
        batch_size,
        collate=default_collate if collate_fn is None else collate_fn,
        sampler=sampler,
        drop_last=drop_last,
        init=worker_init_fn,
        device=parse_device(device),
        incumbent=Candidate(
            type(dataset).__name__,
            _ENGINE,
            num_workers,
            prefetch_factor,
            _options(pin_memory, multiprocessing_context),
        ),
    )
    say = report or (lambda line: None)
    search = Search([subject], step=step, target_rate=target_rate, budget=budget, report=say)
    found = search.run()
    work = {
        "path": subject.name,
        "identity": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "recipe": "",
        "batch_size": batch_size,
        "device": str(subject.device),
    }
    return profile_of(found, subject.arguments(found.chosen), work)


def _options(pin: bool, context: str | None) -> tuple[tuple[str, Any], ...]:
    return ((_PIN, pin), (_CONTEXT, context))


class _TorchSubject(Subject):
    """A torch Dataset, loaded by a DataLoader."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        collate: Callable[[list[Any]], Any],
        sampler: Iterable[int] | None,
        drop_last: bool,
        init: Callable[[int], None] | None,
        device: torch.device,
        incumbent: Candidate,
    ) -> None:
        self.dataset, self.batch_size, self.device = dataset, batch_size, device
        self.name, self.engines, self.refused = incumbent.subject, [_ENGINE], {}
        self.convert_seconds, self.epoch = 0.0, 0
        self._collate, self._init, self._drop_last = collate, init, drop_last
        self._incumbent = incumbent
        self.iterable = isinstance(dataset, IterableDataset)
        self._sampler: Any = None
        if self.iterable:
            return
        if sampler is None:
            sampler = RandomSampler(dataset)
        self._sampler = BatchSampler(sampler, batch_size, drop_last)
        if not hasattr(sampler, "__len__"):
            return
        self.epoch = len(self._sampler) * batch_size
        if not self.epoch:
            raise UsageError(
                f"not one batch of {batch_size} is in the dataset's {len(dataset)} samples; use a "
                "smaller batch_size, or drop_last=False"
            )

    def incumbent(self) -> Candidate:
        return self._incumbent

    def base(self, engine: str, probes: Probes) -> Candidate:
        options = dict(self._incumbent.options)
        if probes.pinned_gain is not None:  # evidence, and no rule
            options[_PIN] = probes.pinned_gain > 0
        context = options[_CONTEXT]
        chosen = _options(options[_PIN], context)
        return Candidate(
            self.name, engine, self._incumbent.workers, self._incumbent.prefetch, chosen
        )

    def shares_pool(self, candidate: Candidate) -> bool:
        return not self.iterable and candidate.workers > 0

    def arguments(self, candidate: Candidate) -> dict[str, Any]:
        workers, options = candidate.workers, dict(candidate.options)
        return {
            "num_workers": workers,
            "prefetch_factor": candidate.prefetch if workers else None,
            _PIN: options[_PIN],
            _PERSISTENT: workers > 0,
            _CONTEXT: options[_CONTEXT] if workers else None,
        }

    def open(self, candidate: Candidate) -> Feed:
        began = time.perf_counter()
        given = {**self.arguments(candidate), "worker_init_fn": self._init}
        given["timeout"] = _TIMEOUT if candidate.workers else 0
        if self.iterable:
            loader: DataLoader[Any] = DataLoader(
                self.dataset,
                self.batch_size,
                collate_fn=self._collate,
                drop_last=self._drop_last,
                **given,
            )
            return Feed(Filled(loader), lambda workers: None, lambda: end_workers(loader), began)
        tasks = Tasks(self._sampler, max(1, candidate.workers))
        loader = DataLoader(
            Batches(self.dataset, self._collate),
            batch_size=None,
            sampler=tasks,
            collate_fn=unchanged,
            **given,
        )
        return Feed(Filled(loader), tasks.use_workers, lambda: end_workers(loader), began)

    def probe(self, engine: str, seconds: float) -> Probes:
        timed = Timed(self.dataset, self._collate, self.iterable, self.batch_size)
        laps, start = self._timed(timed, seconds / 2)
        feed = self.open(Candidate(self.name, engine, 1, _PREFETCH, self._incumbent.options))
        try:
            one = probe_one_worker(feed, self.batch_size, seconds / 2, self.device)
        finally:
            feed.close()
        samples = [sample for lap in laps for sample in lap.samples]
        sample = mean_cost([lap.sample for lap in laps])
        collate = mean_cost([lap.collate for lap in laps])
        batch_bytes = max(lap.bytes for lap in laps)
        batch = torch.empty(
            (self.batch_size, max(1, batch_bytes // self.batch_size)), dtype=torch.uint8
        )
        stages, missing, pinned_gain = probe_device(batch, self.device)
        times = spread(samples)
        missing[COLD] = "nothing is known of where this dataset's samples lie"
        return Probes(
            stages={_SAMPLE: sample, COLLATE: collate, RECEIVE: one.main, **stages},
            missing=missing,
            worker=Cost(sample.wall + collate.wall, sample.cpu + collate.cpu),
            main=one.main,
            threads=statistics.median(lap.threads for lap in laps),
            typical=times.typical,
            slowest=times.slowest,
            slow_share=times.slow_share,
            one=one.rate,
            start=max(start, one.start),
            worker_bytes=one.worker_bytes,
            worker_files=one.worker_files,
            batch_bytes=batch_bytes,
            in_shm=True,
            pinned_gain=pinned_gain,
        )

    def _timed(self, timed: Timed, seconds: float) -> tuple[list[Measured], float]:
        """What batches cost in a worker process, which has its own environment and threads."""
        tasks: Any = cycle([0]) if self.iterable else Tasks(self._sampler, 1)
        loader: DataLoader[Any] = DataLoader(
            timed,
            batch_size=None,
            sampler=tasks,
            num_workers=1,
            prefetch_factor=1,
            timeout=_TIMEOUT,
            persistent_workers=True,  # so that they can be ended whatever happens
            collate_fn=unchanged,
            worker_init_fn=self._init,
            multiprocessing_context=dict(self._incumbent.options)[_CONTEXT],
        )
        laps: list[Measured] = []
        began = time.perf_counter()
        start = 0.0
        try:
            while not laps or time.perf_counter() - began < seconds + start:
                for lap in iterate(loader):
                    start = start or time.perf_counter() - began
                    if lap.samples:
                        laps.append(lap)
                    if time.perf_counter() - began >= seconds + start:
                        break
                if not laps:
                    raise UsageError(f"{self.name} gives no samples; expected a batch at least")
        finally:
            end_workers(loader)
        return laps, start
