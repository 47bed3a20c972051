"""Rows gathered by batches of copies: which bytes go where, checked with copies on the CPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata.engines import Unavailable
from fastdata.engines.copies import BatchedCopy, RowCopies

COUNT, HEIGHT, WIDTH = 6, 7, 5
CPU = torch.device("cpu")
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)


class Copies:
    """Copies on the CPU, and what was asked for."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, int, int]]] = []

    def __call__(self, targets: Any, sources: Any, sizes: Any, stream: int) -> None:
        assert stream == 0
        self.calls.append(
            list(zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True))
        )
        for target, source, size in self.calls[-1]:
            assert size > 0
            ctypes.memmove(target, source, size)


def no_end(addresses: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.full_like(addresses, 1 << 40)


@pytest.mark.parametrize("chunk", [None, 100, 41], ids=str)
def test_rows_arrive_in_their_order(chunk: int | None) -> None:
    first, counts = np.array([3, 30, 0, 14, 41, 3]), np.array([5, 1, 7, 0, 1, 5])
    start = IMAGES.ctypes.data - 13

    def room(addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        return no_end(addresses) if chunk is None else chunk - (addresses - start) % chunk

    copies = Copies()
    rows = RowCopies(IMAGES, room, CPU, copies)
    if chunk == 41:  # a group over two ends and more would have to be cut twice
        counts = np.minimum(counts, 2)
    found = rows.gather(first, counts)
    lines = IMAGES.reshape(-1, WIDTH * 3)
    wanted = [lines[begin : begin + count] for begin, count in zip(first, counts, strict=True)]
    np.testing.assert_array_equal(found.numpy(), np.concatenate(wanted).reshape(-1))
    if chunk is not None:
        assert len(copies.calls[-1]) > np.count_nonzero(counts)  # some were cut
        for _, source, size in copies.calls[-1]:
            assert (source - start) // chunk == (source + size - 1 - start) // chunk


def test_one_copy_is_tried_at_once() -> None:
    copies = Copies()
    RowCopies(IMAGES, no_end, CPU, copies)
    assert [size for ((_, _, size),) in copies.calls] == [WIDTH * 3]


def test_no_rows_are_no_copies() -> None:
    copies = Copies()
    rows = RowCopies(IMAGES, no_end, CPU, copies)
    rows.gather(np.array([4, 4]), np.array([0, 0]))
    assert len(copies.calls) == 1  # the trial


def driver_call(arguments: tuple[Any, ...], status: int) -> int:
    """What cuda.h says of the arguments, carried out."""
    targets, sources, sizes, count, attributes, begins, kinds = arguments[:7]
    arrays = [
        np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint64)), (count.value,))
        for pointer in (targets, sources, sizes)
    ]
    words = ctypes.cast(attributes, ctypes.POINTER(ctypes.c_uint32))[:6]
    assert words == [3, 0, 0, 0, 0, 1]  # any order, no hints, overlap
    assert ctypes.cast(begins, ctypes.POINTER(ctypes.c_size_t))[0] == 0
    assert kinds.value == 1
    assert arguments[-1].value == 77
    for target, source, size in zip(*(array.tolist() for array in arrays), strict=True):
        ctypes.memmove(target, source, size)
    return status


@pytest.mark.parametrize("name", ["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"])
def test_the_driver_is_called_as_its_version_wants(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def call(*arguments: Any) -> int:
        calls.append(len(arguments))
        return driver_call(arguments, 0)

    library = SimpleNamespace(**{name: call})
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    source, target = np.arange(40, dtype=np.uint8), np.zeros(40, np.uint8)
    offsets = np.array([0, 20])
    BatchedCopy()(
        target.ctypes.data + offsets, source.ctypes.data + offsets + 5, np.array([10, 8]), 77
    )
    wanted = np.zeros(40, np.uint8)
    wanted[:10], wanted[20:28] = source[5:15], source[25:33]
    np.testing.assert_array_equal(target, wanted)
    assert calls == [8 if name.endswith("v2") else 9]


def test_what_the_driver_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(cuMemcpyBatchAsync_v2=lambda *_: 801)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    with pytest.raises(Unavailable, match="801"):
        RowCopies(IMAGES, no_end, CPU)


def test_an_old_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    with pytest.raises(Unavailable, match=r"12\.8"):
        BatchedCopy()


def test_no_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(Unavailable, match=r"libcuda\.so\.1"):
        BatchedCopy()
