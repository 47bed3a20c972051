"""Threads: order, bounds, errors, ends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

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
    threads = Threads(1, "test")
    assert results([threads.start(threads.close)]) == [None]
    with pytest.raises(RuntimeError):
        threads.start(int)
    assert [thread for thread in threading.enumerate() if thread.name == "test"] == []
