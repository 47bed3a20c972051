"""ReusedMemory: nothing that anybody can still see is given out again."""

from __future__ import annotations

import gc
import os
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


def test_a_block_is_as_long_as_asked() -> None:
    memory = ReusedMemory()
    small = len(memory.take(1))
    assert len(memory.take(small + 1)) == small + 1
    assert len(memory.take(1)) >= 1


def test_threads_never_share_a_block() -> None:
    memory = ReusedMemory()

    def work(number: int) -> bool:
        for _ in range(300):
            block = memory.take(1000)
            part = block[:1000]
            del block
            part[:] = number
            if not (part == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


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
