"""Many relative paths in little memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["PathTable", "display"]

_STRIDE = 64  # of the paths whose beginnings are kept
_BLOCK = 1 << 20


class PathTable:
    """A sequence of N paths as one run of bytes, each ended by a NUL, which no path can contain.

    The same bytes are the file ``paths.bin`` of a dataset, which ``xargs -0`` reads as well.
    Paths take their own length and, once one was looked up, an eighth of a byte each.
    """

    _group: tuple[int, list[bytes]] = (-1, [])  # the paths looked at last, and which those are

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
    def _begins(self) -> tuple[int, NDArray[np.int64]]:
        """How many paths there are, and where every ``_STRIDE``-th begins."""
        count, begins = 0, [np.zeros(1, np.int64)]
        for first in range(0, len(self._data), _BLOCK):
            ends = first + 1 + np.flatnonzero(self._data[first : first + _BLOCK] == 0)
            begins.append(ends[_STRIDE - 1 - count % _STRIDE :: _STRIDE].copy())  # no view of all
            count += len(ends)
        return count, np.concatenate(begins)

    def __len__(self) -> int:
        return self._begins[0]

    def __getitem__(self, i: int) -> bytes:
        count, begins = self._begins
        if not 0 <= i < count:
            raise IndexError(f"path {i} of {count}")
        number, place = divmod(i, _STRIDE)
        known, paths = self._group
        if known != number:  # neighbours are mostly asked for one after the other
            end = begins[number + 1] if number + 1 < len(begins) else None
            paths = self._data[begins[number] : end].tobytes().split(b"\0")
            self._group = number, paths
        return paths[place]

    def tobytes(self) -> bytes:
        """The table's bytes."""
        return self._data.tobytes()


def display(path: bytes) -> str:
    """A path as text for messages: bytes that are no UTF-8 are escaped."""
    return path.decode("utf-8", "backslashreplace")
