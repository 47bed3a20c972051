"""The page cache as the GPU's memory: a read-only file mapping, registered with CUDA.

Registered pages cannot be reclaimed: too many of them end in an out-of-memory kill. So the room is
looked at before, and again while the registration proceeds, because a virtual machine's memory may
grow, or shrink, while it is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engines import Unavailable
from fastdata.machine import available_memory, memory_limit

__all__ = ["Registration"]

_READ_ONLY = 8  # cudaHostRegisterReadOnly
_CHUNK = 1 << 30
_MOST_OF_MEMORY = 0.7
_RESERVE = 0.05
_WILLNEED = 3  # madvise(2)


class Registration:
    """Pages of a mapping that a GPU may read, until :meth:`close` or the end of this object."""

    def __init__(
        self, array: NDArray[np.uint8], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """
        Args:
            array: inside a shared, read-only mapping of a file.
            progress: called with the bytes that are registered and their total.

        Raises:
            Unavailable: it is refused, or would leave too little memory; the message says why.
        """
        self._chunks: list[int] = []
        # Also where nobody closes it; the array is kept so long, and with it the mapping.
        self._release = weakref.finalize(self, _release, self._chunks, array)
        address, size = array.ctypes.data, array.nbytes
        self._start = start = address // mmap.PAGESIZE * mmap.PAGESIZE
        end = -(-(address + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        limit = memory_limit()
        if size > _MOST_OF_MEMORY * limit:
            raise Unavailable(
                f"{size / 1e9:.1f} GB of pixels are more than {_MOST_OF_MEMORY:.0%} of the "
                f"{limit / 1e9:.1f} GB of memory, of which registered pages are no more reclaimed"
            )
        try:
            for chunk in range(start, end, _CHUNK):
                self._register(chunk, min(_CHUNK, end - chunk), end)
                if progress is not None:
                    progress(min(chunk + _CHUNK, end) - start, end - start)
                if available_memory() < _RESERVE * limit:
                    raise Unavailable(
                        f"less than {_RESERVE:.0%} of the memory is left after registering "
                        f"{len(self._chunks)} GiB of {size / 1e9:.1f} GB"
                    )
        except BaseException:
            self.close()
            raise

    def _register(self, start: int, size: int, end: int) -> None:
        ahead = start + size  # is read from the disk while this chunk is registered
        if ahead < end:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(ahead), ctypes.c_size_t(min(_CHUNK, end - ahead)), _WILLNEED
            )
        status = int(_cudart().cudaHostRegister(start, size, _READ_ONLY))
        if status != 0:
            with contextlib.suppress(RuntimeError):  # else the next call reports it
                torch.zeros(1, device="cuda")
            raise Unavailable(f"CUDA refuses to register the file's pages (error {status})")
        self._chunks.append(start)

    def room(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes from each address to the end of its registration: no copy may go beyond."""
        return _CHUNK - (addresses - self._start) % _CHUNK

    def close(self) -> None:
        """Release the pages; what reads them must have ended."""
        self._release()


def _release(chunks: list[int], array: NDArray[np.uint8]) -> None:
    while chunks:
        _cudart().cudaHostUnregister(chunks.pop())


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
