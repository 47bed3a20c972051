"""A folder of images as a source."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import converters.sources as sources
from converters.labels import LabelTable, encode_labels, renumber
from converters.sources import Source, Unreadable
from fastdata.errors import ImageError, SourceError, StorageError
from fastdata.files import SYSTEM_FAULTS
from fastdata.formats.folder import scan_folder, scan_tree
from fastdata.paths import PathTable, display

__all__ = ["Records", "scan"]

_REPORT_EVERY = 10_000


def scan(
    src: str | os.PathLike[str],
    table: LabelTable | None,
    classes: list[str] | None,
    progress: Callable[[int], None] | None,
) -> Source:
    """See :func:`converters.sources.scan_source`."""
    unreadable: list[Unreadable] = []
    columns: list[str] = []
    labels: NDArray[Any]
    if table is None:
        found = scan_folder(
            src,
            progress,
            allow_empty=classes is not None,
            unlistable=lambda path, why: unreadable.append(Unreadable(display(path), why)),
        )
        root, paths, names, ignored = found.root, found.paths, found.classes, found.ignored
        labels = found.labels
        if classes is not None:
            labels, names = renumber(labels, names, classes, display(root)), classes
    else:
        closed: list[bytes] = []
        root = os.path.abspath(os.fsencode(src))
        listed, ignored = scan_tree(src, progress, unlistable=lambda path, why: closed.append(path))
        ignored |= {"a folder that cannot be listed": len(closed)}  # its rows have gone
        table = _relative(root, table)
        paths = PathTable.of(table.paths)
        encoded = encode_labels(table, classes)
        labels, names, columns = encoded.labels, encoded.classes, encoded.columns
        rows = set(table.paths)
        unlisted = sum(1 for i in range(len(listed)) if listed[i] not in rows)
        ignored |= {f"an image without a row in {os.path.basename(table.file)}": unlisted}
        ignored |= {f"a repeated row in {os.path.basename(table.file)}": table.repeated}
    sizes, stamps = _look(root, paths, progress)
    return Source(
        kind="folder",
        root=root,
        paths=paths,
        labels=labels,
        classes=names,
        columns=columns,
        bytes=sizes,
        stamps=stamps,
        ignored={reason: count for reason, count in ignored.items() if count},
        unreadable=unreadable,
    )


def _relative(root: bytes, table: LabelTable) -> LabelTable:
    """The table with paths relative to the source folder."""
    paths = []
    for path, line in zip(table.paths, table.lines, strict=True):
        if os.path.isabs(path):
            path = os.path.relpath(path, root)
        if path.split(b"/", 1)[0] == b"..":
            raise SourceError(
                f"{table.file}, line {line}: {display(path)} lies outside of the source folder "
                f"{display(root)}"
            )
        paths.append(path)
    return table.moved(paths)


def _look(
    root: bytes, paths: PathTable, progress: Callable[[int], None] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each file's size, and its modification time in ns."""
    count = len(paths)
    sizes, stamps = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    for i in range(count):
        try:
            status = os.stat(os.path.join(root, paths[i]))
        except OSError:
            continue  # reading it will fail too, and then the file is reported as on_error says
        sizes[i], stamps[i] = status.st_size, status.st_mtime_ns
        if progress is not None and i % _REPORT_EVERY == 0:
            progress(count)
    return sizes, stamps


class Records(sources.Records):
    """Reads the files of a folder."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def name(self, index: int) -> str:
        return display(self._path(index))

    def _path(self, index: int) -> bytes:
        return os.path.join(self._source.root, self._source.paths[index])

    def read(self, index: int) -> bytes:
        path = self._path(index)
        scanned = int(self._source.bytes[index]), int(self._source.stamps[index])
        try:
            with open(path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                data = file.read()
        except OSError as error:
            if error.errno in SYSTEM_FAULTS:
                raise StorageError(
                    f"cannot read {display(path)}: {error.strerror}; check the source's disk and "
                    "run the same command again"
                ) from error
            raise ImageError(display(path), f"cannot be read: {error.strerror}") from error
        if (status.st_size, status.st_mtime_ns) != scanned or len(data) != scanned[0]:
            raise SourceError(
                f"{display(path)} was changed while the source was converted; leave the source "
                "alone and run the command again with --no-resume"
            )
        return data
