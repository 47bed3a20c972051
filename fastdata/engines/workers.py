"""workers: torch DataLoader processes that each make whole batches.

A worker decodes straight into one shared-memory batch, so there is no per-sample tensor, no
collate, and one object to pass on for each batch.
"""

from __future__ import annotations

import select
import signal
from collections.abc import Callable, Generator, Iterator
from itertools import chain, cycle, islice, repeat
from typing import Any

import cv2
import torch
from torch.multiprocessing import get_all_start_methods
from torch.utils.data import DataLoader

from fastdata.engines import Batch, Engine, Settings, batches_together
from fastdata.engines.ahead import Ahead, PinnedRing
from fastdata.engines.disk import READ_AHEAD, ReadAhead
from fastdata.engines.fetch import Fetcher, HostBatch
from fastdata.engines.overdue import TIMEOUT, limit_waiting, parse_timeout
from fastdata.engines.packed import can_pack, slot_bytes
from fastdata.engines.pixels import CropStage
from fastdata.engines.pool import end_workers, iterate
from fastdata.engines.slots import Slots
from fastdata.engines.transfer import Finisher
from fastdata.errors import FastdataError, StorageError, UsageError, WorkerError
from fastdata.machine import available_cpus, cpus_of_a_rank
from fastdata.plan import BatchPlan
from fastdata.registry import DECODERS, DEFAULT_DECODER, load

__all__ = ["WorkersEngine"]

_OBITUARY = (
    "a worker process of the loader has died; if memory or /dev/shm ran out, try fewer workers or "
    "a smaller prefetch_factor; if a file of the dataset was cut short, fastdata verify names it"
)
_NO_ROOM = (
    "shared memory has run out; enlarge /dev/shm (docker run --shm-size), or try fewer workers or "
    "a smaller batch_size or prefetch_factor"
)
_SEGMENT = "</torch_"  # in all that torch says of shared memory, which has no type of its own
_DEATH_SECONDS = 1.0
_RESIZE_ON = ("auto", "device", "workers")
_AHEAD = 1
_PREFETCH = 2  # tasks ahead for each worker, DataLoader's own default


