"""ReusedMemory: nothing that anybody can still see is given out again."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fastdata import open_dataset
from fastdata.reused import ReusedMemory


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_block_comes_back_with_the_last_array_in_it() -> None:
    memory = ReusedMemory()
    block = memory.take(10)
    first, place = block[:10], address(block)
    second = first[5:].reshape(1, 5)
    del block, first
    assert address(memory.take(10)) != place
    second[:] = 7
    del second
    places = {address(memory.take(10)) for _ in range(3)}
    assert place in places


def test_a_block_is_as_long_as_asked_and_large_ones_are_not_kept() -> None:
    memory = ReusedMemory()
    small = memory.take(0)
    assert memory.take(len(small) + 1).size == len(small) + 1
    large = weakref.ref(memory.take(2 * len(small)))
    assert large() is None
    assert len(memory.take(0)) == len(small)


def test_threads_never_share_a_block() -> None:
    memory, count = ReusedMemory(), 8
    blocks = [memory.take(1000) for _ in range(count)]
    del blocks  # all are free
    meet = threading.Barrier(count)

    def work(_: int) -> set[int]:
        found = set()
        for _ in range(200):
            meet.wait(60)
            block = memory.take(1000)
            found.add(address(block))
            places.append(address(block))
            meet.wait(60)  # all have theirs
            if meet.wait(60) == 0:
                most.append(max(map(places.count, places)))
                places.clear()
            del block
        return found

    places: list[int] = []
    most: list[int] = []  # of the threads had one and the same block, in each turn
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(count) as pool:
            found = set().union(*pool.map(work, range(count)))
    finally:
        sys.setswitchinterval(interval)
    assert set(most) == {1}
    assert len(found) < 4 * count  # they were used again


def test_a_folders_files_are_read_into_it(make_folder: Callable[..., Path]) -> None:
    path = make_folder()
    (path / "ant" / "ant_002.jpg").write_bytes(b"")
    (path / "bee" / "bee_001.jpg").write_bytes(bytes(5 << 20))  # more than a block
    with open_dataset(path) as dataset:
        memory, indices = ReusedMemory(), np.arange(len(dataset))[::-1]
        for _ in range(3):
            found = dataset.reader.read_into(memory, indices)
            for index, data in zip(indices.tolist(), found, strict=True):
                file = path / os.fsdecode(dataset.path_of(index))
                assert bytes(data) == file.read_bytes()
            del found, data
            gc.collect()
