"""Where images come from: a folder, a dataset of ours, or other people's WebDataset shards.

A scan gives a :class:`Source`, which is plain arrays; worker processes open the same source again
and read its records by number.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.labels import LabelTable
from fastdata.errors import UsageError
from fastdata.formats import Label
from fastdata.formats.folder import EXTENSIONS
from fastdata.manifest import MANIFEST, STAGING
from fastdata.paths import PathTable

__all__ = ["Records", "Source", "Unreadable", "open_records", "scan_source"]

_KINDS = {
    "folder": "converters.sources.folder",
    "dataset": "converters.sources.dataset",
    "shards": "converters.sources.shards",
}


@dataclass(frozen=True)
class Unreadable:
    """A folder of the source that cannot be listed, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Source:
    """N records, in the source's order, and enough of each to notice that it changed.

    Attributes:
        kind: ``"folder"``, ``"dataset"`` or ``"shards"``.
        root: the folder, or the shard.
        paths: relative to the root; of a dataset, the paths that it was made from.
        labels: int64 [N] class indices; int64 or float32 [N, K] columns; float32 [N] targets;
            int64 [N, 0]: no labels.
        classes: names in label order; empty unless the labels are class indices.
        columns: names of the label columns, where a table gave several.
        bytes: int64 [N], sizes of the records; -1 where one has gone.
        stamps: int64 [N], modification times in ns of the files that hold them; 0 for a dataset.
        files: for shards, their names; else empty.
        places: int64 [N, 2], for shards: number of the file, and offset in it; else [0, 2].
        identity: of a dataset; else empty.
        groups: int64 [N, 2], for a dataset of copies: source number and copy number; else [0, 2].
        ignored: reason -> number of files and folders that are no samples.
        unreadable: folders that cannot be listed.
    """

    kind: str
    root: bytes
    paths: PathTable
    labels: NDArray[Any]
    classes: list[str]
    bytes: NDArray[np.int64]
    stamps: NDArray[np.int64]
    columns: list[str] = field(default_factory=list)
    files: PathTable = field(default_factory=lambda: PathTable(b""))
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    identity: str = ""
    groups: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    ignored: dict[str, int] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.bytes)

    def label(self, index: int) -> Label:
        """The label of a record as plain Python values; None where there are none."""
        if self.labels.ndim == 2 and not self.labels.shape[1]:
            return None
        label: Label = self.labels[index].tolist()
        return label

    def summary(self) -> dict[str, int | str]:
        """What the manifest keeps: the same wherever, and whenever, the source lies."""
        digest = hashlib.sha256(self.paths.tobytes())
        digest.update(self.bytes.astype("<i8").tobytes())
        digest.update(repr((str(self.labels.dtype), self.labels.shape, self.classes)).encode())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        digest.update(self.identity.encode())
        total = int(self.bytes[self.bytes > 0].sum())
        return {"files": len(self), "bytes": total, "fingerprint": digest.hexdigest()}


class Records(ABC):
    """Reads the records of a source; made from it by each worker process."""

    @abstractmethod
    def __init__(self, source: Source) -> None: ...

    @abstractmethod
    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """The encoded image of a record, or its pixels, uint8 [H, W, 3].

        Raises:
            ImageError: it cannot be read; the message names it.
            SourceError: it is not the one that was scanned.
            StorageError: the disk or the system is at fault.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call the record in a message."""


def scan_source(
    src: str | os.PathLike[str],
    table: LabelTable | None = None,
    classes: list[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Source:
    """List a source's records.

    Args:
        src: a folder of images, a dataset, a folder of WebDataset shards, or one shard.
        table: labels by path, for a folder; else they come from the source itself.
        classes: names in label order that the labels must count by; None: the source's own.
        progress: called now and then with the number of images found so far.

    Raises:
        SourceError: there is no such source, it holds no images, or its labels do not fit.
        UsageError: a table for a source that has labels of its own.
    """
    kind = _kind(os.fspath(src))
    if table is not None and kind != "folder":
        raise UsageError(f"--labels is for a folder of images; {os.fspath(src)} has its own labels")
    module = importlib.import_module(_KINDS[kind])
    source: Source = module.scan(src, table, classes, progress)
    return source


def _kind(src: str) -> str:
    if os.path.exists(os.path.join(src, MANIFEST)) or os.path.exists(os.path.join(src, STAGING)):
        return "dataset"
    if os.path.isfile(src) and src.endswith(".tar"):
        return "shards"
    try:
        with os.scandir(src) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return "folder"  # whose scan says what is wrong
    tars = [name for name in names if name.endswith(".tar")]
    # Shards may have sidecars beside them, but no folders or images.
    return "shards" if tars and not any(_may_hold_images(src, name) for name in names) else "folder"


def _may_hold_images(src: str, name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) or os.path.isdir(os.path.join(src, name))


def open_records(source: Source) -> Records:
    """Open a source for reading."""
    module = importlib.import_module(_KINDS[source.kind])
    records: Records = module.Records(source)
    return records
