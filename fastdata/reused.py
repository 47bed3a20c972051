"""Memory that is used again: new memory costs a page fault for every 4 KB of it, which of a file
from the page cache takes longer than the copy."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReusedMemory"]

_BLOCK = 4 << 20


class ReusedMemory:
    """Blocks of bytes, each of which is given out again once nobody refers to it any more, nor to
    an array in it. Any thread may take one."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[bytearray, weakref.ref[NDArray[np.uint8]]]] = deque()

    def take(self, least: int) -> NDArray[np.uint8]:
        """A block that nobody uses, uint8 of ``least`` bytes or more, with undefined contents. One
        of more than 4 MB is new: blocks of all sizes would add up."""
        if least > _BLOCK:
            return np.empty(least, np.uint8)
        memory = self._free() or bytearray(_BLOCK)
        block = np.frombuffer(memory, np.uint8)
        self._blocks.append((memory, weakref.ref(block)))
        return block

    def _free(self) -> bytearray | None:
        for _ in range(len(self._blocks)):
            try:
                memory, user = self._blocks.popleft()
            except IndexError:  # another thread has the last one
                return None
            if user() is None:
                return memory
            self._blocks.append((memory, user))
        return None
