"""Threads beside the caller's; an interrupt at any moment leaves no lock of theirs taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from fastdata.interrupts import held_signals

__all__ = ["Threads", "cancel", "results"]

_here = threading.local()  # has "ours" in the threads of pools

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """A pool of threads, started as they are needed; closed by its ``with``."""

    def __init__(self, count: int, name: str) -> None:
        """
        Args:
            count: threads, at least one.
            name: of the threads, with a number after it.
        """
        self._count = count
        mark = partial(setattr, _here, "ours", True)
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(count, name, initializer=mark)

    def start(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call ``work(*arguments)`` in one of the threads; see :func:`results`.

        Raises:
            RuntimeError: they were closed.
        """
        with held_signals():
            if self._pool is None:
                raise RuntimeError("these threads were closed")
            return self._pool.submit(work, *arguments)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """``work`` of each item, in order, a few items ahead of the caller. Short items cost more
        to hand over than to do, and for those under way an interrupt has to wait."""
        waiting, under_way = iter(items), deque[Future[Result]]()
        try:
            while True:
                for item in islice(waiting, 2 * self._count - len(under_way)):
                    under_way.append(self.start(work, item))
                if not under_way:
                    return
                yield from results([under_way.popleft()])
        finally:
            for future in under_way:
                future.cancel()

    def close(self) -> None:
        """End the threads; what has not begun is cancelled, what has is waited for."""
        with held_signals():
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=_may_wait(), cancel_futures=True)
            # Here, and not somewhere behind: its threads go in callbacks of weak references, in
            # which an interrupt would be lost.
            del pool

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def results(futures: list[Future[Result]]) -> list[Result]:
    """Wait for all of them; raises what the first that failed has raised. They are taken from the
    list: who keeps them would keep an error, and by its traceback all that its callers hold."""
    with held_signals():
        list(map(_end, futures))  # without a variable, which would keep the last one
        try:
            found = []
            while futures:
                found.append(futures.pop(0).result())
            return found
        finally:
            futures.clear()


def _end(future: Future[Any]) -> None:
    with suppress(CancelledError):
        future.exception()


def cancel(futures: Iterable[Future[Any]]) -> None:
    """Return when none of them is or will be under way."""
    with held_signals():
        running = [future for future in futures if not future.cancel()]
        if _may_wait():
            wait(running)


def _may_wait() -> bool:
    """What is collected ends what it has under way, in whatever thread that happens: in one of a
    pool's it could wait for itself."""
    return not hasattr(_here, "ours")
