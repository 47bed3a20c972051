"""Our datasets as subjects: any engine that can run here, probed stage by stage."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fastdata.dataset import Dataset
from fastdata.engines.dali.options import HARDWARE_LOAD
from fastdata.engines.fetch import Fetcher
from fastdata.engines.packed import can_pack, slot_bytes
from fastdata.engines.slots import Slots
from fastdata.errors import FastdataError, UsageError
from fastdata.loader import Loader, make_loader
from fastdata.registry import ENGINES
from fastdata.tuning.model import Cost
from fastdata.tuning.probes import (
    COLD,
    COLLATE,
    RECEIVE,
    Clock,
    probe_device,
    probe_one_worker,
    spread,
)
from fastdata.tuning.stages import StageProbe, plan_some, probe_cold
from fastdata.tuning.subjects import Candidate, Feed, Probes, Subject

__all__ = ["LoaderSubject"]

_PROCESSES = ("workers",)  # engines whose workers are processes
_NO_WORKERS = ("direct",)  # engines in which the device does it all
_LOAD, _LOAD_STEP = "hw_decoder_load", 0.2  # of DALI's GPU decoder
_TRANSFORM = "transform and collate"
_SHARES = {"stages": 0.3, "worker": 0.3, "one": 0.4}  # of a probe's time


class LoaderSubject(Subject):
    """A dataset of ours, or a plain folder, loaded by :func:`fastdata.make_loader`."""

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        batch_size: int,
        options: dict[str, Any],
        engine: str = "auto",
        counts: dict[str, Any] | None = None,
        convert_seconds: float | None = 0.0,
    ) -> None:
        """
        Args:
            name: for people.
            dataset: an open one.
            batch_size: samples of a batch.
            options: further arguments of make_loader; neither engine, num_workers nor
                prefetch_factor.
            engine: the only one to look at; ``"auto"``: all that can run here.
            counts: num_workers and prefetch_factor that are in use now; None: make_loader's own.
            convert_seconds: see :class:`Subject`.
        """
        self.name, self.dataset, self.batch_size = name, dataset, batch_size
        self._options = {**options, "profile": None}
        self._engine_options: dict[str, Any] = self._options.pop("engine_options", None) or {}
        self.convert_seconds = convert_seconds
        with self._make(engine, **(counts or {})) as loader:  # also checks the arguments
            settings = self.settings = loader.carrier.settings
            self.device = settings.device
            self.pauses = not settings.training  # see fastdata.stream
            self.epoch = min(len(loader) * batch_size, len(dataset))
            self._incumbent = _candidate(name, loader)
        self._defaults = {self._incumbent.engine: self._incumbent}
        self.engines, self.refused = [self._incumbent.engine], {}
        for other in [] if engine != "auto" else list(ENGINES):
            if other in self.engines:
                continue
            try:
                with self._make(other) as loader:
                    if loader.engine == other:
                        self.engines.append(other)
                        self._defaults[other] = _candidate(name, loader)
                    else:
                        self.refused[other] = "it gives way to another engine here"
            except FastdataError as error:
                self.refused[other] = str(error)
        side = settings.recipe.size
        shape = dataset.sizes[0].tolist() if side is None else (side, side)
        self._packed = self.device.type == "cuda" and can_pack(settings)
        self._batch_bytes = batch_size * int(np.prod(shape)) * 3
        if self._packed and side is not None:
            self._batch_bytes = slot_bytes(batch_size, side)
        self._stages = StageProbe(dataset, settings.recipe, batch_size, skip=settings.skip_errors)
        self._cold: Cost | str = ""

    def _make(self, engine: str, **counts: Any) -> Loader:
        given = {"engine_options": self._engine_options, **self._options, **counts}
        return make_loader(self.dataset, self.batch_size, engine=engine, **given)

    def incumbent(self) -> Candidate:
        return self._incumbent

    def base(self, engine: str, probes: Probes) -> Candidate:
        return self._defaults[engine]

    def refinements(self, candidate: Candidate) -> list[Candidate]:
        if candidate.engine != "dali":
            return []
        given = {**self._engine_options, **dict(candidate.options)}
        load = given.get(_LOAD, HARDWARE_LOAD)
        loads = [round(load + step, 2) for step in (-_LOAD_STEP, _LOAD_STEP)]
        return [replace(candidate, options=((_LOAD, load),)) for load in loads if 0 <= load <= 1]

    def open(self, candidate: Candidate) -> Feed:
        began = time.perf_counter()
        loader = self._make(**self.arguments(candidate))
        if loader.engine != candidate.engine:
            loader.close()
            raise UsageError(loader.explain())
        return Feed(loader, loader.use_workers, loader.close, began)

    def arguments(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "engine": candidate.engine,
            "num_workers": candidate.workers,
            "prefetch_factor": candidate.prefetch,
            "engine_options": {**self._engine_options, **dict(candidate.options)},
        }

    def shares_pool(self, candidate: Candidate) -> bool:
        return candidate.engine in _PROCESSES and candidate.workers > 0

    def probe(self, engine: str, seconds: float) -> Probes:
        cold = self._probe_stages(_SHARES["stages"] * seconds)
        stages, missing = self._stages.stages(), self._stages.missing()
        if isinstance(cold, str):
            missing[COLD] = cold
        else:
            stages[COLD] = cold
        feed = self.open(Candidate(self.name, engine, 1, self._defaults[engine].prefetch))
        try:
            one = probe_one_worker(feed, self.batch_size, _SHARES["one"] * seconds, self.device)
        finally:
            feed.close()
        main, threads = one.main, 1.0
        if engine in _PROCESSES or (engine == "gather" and self.device.type == "cpu"):
            worker, threads = self._probe_worker(_SHARES["worker"] * seconds)
            rest = max(0.0, worker.wall - self._stages.total().wall)
            stages[COLLATE if self.settings.transform is None else _TRANSFORM] = Cost(rest, rest)
        else:  # its work cannot be done by itself
            worker = Cost(1 / one.rate, max(0.0, main.cpu - main.wall))
        if engine not in _PROCESSES:  # its threads are this process's: not all time is the main's
            main = Cost(main.wall, max(main.wall, main.cpu - worker.cpu))
        stages[RECEIVE] = main
        shape = (self.batch_size, self._batch_bytes // self.batch_size)
        batch = torch.empty(shape, dtype=torch.uint8)
        device_stages, device_missing, pinned_gain = probe_device(batch, self.device)
        times = spread(self._stages.samples)
        return Probes(
            stages={**stages, **device_stages},
            missing={**missing, **device_missing},
            worker=worker,
            main=main,
            threads=threads,
            typical=times.typical,
            slowest=times.slowest,
            slow_share=times.slow_share,
            one=one.rate,
            start=one.start,
            fixed=one.rate if engine in _NO_WORKERS else None,
            worker_bytes=one.worker_bytes,
            worker_files=one.worker_files,
            batch_bytes=self._batch_bytes,
            in_shm=self.settings.transform is not None and engine in _PROCESSES,
            pinned_gain=pinned_gain,
        )

    def _probe_stages(self, seconds: float) -> Cost | str:
        """Once: the stages do not depend on the engine. Returns the cost of a cold fetch."""
        if not self._stages.samples:
            some = np.random.default_rng(1).permutation(len(self.dataset))
            self._cold = probe_cold(self.dataset.reader, some)
            self._stages.run(seconds)
        return self._cold

    def _probe_worker(self, seconds: float) -> tuple[Cost, float]:
        """All that a worker does, in this process and with one thread, as a worker has it; and how
        many threads are busy all the same."""
        threads = torch.get_num_threads()
        slots = Slots(1, self._batch_bytes) if self._packed else None
        torch.set_num_threads(1)
        try:
            fetch = Fetcher(self.settings, shared=False, slots=slots, packed=self._packed)
            samples, until, clock = 0, time.perf_counter() + seconds, Clock()
            while not samples or time.perf_counter() < until:
                plan = plan_some(self.dataset, self.settings.recipe, self.batch_size, samples)
                with clock if samples else nullcontext():  # the first one warms up
                    fetch(plan, 0 if slots is not None else None)
                samples += len(plan)
        finally:
            torch.set_num_threads(threads)
            if slots is not None:
                slots.close()
        cost = clock.cost(len(plan), alike=True) if clock.laps else self._stages.total()
        return cost, clock.threads

    def close(self) -> None:
        self.dataset.close()


def _candidate(name: str, loader: Loader) -> Candidate:
    engine = loader.carrier
    return Candidate(name, loader.engine, engine.num_workers, engine.prefetch_factor)
