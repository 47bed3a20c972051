"""Other people's WebDataset shards as a source.

The members of a sample are adjacent and share a key: their path up to the first dot of the name.
The image is the one whose extension is an image's; ``cls`` holds the label.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

import converters.sources as sources
from converters.labels import LabelTable, encode_labels
from converters.sources import Source
from fastdata.errors import ImageError, SourceError, StorageError, UsageError
from fastdata.formats.folder import EXTENSIONS
from fastdata.paths import PathTable, display

__all__ = ["Records", "scan"]

_IMAGES = frozenset(ending[1:] for ending in EXTENSIONS)
_GZIP = b"\x1f\x8b"
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MOST_OPEN = 64
_END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass
class _Found:
    """What the shards hold; a row for each sample."""

    paths: list[bytes] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)


def scan(
    src: str | os.PathLike[str],
    table: LabelTable | None,
    classes: list[str] | None,
    progress: Callable[[int], None] | None,
) -> Source:
    """See :func:`converters.sources.scan_source`."""
    top = Path(os.path.abspath(src))
    tars = [top] if top.is_file() else sorted(top.glob("[!.]*.tar"))
    root = tars[0].parent
    for path in [] if top.is_file() else top.iterdir():
        if path.name.endswith(_COMPRESSED):
            raise SourceError(f"{path}: compressed shards are not supported; decompress them")
    found, stamps = _Found(), []
    for number, tar in enumerate(tars):
        try:
            stamps.append(tar.stat().st_mtime_ns)
            with tar.open("rb") as file:
                _check_end(file, tar)
                for key, members in _samples(file, tar):
                    _add(found, number, tar, key, members, file)
                    if progress is not None and len(found.paths) % 1000 == 0:
                        progress(len(found.paths))
        except tarfile.TarError as error:
            raise SourceError(f"{tar}: damaged tar archive: {error}; restore it") from error
        except OSError as error:
            raise SourceError(f"cannot read {tar}: {error.strerror or error}") from error
    if not found.paths:
        raise SourceError(
            f"{top}: expected samples with an image ({', '.join(sorted(_IMAGES))}) in its shards, "
            "found none"
        )
    labels, names = _labels(found, top, classes)
    return Source(
        kind="shards",
        root=os.fsencode(root),
        paths=PathTable.of(found.paths),
        labels=labels,
        classes=names,
        bytes=np.array(found.sizes, np.int64),
        stamps=np.array(stamps, np.int64)[found.files],
        files=PathTable.of(os.fsencode(tar.name) for tar in tars),
        places=np.array([found.files, found.offsets], np.int64).T,
        ignored=found.ignored,
    )


def _check_end(file: BinaryIO, tar: Path) -> None:
    """A tar cut between two members reads like a whole one, but for its end."""
    if file.read(2) == _GZIP:
        raise SourceError(f"{tar}: a compressed archive; decompress it, as images are already")
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - len(_END)))
    if file.read() != _END:
        raise SourceError(
            f"{tar}: truncated tar archive: expected two empty blocks at its end; restore it"
        )
    file.seek(0)


def _samples(file: BinaryIO, tar: Path) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Key and members, by extension, of each sample."""
    key = ""
    members: dict[str, tarfile.TarInfo] = {}
    seen: set[str] = set()
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if not member.isreg():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            if not stem:  # hidden, as what a Mac puts beside each file
                continue
            this = f"{folder}/{stem}" if folder else stem
            if this != key:
                if members:
                    yield key, members
                if this in seen:
                    raise SourceError(
                        f"{tar}: the members of sample {this!r} are not adjacent; write the "
                        "archive in the order of its keys"
                    )
                seen.add(this)
                key, members = this, {}
            if extension.lower() in members:
                raise SourceError(f"{tar}: sample {key!r} has two members .{extension.lower()}")
            members[extension.lower()] = member
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        # tarfile takes a damaged header behind the first member for the end.
        file.seek(archive.offset)
        if any(file.read(tarfile.BLOCKSIZE)):
            place = archive.offset
            raise tarfile.ReadError(f"bad header at byte {place}")
    if members:
        yield key, members


def _add(
    found: _Found,
    number: int,
    tar: Path,
    key: str,
    members: dict[str, tarfile.TarInfo],
    file: BinaryIO,
) -> None:
    images = sorted(_IMAGES & members.keys())
    if not images:
        found.ignored["a sample without an image"] = (
            found.ignored.get("a sample without an image", 0) + 1
        )
        return
    if len(images) > 1:
        raise SourceError(f"{tar}: sample {key!r} has several images: {', '.join(images)}")
    image = members[images[0]]
    if image.issparse():
        raise SourceError(f"{tar}: {image.name} is a sparse file, which is not supported")
    label = members.get("cls")
    text = None
    if label is not None:
        file.seek(label.offset_data)
        text = file.read(min(label.size, 4096)).decode("utf-8", "surrogateescape").strip()
        if not text:
            raise SourceError(f"{tar}: the label of sample {key!r} is empty")
    found.paths.append(os.fsencode(f"{tar.name}/{image.name}"))
    found.labels.append(text)
    found.files.append(number)
    found.offsets.append(image.offset_data)
    found.sizes.append(image.size)


def _labels(
    found: _Found, top: Path, classes: list[str] | None
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], list[str]]:
    missing = [i for i, label in enumerate(found.labels) if label is None]
    if len(missing) == len(found.labels):
        if classes is not None:
            raise UsageError(f"{top} has no labels (.cls) that --classes could count")
        return np.zeros((len(found.labels), 0), np.int64), []
    root = top.parent if top.is_file() else top
    if missing:
        raise SourceError(
            f"{root}/{display(found.paths[missing[0]])}: expected a label (.cls), as other samples "
            f"have; {len(missing)} samples have none"
        )
    table = LabelTable(
        file=os.fspath(top),
        columns=["cls"],
        paths=found.paths,
        values=[(label or "",) for label in found.labels],
        lines=list(range(1, len(found.labels) + 1)),
    )
    encoded = encode_labels(table, classes)
    return encoded.labels, encoded.classes


class Records(sources.Records):
    """Reads images in place."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open: dict[int, int] = {}  # shard -> descriptor, the first to be opened first

    def name(self, index: int) -> str:
        return os.path.join(display(self._source.root), display(self._source.paths[index]))

    def read(self, index: int) -> bytes:
        number, offset = self._source.places[index].tolist()
        size = int(self._source.bytes[index])
        path = os.path.join(self._source.root, self._source.files[number])
        try:
            file = self._descriptor(number, path)
            if os.fstat(file).st_mtime_ns != int(self._source.stamps[index]):
                raise SourceError(
                    f"{display(path)} was changed while the source was converted; leave the "
                    "source alone and run the command again with --no-resume"
                )
            data = os.pread(file, size, offset)
        except OSError as error:
            raise StorageError(
                f"cannot read {display(path)}: {error.strerror}; check the source's disk and run "
                "the same command again"
            ) from error
        if len(data) != size:
            raise ImageError(self.name(index), f"expected {size} bytes, found {len(data)}")
        return data

    def _descriptor(self, number: int, path: bytes) -> int:
        if number not in self._open:
            if len(self._open) == _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[number] = os.open(path, os.O_RDONLY)
        return self._open[number]
