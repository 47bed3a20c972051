"""memmap: decoded images in one array, ``images.npy``: plain ``np.load(mmap_mode="r")``."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import DatasetError
from fastdata.files import TEMPORARY, storage_errors, sync_directory
from fastdata.formats import Reader, Sample, ShardRecord, Writer
from fastdata.manifest import Manifest, Part

__all__ = ["MemmapReader", "MemmapWriter"]

IMAGES = "images.npy"
_HEADER = 128  # bytes of the .npy header, fixed so that rows can be written before N is known


class MemmapReader(Reader):
    """Maps the array; nothing is read before it is looked at."""

    encoded = False

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._path = path = root / IMAGES
        if manifest.image_size is None:
            raise DatasetError(f"{root}: the manifest of a memmap dataset names no image_size")
        shape = (manifest.samples, *manifest.image_size, 3)
        with path.open("rb") as file:
            header = file.read(_HEADER)
        if header != _npy_header(shape):
            raise DatasetError(
                f"{path}: its header does not say uint8 {shape}; "
                "restore it, or convert the source again"
            )
        # A plain array over the map: numpy indexes it several times faster than a np.memmap.
        self._pixels = np.asarray(np.memmap(path, np.uint8, "r", offset=_HEADER, shape=shape))

    @property
    def pixels(self) -> NDArray[np.uint8]:
        return self._pixels

    def will_need(self, indices: NDArray[np.int64]) -> None:
        size = int(np.prod(self._pixels.shape[1:]))
        with open(self._path, "rb") as file:
            for index in indices.tolist():
                place = _HEADER + index * size
                os.posix_fadvise(file.fileno(), place, size, os.POSIX_FADV_WILLNEED)

    def location(self, index: int) -> tuple[Path, int, int]:
        size = int(np.prod(self._pixels.shape[1:]))
        return self._path, _HEADER + index * size, size

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.full(len(self._pixels), int(np.prod(self._pixels.shape[1:])), np.int64)

    def close(self) -> None:
        # The map goes with its last view: unmapping it under a view would be fatal.
        self._pixels = self._pixels[:0]


class MemmapWriter(Writer):
    """Workers write the rows of their shards into one preallocated file."""

    encoded = False

    @property
    def _rows(self) -> Path:
        return self.staging / (IMAGES + TEMPORARY)

    @property
    def _row_bytes(self) -> int:
        height, width = self._size
        return height * width * 3

    @property
    def _size(self) -> tuple[int, int]:
        assert self.image_size is not None  # the converter demands --size for this format
        return self.image_size

    def prepare(self, starts: NDArray[np.int64]) -> None:
        size = _HEADER + int(starts[-1]) * self._row_bytes
        with storage_errors(self._rows), self._rows.open("wb") as file:
            # Takes the blocks at once: a disk that is too small is found now, not in hours.
            os.posix_fallocate(file.fileno(), 0, size)
            file.write(_npy_header((int(starts[-1]), *self._size, 3)))

    def write_shard(
        self, shard: int, start: int, samples: Iterable[Sample]
    ) -> tuple[list[tuple[int, int]], list[Part]]:
        digest, count = hashlib.sha256(), 0
        with storage_errors(self._rows), self._rows.open("r+b") as file:
            file.seek(_HEADER + start * self._row_bytes)
            for sample in samples:
                assert sample.pixels is not None
                row = np.ascontiguousarray(sample.pixels)
                file.write(row.data)
                digest.update(row.data)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        # Where the rows end up is known when it is known what was skipped: see finish.
        part = Part(IMAGES, start, count * self._row_bytes, digest.hexdigest(), count)
        return [], [part]

    def finish(
        self, shards: list[ShardRecord], labels: NDArray[Any], note: Callable[[str], None]
    ) -> list[Part]:
        samples = sum(len(shard.positions) for shard in shards)
        shape = (samples, *self._size, 3)
        header = _npy_header(shape)
        path = self.staging / IMAGES
        planned = sum(len(shard.positions) + len(shard.skipped) for shard in shards)
        with storage_errors(path):
            if not path.exists():  # else an earlier try got as far as the rename
                rows = self._rows if samples == planned else self._compact(shards, header, note)
                rows.replace(path)
                self._rows.unlink(missing_ok=True)
                sync_directory(self.staging)
        parts = [Part(IMAGES, 0, _HEADER, hashlib.sha256(header).hexdigest())]
        offset = _HEADER
        for shard in shards:
            part = shard.parts[0]
            if part.samples:
                parts.append(Part(IMAGES, offset, part.bytes, part.sha256, part.samples))
            offset += part.bytes
        return parts

    def _compact(
        self, shards: list[ShardRecord], header: bytes, note: Callable[[str], None]
    ) -> Path:
        """Copy the surviving rows, so that skipped samples leave no hole."""
        note("closing the gaps that skipped images left")
        compacted = self.staging / (IMAGES + ".compact" + TEMPORARY)
        with self._rows.open("rb") as source, compacted.open("wb") as file:
            file.write(header)
            for shard in shards:
                part = shard.parts[0]
                source.seek(_HEADER + part.offset * self._row_bytes)
                left = part.bytes
                while left:
                    block = source.read(min(left, 1 << 24))
                    if not block:
                        raise OSError(errno.EIO, f"{self._rows} ends early")
                    file.write(block)
                    left -= len(block)
            file.flush()
            os.fsync(file.fileno())
        return compacted


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """A version 1.0 .npy header of 128 bytes for a C-ordered uint8 array."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode("ascii")
    prefix = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return prefix + text.ljust(_HEADER - 11) + b"\n"
