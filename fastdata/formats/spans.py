"""Encoded images that lie in larger files, found by ``offsets.npy``.

The reader of every format whose files hold the images' own bytes: it maps the files and hands out
slices of them. No library of the format is needed to read, nothing is parsed, and a map is safe
across forks and threads.
"""

from __future__ import annotations

import bisect
import mmap
import os
import resource
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import DatasetError
from fastdata.files import npy_bytes, open_array
from fastdata.formats import OFFSETS, Reader
from fastdata.manifest import MANIFEST, Manifest

__all__ = ["SpanReader", "span_bytes"]

_LEAST_MAPS = 64  # files a process keeps mapped, however low its limit on open files is


def span_bytes(spans: list[NDArray[np.int64]]) -> bytes:
    """The contents of ``offsets.npy`` for the spans of all shards, in order."""
    return npy_bytes(np.concatenate(spans).astype(np.int64).reshape(-1, 2))


class SpanReader(Reader):
    """Random access to the images of local files."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        files = [part for part in manifest.parts if part.samples is not None]
        self._paths = [root / part.file for part in files]
        self._ends = np.cumsum([part.samples for part in files]).tolist()
        self._spans: NDArray[np.int64] = open_array(root / OFFSETS, np.int64, manifest.samples, 2)
        self._manifest = root / MANIFEST
        self._opened = self._manifest.stat()
        self._lock = threading.Lock()
        self._maps: OrderedDict[int, memoryview] = OrderedDict()  # least recently used first
        self._most = max(_LEAST_MAPS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self._spans[:, 1]

    def read(self, index: int) -> memoryview:
        """The encoded image of sample ``index``, in the map of its file: nothing is copied."""
        return self._slice(bisect.bisect_right(self._ends, index), *self._spans[index].tolist())

    def read_many(self, indices: NDArray[np.int64]) -> list[memoryview]:
        files = np.searchsorted(self._ends, indices, side="right").tolist()
        spans = self._spans[indices]
        starts, sizes = spans.T.tolist()
        maps = {file: self._map(file) for file in set(files)}
        where = zip(files, starts, spans.sum(axis=1).tolist(), strict=True)
        found = [maps[file][start:end] for file, start, end in where]
        odd = spans[:, 0].min(initial=0) < 0 or spans[:, 1].min(initial=1) < 1
        if odd or list(map(len, found)) != sizes:  # perhaps not within a file
            return list(map(self._slice, files, starts, sizes))
        return found

    def location(self, index: int) -> tuple[Path, int, int]:
        offset, size = self._spans[index].tolist()
        return self._paths[bisect.bisect_right(self._ends, index)], offset, size

    def will_need(self, indices: NDArray[np.int64]) -> None:
        files = np.searchsorted(self._ends, indices, side="right").tolist()
        offsets, sizes = self._spans[indices].T.tolist()
        for number, offset, size in zip(files, offsets, sizes, strict=True):
            start = offset - offset % mmap.PAGESIZE
            mapped = self._slice(number, offset, size).obj
            assert isinstance(mapped, mmap.mmap)
            mapped.madvise(mmap.MADV_WILLNEED, start, offset + size - start)

    def _slice(self, file: int, offset: int, size: int) -> memoryview:
        mapped = self._map(file)
        if not 0 <= offset <= offset + size <= len(mapped):
            raise DatasetError(
                f"{self._manifest.parent / OFFSETS} does not fit the files beside it; restore "
                "it, or convert the source again"
            )
        return mapped[offset : offset + size]

    def _map(self, number: int) -> memoryview:
        mapped = self._maps.get(number)
        if mapped is not None and len(self._paths) <= self._most:  # no map is ever given up
            return mapped
        with self._lock:
            mapped = self._maps.get(number)
            if mapped is not None:
                self._maps.move_to_end(number)
                return mapped
            if len(self._maps) >= self._most:  # each map holds a file descriptor
                self._maps.popitem(last=False)
            try:
                with self._paths[number].open("rb") as file:
                    mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
                replaced = not os.path.samestat(self._opened, self._manifest.stat())
            except (FileNotFoundError, ValueError):  # of an empty file nothing can be mapped
                replaced = True
            if mapped is None or replaced:
                raise DatasetError(
                    f"{self._manifest.parent} was replaced while it was read; open it again"
                )
            self._maps[number] = mapped
            return mapped

    def close(self) -> None:
        self._maps.clear()  # a map is released with the last view of it
