"""Threads: order, bounds, errors, ends."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import Any

import pytest

from fastdata.threads import Threads, cancel, results


def test_results_come_in_order_and_few_are_made_ahead() -> None:
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.002 * (item % 3))
        return item * item

    with Threads(2, "test") as threads:
        for item, found in enumerate(threads.map(work, range(40))):
            assert found == item * item
            assert len(begun) <= item + 4
    assert sorted(begun) == list(range(40))


def test_an_error_comes_in_its_place_and_nothing_begins_after_it() -> None:
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise KeyError(item)
        return item

    with Threads(2, "test") as threads:
        found = threads.map(work, range(100))
        assert [next(found) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError, match="3"):
            next(found)
        assert len(begun) <= 7
        assert list(threads.map(work, [8, 9])) == [8, 9]


def test_what_waits_when_the_threads_are_closed_is_cancelled() -> None:
    go, started = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        go.wait(60)
        return "done"

    threads = Threads(1, "test")
    first, second = threads.start(work), threads.start(work)
    assert started.wait(60)
    closing = threading.Thread(target=threads.close)
    closing.start()
    while not second.cancelled():
        time.sleep(0.001)
    assert closing.is_alive()  # for the first
    go.set()
    closing.join(60)
    assert results([first]) == ["done"]
    cancel([first, second])  # returns, although nobody will say that the second has ended
    with pytest.raises(CancelledError):
        results([second])


def test_one_of_the_threads_may_close_them() -> None:
    threads = Threads(1, "closing")
    assert results([threads.start(threads.close)]) == [None]
    with pytest.raises(RuntimeError):
        threads.start(int)
    ends = time.monotonic() + 60
    while any(thread.name.startswith("closing") for thread in threading.enumerate()):
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_an_interrupt_while_threads_go_is_not_lost() -> None:
    threads = Threads(1, "going")
    results([threads.start(int)])
    [thread] = [one for one in threading.enumerate() if one.name.startswith("going")]
    # In a callback of a weak reference, where Python goes on after any exception.
    gone = weakref.ref(thread, lambda reference: signal.raise_signal(signal.SIGINT))
    del thread
    with pytest.raises(KeyboardInterrupt):
        threads.close()
    assert gone() is None


def test_an_error_keeps_nothing_of_the_work_beside_it() -> None:
    class Large:
        pass

    made: list[weakref.ref[Any]] = []

    def work(item: int) -> Large:
        if item == 1:
            raise KeyError(item)
        large = Large()
        made.append(weakref.ref(large))
        return large

    def caller(threads: Threads) -> list[Large]:
        under_way = [threads.start(work, item) for item in range(3)]
        return results(under_way)

    gc.disable()  # a cycle would live until it runs
    try:
        with Threads(2, "test") as threads:
            with pytest.raises(KeyError):
                caller(threads)
            with pytest.raises(KeyError):
                list(threads.map(work, range(9)))
        assert len(made) >= 3
        assert [one() for one in made] == [None] * len(made)
    finally:
        gc.enable()


def test_all_have_ended_when_one_has_failed() -> None:
    ended = []

    def work(item: int) -> None:
        if not item:
            raise KeyError(item)
        time.sleep(0.2)
        ended.append(item)

    with Threads(3, "test") as threads:
        with pytest.raises(KeyError):
            results([threads.start(work, item) for item in range(3)])
        assert sorted(ended) == [1, 2]