class WorkersEngine(Engine):
    """CPU decoding in worker processes.

    Attributes:
        together: batches that are sent to a worker at a time.

    Options:
        decoder: name of a decoder in the registry; ``"simplejpeg"`` by default.
        start_method: ``"fork"``, ``"forkserver"`` or ``"spawn"``; Python's default by default.
        resize_on: where crops are scaled for a CUDA device: ``"device"``, ``"workers"``, or
            ``"auto"``: the device where it can.
        read_ahead: whether the system is asked to read the samples of plans from the disk when
            they are sent to the workers; ``"auto"``, the default: where the dataset is more than
            memory.
        timeout: seconds in which no worker sends anything until that is an error; 600 by default,
            0 for never.
    """

    options = ("decoder", "resize_on", "start_method", READ_AHEAD, TIMEOUT)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        load(DECODERS, settings.options.get("decoder", DEFAULT_DECODER), "decoder")
        method = settings.options.get("start_method")
        if method is not None and method not in get_all_start_methods():
            raise UsageError(
                f"expected start_method to be one of {', '.join(get_all_start_methods())}, got "
                f"{method!r}"
            )
        self._timeout = parse_timeout(settings)
        self._cpus = available_cpus()
        asked = settings.num_workers
        self.num_workers = cpus_of_a_rank(self._cpus) if asked is None else asked
        self.prefetch_factor = settings.prefetch_factor or _PREFETCH
        where = settings.options.get("resize_on", "auto")
        if where not in _RESIZE_ON:
            raise UsageError(f"expected resize_on to be one of {_RESIZE_ON}, got {where!r}")
        on_device = settings.device.type == "cuda" and can_pack(settings)
        if where == "device" and not on_device:
            raise UsageError(
                'resize_on="device" needs a CUDA device, encoded images, a recipe with a size, '
                'without antialias and another crop than "random_pad", and no transform='
            )
        self._crops = CropStage(settings) if on_device and where != "workers" else None
        self._tables = PinnedRing(2 * (_AHEAD + 3))  # a table and adjustments for each batch
        self._finisher = Finisher(settings.recipe, settings.device, settings.dtype)
        self._slots: Slots | None = None
        self._slot_bytes = self._bytes_of_a_batch()
        self.together = 1
        if self._slot_bytes:
            self.together = batches_together(self._slot_bytes)
        self._read_ahead = ReadAhead(settings)
        self._feed = _Feed(self._read_ahead, self.num_workers)
        self._deaths = select.poll()
        self._loader: DataLoader[Any] | None = None

    def use_workers(self, count: int) -> bool:
        if not 1 <= count <= self.num_workers:
            return False
        self._feed.active = count
        return True

    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        return Ahead(self.settings.device, _AHEAD).run(self._received(plans), self._finish)

    def _received(self, plans: Iterator[BatchPlan]) -> Generator[HostBatch, None, None]:
        """Batches as the workers send them."""
        if self._loader is None:
            self._loader = self._start()
        self._feed.plans = plans
        try:
            received = self._iterate(self._loader)
            while True:
                task = next(received, None)
                if task is None:
                    return
                for fetched in task:
                    if isinstance(fetched, FastdataError):
                        raise fetched
                    yield fetched
                    if self._dead_workers(0):
                        raise WorkerError(_OBITUARY)
        except GeneratorExit:
            raise
        except BaseException as error:
            # A broken connection may be seen before the death that broke it.
            wait = _DEATH_SECONDS if isinstance(error, OSError | EOFError | RuntimeError) else 0
            died = isinstance(error, Exception) and self._dead_workers(wait)
            self.close()  # a pool that has failed is not used again
            if died and not isinstance(error, FastdataError):
                raise WorkerError(f"{_OBITUARY} ({error})") from error
            raise

    def _iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        received = iterate(loader)
        if self.num_workers:
            limit_waiting(received, self._timeout)
        self._deaths = select.poll()
        for worker in getattr(received, "_workers", []):
            self._deaths.register(worker.sentinel, select.POLLIN)
        return received

    def _dead_workers(self, seconds: float) -> bool:
        """Whether a worker has ended; waits up to ``seconds`` for it."""
        return self.num_workers > 0 and bool(self._deaths.poll(seconds * 1000))

    def _start(self) -> DataLoader[Any]:
        settings, workers = self.settings, self.num_workers
        if self._slot_bytes:
            self._make_slots()
        fetcher = Fetcher(
            settings, shared=workers > 0, slots=self._slots, packed=self._crops is not None
        )
        return DataLoader(
            _Source(fetcher, shared=workers > 0),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._feed,
            num_workers=workers,
            collate_fn=_unchanged,
            pin_memory=settings.device.type == "cuda" and self._slots is None,
            prefetch_factor=self.prefetch_factor if workers else None,
            persistent_workers=workers > 0,
            multiprocessing_context=settings.options.get("start_method") if workers else None,
            worker_init_fn=_init_worker,
            generator=torch.Generator(),  # else it draws from the user's
        )

    def _bytes_of_a_batch(self) -> int:
        """Of a slot; 0 where batches go without: in one process, of no fixed size, or to a device
        of which it is not known when it has read them."""
        settings, side = self.settings, self.settings.recipe.size
        known = settings.device.type in ("cpu", "cuda")
        if side is None or settings.transform is not None or not known:
            return 0
        if self._crops is not None:
            return slot_bytes(settings.batch_size, side)
        return settings.batch_size * side * side * 3 if self.num_workers else 0

    def _make_slots(self) -> None:
        """Memory for the batches on their way."""
        tasks = self.num_workers * self.prefetch_factor
        # Those that workers have, the task received last, and those whose copies are going on or
        # that the training still holds.
        count = (tasks + 1) * self.together + _AHEAD + 2
        self._slots = Slots(count, self._slot_bytes)
        if self.settings.device.type == "cuda":
            self._slots.register()
        active = self._feed.active
        self._feed = _Feed(
            self._read_ahead, self.num_workers, self._slots, self.together, self.prefetch_factor
        )
        self._feed.active = active

    def _finish(self, fetched: HostBatch) -> Batch:
        settings, images = self.settings, fetched.images
        if fetched.table is not None:
            images = self._scaled(fetched)
        elif fetched.slot is not None and self._slots is not None:
            images = self._finisher.from_slot(self._slots, fetched.slot, fetched.shape)
        elif settings.transform is None:
            images = self._finisher.images(images)
        else:
            images = _each_tensor(self._to_device, images)
        labels = self._finisher.labels(torch.from_numpy(fetched.labels))
        return Batch(images, labels, torch.from_numpy(fetched.indices), fetched.skipped)

    def _scaled(self, fetched: HostBatch) -> torch.Tensor:
        """Images of packed crops, by the device."""
        assert self._crops is not None
        assert self._slots is not None
        assert fetched.slot is not None
        assert fetched.table is not None
        memory = self._slots.array(fetched.slot, fetched.shape)
        images = self._crops.crop_packed(memory, fetched.table, fetched.adjustments, self._tables)
        copied = torch.cuda.current_stream(self.settings.device).record_event()
        self._slots.give_back(fetched.slot, copied)
        return images

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.settings.device, non_blocking=True)

    def explain(self) -> list[str]:
        workers = self.num_workers
        if not workers:
            how = "decodes in the training process itself (num_workers=0)"
        elif self.settings.num_workers is None:
            how = (
                f"decodes in {workers} worker processes, one for each of the {self._cpus} CPUs "
                "that this process may use"
            )
            if workers != self._cpus:
                how += ", divided by the ranks on this host"
        else:
            whose = "as the profile says" if self.settings.tuned else "as asked"
            how = f"decodes in {workers} worker processes, {whose}"
        decoder = self.settings.options.get("decoder", DEFAULT_DECODER)
        lines = [f"engine workers: {how}; decoder {decoder}."]
        if workers:
            ahead = f"Each worker prepares up to {self.prefetch_factor} batches ahead"
            if self.together > 1:
                ahead = f"{ahead}, or as many times {self.together}, because they are small"
            lines.append(f"{ahead}.")
        if self._crops is not None:
            lines.append(f"Workers cut crops without scaling them. {self._crops.explain()}")
        lines += self._read_ahead.explain()
        if self.settings.transform is not None:
            lines.append("transform= is a Python callable, which needs this engine.")
        return lines

    def close(self) -> None:
        loader, self._loader = self._loader, None
        self._deaths = select.poll()  # the numbers of its descriptors will be those of others
        if loader is not None:
            end_workers(loader)
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.close()


