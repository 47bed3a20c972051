"""LMDB: one database file, keys as many training codes have them.

``image-%09d`` and ``label-%09d`` (ASCII) count from 1, ``num-samples`` is their number (ASCII);
no pickles. The pages of such a file depend on the history of its transactions, so shards are
staged by workers and one process writes the database from zero, in key order. ``offsets.npy`` says
where LMDB has put each image, so fastdata reads the file as it reads every other: a damaged page
cannot crash it, nor a fork confuse it.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from fastdata.files import TEMPORARY, sha256_range, storage_errors, sync_directory, write_whole
from fastdata.formats import OFFSETS, Label, Sample, ShardRecord, Writer
from fastdata.formats.spans import span_bytes
from fastdata.machine import available_cpus
from fastdata.manifest import Part
from fastdata.threads import Threads

__all__ = ["LmdbWriter"]

DATABASE = "data.mdb"
_NEARLY_FULL = 1 << 20
_COMMIT_BYTES = 256 << 20  # a transaction's dirty pages stay in memory until it is committed
_PART_BYTES = 256 << 20  # the file is checksummed in ranges of this size, several at a time


def _image_key(index: int) -> bytes:
    return b"image-%09d" % (index + 1)


def _label_key(index: int) -> bytes:
    return b"label-%09d" % (index + 1)


def _label_text(label: Label) -> bytes:
    columns = label if isinstance(label, list) else [label]
    return " ".join(map(repr, columns)).encode("ascii")


class LmdbWriter(Writer):
    """Stages the encoded images of a shard one after the other, then writes the database."""

    def write_shard(
        self, shard: int, start: int, samples: Iterable[Sample]
    ) -> tuple[list[tuple[int, int]], list[Part]]:
        spans, offset = [], 0
        with write_whole(self._staged(shard)) as file:
            for sample in samples:
                file.write(sample.data)
                spans.append((offset, len(sample.data)))
                offset += len(sample.data)
        return spans, []

    def _staged(self, shard: int) -> Path:
        return self.staging / f"images-{shard:06d}.bin"

    def finish(
        self, shards: list[ShardRecord], labels: NDArray[Any], note: Callable[[str], None]
    ) -> list[Part]:
        samples = sum(len(shard.positions) for shard in shards)
        size = sum(int(shard.spans[:, 1].sum()) for shard in shards)
        note(f"writing {DATABASE}: {samples} images, {size / 1e6:.0f} MB")
        path = self.staging / DATABASE
        temporary = path.with_name(path.name + TEMPORARY)
        temporary.unlink(missing_ok=True)
        entries = self._entries(shards, labels)
        # The map's size stands in the file, so it is a function of the data alone. A value takes
        # whole pages; a quarter more covers the tree's own pages many times over.
        pages = sum(int(np.sum(shard.spans[:, 1] // 4096 + 2)) for shard in shards)
        map_size = (pages * 4096 + samples * 256) * 5 // 4 + (16 << 20)
        with storage_errors(path):
            _write_database(temporary, entries, map_size)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(self.staging)
            parts = _parts(path, samples)
            index = span_bytes([_spans(path, samples)])
        with write_whole(self.staging / OFFSETS) as file:
            file.write(index)
        return [*parts, Part(OFFSETS, 0, len(index), hashlib.sha256(index).hexdigest())]

    def _entries(
        self, shards: list[ShardRecord], labels: NDArray[Any]
    ) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values in key order, which lets LMDB append page after page."""
        index = 0
        for shard in shards:
            with self._staged(shard.shard).open("rb") as file:
                for size in shard.spans[:, 1].tolist():
                    data = file.read(size)
                    if len(data) != size:
                        raise OSError(errno.EIO, f"{file.name} ends early")
                    yield _image_key(index), data
                    index += 1
        if labels.ndim == 1 or labels.shape[1]:
            for number, label in enumerate(labels.tolist()):
                yield _label_key(number), _label_text(label)
        yield b"num-samples", b"%d" % index


def _write_database(path: Path, entries: Iterable[tuple[bytes, bytes]], map_size: int) -> None:
    try:
        with lmdb.open(
            os.fsencode(path),
            subdir=False,
            map_size=map_size,
            lock=False,
            sync=False,
            metasync=False,
        ) as environment:
            transaction: Any = environment.begin(write=True)
            pending = 0
            for key, value in entries:
                transaction.put(key, value, append=True)
                pending += len(value)
                if pending >= _COMMIT_BYTES:
                    transaction.commit()
                    transaction, pending = environment.begin(write=True), 0
            transaction.commit()
    except lmdb.Error as error:
        # LMDB reports a write that a full disk cut short as an input/output error.
        if shutil.disk_usage(path.parent).free < _NEARLY_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise OSError(errno.EIO, str(error)) from error


def _spans(path: Path, samples: int) -> NDArray[np.int64]:
    """Where each image lies in the database's file: LMDB keeps a value in one piece, and hands out
    its place in the map of the file."""
    with (
        lmdb.open(os.fsencode(path), subdir=False, readonly=True, lock=False) as environment,
        environment.begin(buffers=True) as transaction,
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        value: Any = transaction.get(_image_key(0))
        first, address = bytes(value), _address(value)
        del value  # the map cannot be closed under it
        # The map begins on a page, so many bytes before the first image. Equal images may hide
        # which of them that is, until one place is right for all.
        place = mapped.find(first)
        while place >= 0:
            if (address - place) % mmap.PAGESIZE == 0:
                spans = _spans_from(address - place, mapped, transaction, samples)
                if spans is not None:
                    return spans
            place = mapped.find(first, place + 1)
    raise OSError(errno.EIO, f"{path} does not hold what was written")


def _spans_from(
    start: int, mapped: mmap.mmap, transaction: Any, samples: int
) -> NDArray[np.int64] | None:
    """The spans, if the map begins at address ``start``."""
    spans = np.zeros((samples, 2), np.int64)
    for index, (_, value) in zip(range(samples), transaction.cursor(), strict=False):
        offset = _address(value) - start
        if mapped[offset : offset + len(value)] != value:
            return None
        spans[index] = offset, len(value)
    return spans


def _address(value: Any) -> int:
    address: int = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
    return address


def _parts(path: Path, samples: int) -> list[Part]:
    size = path.stat().st_size
    offsets = range(0, size, _PART_BYTES)
    with Threads(available_cpus(), "fastdata-hash") as threads:  # hashlib releases the lock
        digests = list(
            threads.map(lambda at: sha256_range(path, at, min(_PART_BYTES, size - at)), offsets)
        )
    return [
        Part(path.name, at, min(_PART_BYTES, size - at), digest, samples if at == 0 else None)
        for at, digest in zip(offsets, digests, strict=True)
    ]
