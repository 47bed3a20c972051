"""Signals at a moment when they do no harm."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

__all__ = ["held_signals"]

_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGALRM),
    *(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
)


@contextmanager
def held_signals() -> Iterator[None]:
    """Let signals that the program handles, such as an interrupt, take effect afterwards only.

    An exception that a handler raises may come just after a lock was taken and before anybody is
    to release it: in threading's conditions, and so in its events, queues and futures, and where
    a thread is started. Whoever needs that lock then waits for ever.

    A process that is forked within leaves an interrupt, which a terminal sends to all, to this one.
    """
    if threading.current_thread() is not threading.main_thread():  # the only one that handles any
        yield
        return
    owner = os.getpid()
    came: list[tuple[int, Any]] = []
    every = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers: dict[int, Any] = {one: handler for one, handler in every.items() if callable(handler)}

    def hold(number: int, frame: Any) -> None:
        if os.getpid() == owner:
            came.append((number, frame))
        elif number != signal.SIGINT:  # a process that was forked within
            handlers[number](number, frame)

    def deliver() -> None:
        _call_all([partial(handlers[number], number, frame) for number, frame in reversed(came)])

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        _call_all([deliver, *(partial(signal.signal, *each) for each in handlers.items())])


def _call_all(calls: list[Callable[[], Any]]) -> None:
    """Make all calls, the last one first, also where one of them, or a signal, raises."""
    if calls:
        try:
            calls.pop()()
        finally:
            _call_all(calls)