_Task = list[tuple[BatchPlan, int | None]]
"""Plans that one worker carries out, each with the slot that its batch goes to."""


class _Feed:
    """The sampler of the DataLoader: tasks of the plans of whatever iteration is current.

    Small batches go together, because a message costs as much as the work for some of them; but not
    the first ones, which give every worker something to do.

    Attributes:
        active: workers that get plans. The DataLoader deals tasks out in turn, so the others get
            empty ones, and a large pool can stand for a smaller one.
    """

    plans: Iterator[BatchPlan]

    def __init__(
        self,
        read_ahead: ReadAhead,
        workers: int,
        slots: Slots | None = None,
        together: int = 1,
        prefetch: int = 0,
    ) -> None:
        self._read_ahead = read_ahead
        self._workers = self.active = workers
        self._slots = slots
        self._together = together
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[_Task]:
        if self._slots is not None:
            # By the time that the first plan is asked for, the DataLoader has waited for all that
            # an abandoned iteration had under way.
            self._slots.reset()
        turns = cycle(range(max(1, self._workers)))
        sizes = chain(repeat(1, self.active * self._prefetch), repeat(self._together))
        for size in sizes:
            while next(turns) >= max(1, self.active):
                yield []
            plans = list(islice(self.plans, size))
            if not plans:
                return
            for plan in plans:
                self._read_ahead(plan)
            yield [(plan, self._slots.take() if self._slots else None) for plan in plans]


class _Source:
    """The dataset of the DataLoader: task -> batches, the last of which may be the error to raise
    where it is received."""

    def __init__(self, fetch: Fetcher, *, shared: bool) -> None:
        self._fetch = fetch
        self._shared = shared

    def __getitem__(self, task: _Task) -> list[HostBatch | FastdataError]:
        done: list[HostBatch | FastdataError] = []
        for plan, slot in task:
            done.append(self._carry_out(plan, slot))
            if isinstance(done[-1], FastdataError):
                break
        return done

    def _carry_out(self, plan: BatchPlan, slot: int | None) -> HostBatch | FastdataError:
        try:
            batch = self._fetch(plan, slot)
            if self._shared:
                # Here, where an error is heard of: the thread that sends the batch would drop it,
                # and the training would wait for ever.
                batch.images = _each_tensor(torch.Tensor.share_memory_, batch.images)
            return batch
        except FastdataError as error:  # torch would wrap it and lose its attributes
            return error
        except RuntimeError as error:
            if _SEGMENT not in str(error):
                raise
            return StorageError(f"{_NO_ROOM} ({error})")


def _unchanged(batch: Any) -> Any:
    return batch


def _init_worker(worker: int) -> None:
    # A terminal interrupts all processes. What becomes of it is for the training to say: it may
    # end its workers, or go on with them to save what it has. Not SIG_IGN: programs that a
    # transform starts would inherit that.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    cv2.setNumThreads(0)  # one process a core: OpenCV's own threads would only contend


def _each_tensor(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """What a collate made, a function applied to the tensors in its lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _each_tensor(function, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*(_each_tensor(function, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_each_tensor(function, item) for item in value)
    return value
