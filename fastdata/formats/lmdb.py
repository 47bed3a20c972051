"""LMDB: one database file, keys as many training codes have them.

``image-%09d`` and ``label-%09d`` (ASCII) count from 1, ``num-samples`` is their number (ASCII);
no pickles. The pages of such a file depend on the history of its transactions, so shards are
staged by workers and one process writes the database from zero, in key order.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import numpy as np
from numpy.typing import NDArray

from fastdata.errors import DatasetError
from fastdata.files import TEMPORARY, sha256_range, storage_errors, sync_directory, write_whole
from fastdata.formats import Reader, Sample, ShardRecord, Writer
from fastdata.machine import available_cpus
from fastdata.manifest import Manifest, Part

__all__ = ["LmdbReader", "LmdbWriter"]

DATABASE = "data.mdb"
_NEARLY_FULL = 1 << 20
_COMMIT_BYTES = 256 << 20  # a transaction's dirty pages stay in memory until it is committed
_PART_BYTES = 256 << 20  # the file is checksummed in ranges of this size, several at a time


_Key = tuple[int, int, int]


def _image_key(index: int) -> bytes:
    return b"image-%09d" % (index + 1)


def _label_key(index: int) -> bytes:
    return b"label-%09d" % (index + 1)


class LmdbReader(Reader):
    """Reads through one read-only transaction; needs no lock file and leaves none behind."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._path = root / DATABASE
        try:
            self._key, environment = _Environments.open(self._path)
            self._transaction = environment.begin(buffers=True)
            self._release = weakref.finalize(self, _release, self._transaction, self._key)
        except lmdb.Error as error:
            raise DatasetError(
                f"{self._path} is damaged ({error}); restore it, or convert the source again"
            ) from error

    def read(self, index: int) -> memoryview:
        try:
            data: memoryview | None = self._transaction.get(_image_key(index))
        except lmdb.Error as error:
            raise OSError(f"{self._path} is damaged ({error})") from error
        if data is None:
            raise OSError(f"{self._path} has no key {_image_key(index).decode()}")
        return data

    def close(self) -> None:
        self._release()


def _release(transaction: Any, key: _Key) -> None:
    if key[0] == os.getpid():  # a fork must leave its parent's alone
        transaction.abort()
        _Environments.close(key)


class _Environments:
    """The databases that this process has open: LMDB opens each only once in a process, and a
    training and an evaluation loader may well read the same one."""

    # (process, device, inode of the file) -> environment, number of users
    _open: ClassVar[dict[_Key, tuple[Any, int]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> tuple[_Key, Any]:
        status = path.stat()
        key = (os.getpid(), status.st_dev, status.st_ino)
        with cls._lock:
            # After a fork the parent's are here too. They must not be used; without a lock file
            # closing them concerns this process alone, and the library demands it.
            for inherited in [other for other in cls._open if other[0] != key[0]]:
                cls._open.pop(inherited)[0].close()
            environment, users = cls._open.get(key, (None, 0))
            if environment is None:
                environment = lmdb.open(
                    os.fsencode(path),
                    subdir=False,
                    readonly=True,
                    lock=False,
                    readahead=False,  # samples are read in random order
                    create=False,
                )
            cls._open[key] = (environment, users + 1)
            return key, environment

    @classmethod
    def after_fork(cls) -> None:
        """Another thread of the parent may have held the lock when it forked."""
        cls._lock = threading.Lock()

    @classmethod
    def close(cls, key: _Key) -> None:
        with cls._lock:
            environment, users = cls._open[key]
            if users > 1:
                cls._open[key] = (environment, users - 1)
            else:
                del cls._open[key]
                environment.close()


os.register_at_fork(after_in_child=_Environments.after_fork)


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
        self, shards: list[ShardRecord], labels: NDArray[np.int64], note: Callable[[str], None]
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
            return _parts(path, samples)

    def _entries(
        self, shards: list[ShardRecord], labels: NDArray[np.int64]
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
        if labels.ndim == 1:
            for number, label in enumerate(labels.tolist()):
                yield _label_key(number), b"%d" % label
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


def _parts(path: Path, samples: int) -> list[Part]:
    size = path.stat().st_size
    offsets = range(0, size, _PART_BYTES)
    with ThreadPoolExecutor(available_cpus()) as pool:  # hashlib releases the interpreter's lock
        digests = list(
            pool.map(lambda at: sha256_range(path, at, min(_PART_BYTES, size - at)), offsets)
        )
    return [
        Part(path.name, at, min(_PART_BYTES, size - at), digest, samples if at == 0 else None)
        for at, digest in zip(offsets, digests, strict=True)
    ]
