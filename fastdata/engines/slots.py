"""Batches in shared memory that worker processes fill, again and again.

A batch of its own for each plan would be new pages every time, a descriptor to send, and for a GPU
one more copy to pinned memory. The memory is anonymous (memfd), so that a small /dev/shm does not
limit it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Slots"]


class Slots:
    """``count`` pieces of ``size`` bytes; picklable to processes of this user on this machine.

    Who made it hands slots out: :meth:`take` gives one that nobody uses. It comes back by
    :meth:`give_back`, or once the array has gone that :meth:`lend` was told of. That is looked up,
    and no callback tells of it: an interrupt in one would be lost.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._descriptor = os.memfd_create("fastdata-slots", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, count * self._size)
        self._owner = os.getpid()
        self._map()
        self._free = list(range(count))
        self._lent: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._read: deque[tuple[int, torch.cuda.Event]] = deque()
        self._pinned: list[int] = []
        # Also where nobody closes: while the descriptor is open, the memory stays.
        self._end = weakref.finalize(self, _release, self._owner, self._descriptor, self._pinned)

    def _map(self) -> None:
        memory = mmap.mmap(self._descriptor, self._count * self._size)
        self._array = np.frombuffer(memory, np.uint8).reshape(self._count, self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {"owner": self._owner, "fd": self._descriptor, "shape": (self._count, self._size)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._owner, (self._count, self._size) = state["owner"], state["shape"]
        self._descriptor = os.open(f"/proc/{self._owner}/fd/{state['fd']}", os.O_RDWR)
        self._map()
        os.close(self._descriptor)

    def array(self, slot: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """uint8 of ``shape`` in the beginning of a slot."""
        return self._array[slot, : int(np.prod(shape, dtype=np.int64))].reshape(shape)

    def memory(self, slot: int) -> NDArray[np.uint8]:
        """All bytes of a slot, uint8 [bytes]."""
        memory: NDArray[np.uint8] = self._array[slot]
        return memory

    def register(self) -> None:
        """Pin the memory, so that copies from it run beside the host. If CUDA refuses, they do
        not; nothing else changes."""
        address, size = self._array.ctypes.data, self._array.nbytes
        status = torch.cuda.cudart().cudaHostRegister(address, size, 0)  # type: ignore[no-untyped-call]
        if int(status) == 0:
            self._pinned.append(address)
        else:
            with contextlib.suppress(RuntimeError):  # else the next call reports it
                torch.zeros(1, device="cuda")

    def take(self) -> int | None:
        """A slot that nobody uses; waits for one that is only read by a GPU. None where all that
        are left are lent."""
        if not self._free:
            self._free = self._no_longer_lent()
        while self._read and (not self._free or _passed(self._read[0][1])):
            slot, event = self._read.popleft()
            event.synchronize()
            self._free.append(slot)
        return self._free.pop() if self._free else None

    def _no_longer_lent(self) -> list[int]:
        ended = [slot for slot, array in self._lent.items() if array() is None]
        for slot in ended:
            del self._lent[slot]
        return ended

    def give_back(self, slot: int, event: torch.cuda.Event | None = None) -> None:
        """Return a slot whose contents are read until ``event``."""
        if event is None:
            self._free.append(slot)
        else:
            self._read.append((slot, event))

    def lend(self, slot: int, array: NDArray[np.uint8]) -> None:
        """Let a slot be kept by an array in it, until that one has gone.

        A tensor that torch.from_numpy makes of it holds on to it, as does all that shares the
        tensor's memory. Another view of the array in numpy does not.
        """
        self._lent[slot] = weakref.ref(array)

    def reset(self) -> None:
        """All slots that are not lent are free: those who filled them have ended, or were
        abandoned."""
        for _, event in self._read:
            event.synchronize()
        self._read.clear()
        self._no_longer_lent()
        self._free = [slot for slot in range(self._count) if slot not in self._lent]

    def close(self) -> None:
        """Release the memory; what is lent stays until its user has ended."""
        self.reset()
        self._end()
        self._array = np.empty((0, 0), np.uint8)  # the map goes with its last view


def _release(owner: int, descriptor: int, pinned: list[int]) -> None:
    if os.getpid() == owner:  # what CUDA knows of belongs to that process
        for address in pinned:
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
    os.close(descriptor)


def _passed(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
