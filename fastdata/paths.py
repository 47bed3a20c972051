"""Many relative paths in little memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["PathTable", "display"]


class PathTable:
    """A sequence of N paths as one run of bytes, each ended by a NUL, which no path can contain.

    The same bytes are the file ``paths.bin`` of a dataset, which ``xargs -0`` reads as well.
    A million paths take their own length and, once one was looked up, 8 MB.
    """

    def __init__(self, data: bytes | bytearray | NDArray[np.uint8]) -> None:
        """Wrap the bytes; they are not copied."""
        self._data = np.frombuffer(data, np.uint8) if isinstance(data, bytes | bytearray) else data

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> PathTable:
        """Build a table."""
        return cls(b"".join(path + b"\0" for path in paths))

    @classmethod
    def open(cls, path: Path) -> PathTable:
        """Map a table's file into memory."""
        if path.stat().st_size == 0:
            return cls(b"")
        return cls(np.memmap(path, np.uint8, "r"))

    @functools.cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._data == 0)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: int) -> bytes:
        if not 0 <= i < len(self._ends):
            raise IndexError(f"path {i} of {len(self._ends)}")
        start = 0 if i == 0 else int(self._ends[i - 1]) + 1
        return self._data[start : int(self._ends[i])].tobytes()

    def tobytes(self) -> bytes:
        """The table's bytes."""
        return self._data.tobytes()


def display(path: bytes) -> str:
    """A path as text for messages: bytes that are no UTF-8 are escaped."""
    return path.decode("utf-8", "backslashreplace")
