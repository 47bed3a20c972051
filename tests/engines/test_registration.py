"""Registering a file's pages, with CUDA played by a list."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastdata.engines import Unavailable, registration
from fastdata.engines.registration import Registration

SIZE = 10 * mmap.PAGESIZE


class Cuda:
    """Answers as the CUDA runtime does, and refuses the ``refused``-th registration."""

    def __init__(self, refused: int | None = None) -> None:
        self.registered: list[tuple[int, int]] = []
        self.calls = 0
        self._refused = refused

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls += 1
        assert flags == 8  # read-only
        if self.calls == self._refused:
            return 801
        self.registered.append((address, size))
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.registered = [entry for entry in self.registered if entry[0] != address]
        return 0


@pytest.fixture
def array() -> NDArray[np.uint8]:
    """Some bytes that neither begin nor end with a page."""
    return np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)[100 : SIZE - 300]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    def start(cuda: Cuda, chunk: int = 3 * mmap.PAGESIZE) -> Cuda:
        monkeypatch.setattr(registration, "_cudart", lambda: cuda)
        monkeypatch.setattr(registration, "_CHUNK", chunk)
        monkeypatch.setattr("torch.zeros", lambda *args, **options: None)
        return cuda

    return start


def test_whole_pages_are_registered_in_chunks_and_released(
    array: NDArray[np.uint8], play: Any
) -> None:
    cuda, told = play(Cuda()), []
    registered = Registration(array, lambda done, total: told.append((done, total)))
    start = array.ctypes.data - 100
    page = mmap.PAGESIZE
    assert cuda.registered == [(start + k * page, min(3, 10 - k) * page) for k in (0, 3, 6, 9)]
    assert told == [(k * page, 10 * page) for k in (3, 6, 9, 10)]
    registered.close()
    assert cuda.registered == []
    registered.close()


def test_what_nobody_closes_is_released_too(array: NDArray[np.uint8], play: Any) -> None:
    cuda = play(Cuda())
    registered = Registration(array)
    assert cuda.registered
    del registered
    gc.collect()
    assert cuda.registered == []


def test_a_refusal_releases_what_was_registered_and_says_so(
    array: NDArray[np.uint8], play: Any
) -> None:
    cuda = play(Cuda(refused=3))
    with pytest.raises(Unavailable, match=r"refuses to register the file's pages \(error 801\)"):
        Registration(array)
    assert cuda.registered == []


def test_more_than_memory_is_not_tried(
    array: NDArray[np.uint8], play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = play(Cuda())
    monkeypatch.setattr(registration, "memory_limit", lambda: array.nbytes)
    with pytest.raises(Unavailable, match="more than 70% of the"):
        Registration(array)
    assert cuda.calls == 0


def test_it_stops_when_memory_runs_out_on_the_way(
    array: NDArray[np.uint8], play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = play(Cuda())
    left = iter([1 << 40, 1 << 40, 10])
    monkeypatch.setattr(registration, "memory_limit", lambda: 1 << 40)
    monkeypatch.setattr(registration, "available_memory", lambda: next(left))
    with pytest.raises(Unavailable, match="less than 5% of the memory is left"):
        Registration(array)
    assert cuda.calls == 3
    assert cuda.registered == []
