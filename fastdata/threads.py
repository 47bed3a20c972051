"""Threads beside the caller's; an interrupt at any moment leaves no lock of theirs taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from fastdata.interrupts import held_signals

__all__ = ["Threads", "cancel", "results"]

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
        self._count, self._name = count, name
        self._pool = ThreadPoolExecutor(count, name)

    def start(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call ``work(*arguments)`` in one of the threads; see :func:`results`."""
        with held_signals():
            return self._pool.submit(work, *arguments)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """``work`` of each item, in order, a few items ahead of the caller."""
        waiting, under_way = iter(items), deque[Future[Result]]()
        try:
            while True:
                for item in islice(waiting, 2 * self._count - len(under_way)):
                    under_way.append(self.start(work, item))
                if not under_way:
                    return
                yield from results([under_way.popleft()])
        finally:
            cancel(under_way)

    def close(self) -> None:
        """End the threads; what has not begun is cancelled, what has is waited for."""
        # Whoever is collected may close it, which can be in any thread, also in one of these.
        here = threading.current_thread().name.startswith(self._name)
        with held_signals():
            self._pool.shutdown(wait=not here, cancel_futures=True)

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def results(futures: Sequence[Future[Result]]) -> list[Result]:
    """Wait for all of them; raises what the first that failed has raised."""
    with held_signals():
        return [future.result() for future in futures]


def cancel(futures: Iterable[Future[Any]]) -> None:
    """Return when none of them is or will be under way."""
    with held_signals():
        # Only those under way end: nobody would tell of the end of one that never begins.
        wait([future for future in futures if not future.cancel()])
