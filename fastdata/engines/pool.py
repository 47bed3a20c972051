"""The processes of a DataLoader, begun and ended so that an interrupt does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from fastdata.garbage import spared_garbage
from fastdata.interrupts import held_signals

__all__ = ["end_workers", "iterate"]

_LOCK_SECONDS = 1.0  # far longer than a queue's lock is held


def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
    """An iterator of a DataLoader, whose workers persist; the first one starts them.

    An exception in the middle of that would leave processes that nobody knows of.
    """
    if not loader.num_workers or loader._iterator is not None:
        return iter(loader)
    with spared_garbage(), held_signals(), _unwatched_workers():
        return iter(loader)


@contextmanager
def _unwatched_workers() -> Iterator[None]:
    """torch would raise a worker's death from a handler of SIGCHLD, in the middle of whatever the
    training does, or of starting the others; it is raised where the next batch is asked for
    instead. So that handler, which may look after a DataLoader of the user's, is told of none."""
    tell = signal_handling._set_worker_pids  # type: ignore[attr-defined]

    def tell_of_none(key: int, child_pids: tuple[int, ...]) -> None:
        tell(key, ())

    signal_handling._set_worker_pids = tell_of_none  # type: ignore[attr-defined]
    try:
        yield
    finally:
        signal_handling._set_worker_pids = tell  # type: ignore[attr-defined]


def end_workers(loader: DataLoader[Any]) -> None:
    """End a DataLoader's processes now, and not when the last reference to it has gone."""
    pool: Any = getattr(loader, "_iterator", None)
    if pool is None or not loader.num_workers:
        return
    locks = [queue._notempty for queue in pool._index_queues]
    if hasattr(pool, "_pin_memory_thread"):
        locks.append(pool._data_queue.mutex)
    locks.append(pool._workers_done_event._cond)  # shared with the workers, who look at it
    for lock in locks:
        # An interrupt just after it was taken, before anybody was to release it, leaves it taken,
        # as does a worker that is killed while it has it: what tells the workers to end would wait
        # for it for ever.
        lock.acquire(timeout=_LOCK_SECONDS)
        lock.release()
    pool._shutdown_workers()
    loader._iterator = None
