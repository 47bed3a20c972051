"""Nothing grows: memory, descriptors, threads and processes of loaders that are used for long."""

from __future__ import annotations

import gc
import itertools
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, make_loader, open_dataset

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=64, crop="random_resized", hflip=0.5)
BATCH = 4  # 200 KB as float32: a hundred that are kept would be seen
TIMES = 100
MEGABYTE = 1 << 20
GROWTH = 12 * MEGABYTE  # what an allocator may keep for itself, and below TIMES batches


def memory(pid: int) -> int:
    """Bytes of a process that are mapped from no file, and what it has in shared memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", text, re.MULTILINE)))


def held(pids: set[int]) -> dict[str, int]:
    """What this process holds but memory, and how many of ``pids`` live.

    Not counted are two threads that plan ahead and two that gather: pools start them one by one,
    when all others are busy, which may be late.
    """
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    pools = ("fastdata-plan", "fastdata-gather")
    some = sum(min(2, sum(name.startswith(pool) for name in names)) for pool in pools)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count() - some,
        "system threads": len(os.listdir("/proc/self/task")) - some,
        "processes": len(pids),
    }


def more(now: dict[str, int], first: dict[str, int]) -> dict[str, int]:
    """What is held more than before; batches on their way may hold a few descriptors."""
    allowed = {"descriptors": 10}
    return {
        name: count for name, count in now.items() if count > first[name] + allowed.get(name, 0)
    }


def more_in_the_end(pids: set[int], first: dict[str, int]) -> dict[str, int]:
    """The same, once threads have gone that end a moment after who waits for them goes on."""
    ends = time.monotonic() + 20
    while (found := more(held(pids), first)) and time.monotonic() < ends:
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("name", "workers", "transform"),
    [
        ("webdataset", 0, None),
        ("webdataset", 2, None),
        ("webdataset", 2, torch.from_numpy),
        ("memmap", 2, None),  # threads
    ],
)
def test_breaking_and_iterating_again_a_hundred_times_keeps_nothing(
    name: str,
    workers: int,
    transform: Callable[[NDArray[np.uint8]], Any] | None,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    before: set[int],
    children: Callable[[], set[int]],
) -> None:
    path = in_format(name, uniform)
    options: dict[str, Any] = {"recipe": TRAIN, "transform": transform, "num_workers": workers}
    with make_loader(path, BATCH, **options) as loader:

        def break_and_iterate(times: int) -> None:
            for number in range(times):
                for _ in itertools.islice(loader, number % 3):
                    pass
                next(iter(loader))

        break_and_iterate(TIMES // 4)
        pids = children() - before
        assert len(pids) == (0 if name == "memmap" else workers)
        everyone = [os.getpid(), *pids]
        first, first_memory = held(pids), [memory(pid) for pid in everyone]
        break_and_iterate(TIMES)
        assert children() - before == pids  # the same processes, too
        assert more_in_the_end(pids, first) == {}
        growth = [memory(pid) - old for pid, old in zip(everyone, first_memory, strict=True)]
        assert max(growth) < GROWTH, growth


@pytest.mark.parametrize("workers", [0, 2])
def test_ten_epochs_keep_nothing(
    workers: int, packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    with make_loader(packed, 2, recipe=TRAIN, num_workers=workers) as loader:

        def epochs(count: int) -> None:
            for _ in range(count):
                for _ in loader:
                    pass

        epochs(3)
        pids = children() - before
        everyone = [os.getpid(), *pids]
        first, first_memory = held(pids), [memory(pid) for pid in everyone]
        epochs(10)
        assert children() - before == pids
        assert more_in_the_end(pids, first) == {}
        growth = [memory(pid) - old for pid, old in zip(everyone, first_memory, strict=True)]
        assert max(growth) < GROWTH, growth


@pytest.mark.parametrize("name", ["webdataset", "lmdb", "memmap", "folder"])
def test_making_and_closing_loaders_keeps_nothing(
    name: str,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    before: set[int],
    children: Callable[[], set[int]],
) -> None:
    path = in_format(name, uniform)

    def once(workers: int) -> None:
        with make_loader(path, BATCH, recipe=TRAIN, num_workers=workers) as loader:
            next(iter(loader))

    once(1)
    for _ in range(5):
        once(0)
    first, first_memory = held(children() - before), memory(os.getpid())
    for _ in range(TIMES // 10):
        once(0)
    once(1)
    once(1)
    assert more_in_the_end(children() - before, first) == {}
    assert memory(os.getpid()) - first_memory < GROWTH


def test_failing_again_and_again_keeps_nothing(
    packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    def fail(image: NDArray[np.uint8]) -> Any:
        raise LookupError("so be it")

    with (
        open_dataset(packed) as dataset,
        make_loader(dataset, BATCH, recipe=TRAIN, transform=fail, num_workers=1) as loader,
    ):

        def fail_often(times: int) -> None:
            for _ in range(times):
                with pytest.raises(LookupError):
                    next(iter(loader))

        fail_often(2)
        first, first_memory = held(children() - before), memory(os.getpid())
        fail_often(8)
        assert more_in_the_end(children() - before, first) == {}
        assert memory(os.getpid()) - first_memory < GROWTH
