"""A plain image folder: the source of a conversion, and a dataset as it is.

The rules are those of torchvision's ImageFolder: each folder in the root is a class, classes sort
by name, and a class's samples are ordered by folder, then by name. Hidden files and folders (their
name begins with a dot) and folders that operating systems leave behind are no classes and no
samples; torchvision takes them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.formats import Reader
from fastdata.paths import PathTable, display

__all__ = ["EXTENSIONS", "FolderReader", "FolderScan", "scan_folder", "scan_tree"]

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""torchvision's list and GIF; a name's ending only decides what is looked at, never how."""
_ENDINGS = tuple(ending.encode() for ending in EXTENSIONS)
_SYSTEM = frozenset({b"__MACOSX", b"@eaDir", b"$RECYCLE.BIN", b"System Volume Information"})


@dataclass
class FolderScan:
    """What one pass over a folder found.

    Attributes:
        root: the folder.
        paths: of the N images relative to it, in the folder's order.
        labels: int64 [N], or [N, 0] where the images lie in the root, without class folders.
        classes: names in label order.
        ignored: reason -> number of files and folders that are no samples.
    """

    root: bytes
    paths: PathTable
    labels: NDArray[np.int64]
    classes: list[str]
    ignored: dict[str, int] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """SHA-256 over the paths, in order; hexadecimal."""
        return hashlib.sha256(self.paths.tobytes()).hexdigest()


def scan_folder(
    root: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
    *,
    allow_empty: bool = False,
    unlistable: Callable[[bytes, str], None] | None = None,
) -> FolderScan:
    """List the images of a folder in one pass.

    Args:
        root: a folder with a folder per class, or with the images themselves.
        progress: called now and then with the number of images found so far.
        allow_empty: take a class folder without images for a class without samples.
        unlistable: called with the path and the reason for a folder below the root that cannot
            be listed, which is then passed over; None: that is an error.

    Raises:
        SourceError: no such folder, it cannot be listed, or it (or one of its classes) has no
            images; the message says what to do.
    """
    top = _top(root)
    scan = _Scanner(top, progress, unlistable)
    folders, files = scan.list_folder(b"")
    table = bytearray()
    labels: list[NDArray[np.int64]] = []
    classes: list[str] = []
    if not folders:
        scan.add_images(table, b"", files)
        labels.append(np.zeros((scan.found, 0), np.int64))
    else:
        for name in sorted(folders, key=os.fsdecode):
            before = scan.found
            scan.add_tree(table, name)
            if scan.found == before and not allow_empty:
                raise SourceError(
                    f"{display(os.path.join(top, name))}: expected images in the class folder, "
                    f"found none with a name ending in {', '.join(EXTENSIONS)}; add some, or "
                    "remove the folder (a leading dot hides it)"
                )
            labels.append(np.full(scan.found - before, len(classes), np.int64))
            classes.append(os.fsdecode(name))
        scan.ignore("beside the class folders", len(files))
    if not scan.found:
        raise SourceError(
            f"{display(top)}: expected images in it or in class folders below it, found none "
            f"with a name ending in {', '.join(EXTENSIONS)}; check the path"
        )
    return FolderScan(top, PathTable(bytes(table)), np.concatenate(labels), classes, scan.ignored)


def scan_tree(
    root: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
    *,
    unlistable: Callable[[bytes, str], None] | None = None,
) -> tuple[PathTable, dict[str, int]]:
    """List all images anywhere below a folder, whatever the folders mean.

    Returns:
        Their paths relative to it, and what was left out, as :class:`FolderScan` has it.

    Raises:
        SourceError: there is no such folder, or one that cannot be listed.
    """
    scan = _Scanner(_top(root), progress, unlistable)
    table = bytearray()
    scan.add_tree(table, b"")
    return PathTable(bytes(table)), scan.ignored


def _top(root: str | os.PathLike[str]) -> bytes:
    top = os.path.abspath(os.fsencode(root))
    if not os.path.isdir(top):
        found = "a file" if os.path.exists(top) else "nothing"
        raise SourceError(
            f"{display(top)}: expected a folder of images, found {found}; check the path"
        )
    return top


class _Scanner:
    """Lists folders, and counts what it finds and what it leaves out."""

    def __init__(
        self,
        top: bytes,
        progress: Callable[[int], None] | None,
        unlistable: Callable[[bytes, str], None] | None,
    ) -> None:
        self.found = 0
        self.ignored: dict[str, int] = {}
        self._top = top
        self._progress = progress
        self._unlistable = unlistable

    def ignore(self, reason: str, count: int = 1) -> None:
        if count:
            self.ignored[reason] = self.ignored.get(reason, 0) + count

    def list_folder(self, relative: bytes) -> tuple[list[bytes], list[bytes]]:
        """Names of the folders and of the files in a folder; links are followed."""
        folders, files = [], []
        path = os.path.join(self._top, relative) if relative else self._top
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith(b"."):
                        self.ignore("hidden")
                        continue
                    kind = _kind(entry)
                    if kind == "folder" and entry.name in _SYSTEM:
                        self.ignore("left behind by a system")
                    elif kind == "folder":
                        folders.append(entry.name)
                    elif kind == "file":
                        files.append(entry.name)
                    else:
                        self.ignore("a pipe, socket or device")
        except OSError as error:
            if self._unlistable is None or not relative:
                raise _unlistable(path, error) from error
            self._unlistable(relative, f"cannot list the folder: {error.strerror}")
            return [], []
        return folders, files

    def add_images(self, table: bytearray, prefix: bytes, names: list[bytes]) -> None:
        images = [name for name in names if name.lower().endswith(_ENDINGS)]
        self.ignore("not an image's name", len(names) - len(images))
        for name in sorted(images, key=os.fsdecode):
            table += prefix + name + b"\0"
        self.found += len(images)
        if self._progress is not None:
            self._progress(self.found)

    def add_tree(self, table: bytearray, name: bytes) -> None:
        """Add a folder and the folders below it, ordered as sorted(os.walk(...)) is."""
        listed: dict[bytes, list[bytes]] = {}
        above: frozenset[tuple[int, int]] = frozenset()
        if name:
            status = os.stat(self._top)
            above = frozenset({(status.st_dev, status.st_ino)})
        pending = [(name, above)]
        while pending:
            relative, above = pending.pop()
            try:
                status = os.stat(os.path.join(self._top, relative))
            except OSError:
                folders, listed[relative] = self.list_folder(relative)  # says what is wrong
                continue
            this = (status.st_dev, status.st_ino)
            if this in above:  # a link to a folder that it lies in
                self.ignore("a link into itself")
                continue
            folders, listed[relative] = self.list_folder(relative)
            pending += [(os.path.join(relative, sub), above | {this}) for sub in folders]
        for relative in sorted(listed, key=os.fsdecode):
            self.add_images(table, relative + b"/" if relative else b"", listed[relative])


def _unlistable(path: bytes, error: OSError) -> SourceError:
    return SourceError(
        f"{display(path)}: cannot list the folder: {error.strerror}; "
        "check its permissions, or hide it with a leading dot"
    )


def _kind(entry: os.DirEntry[bytes]) -> str:
    """What an entry is, or what its link leads to: a folder, a file or something else."""
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file():
            return "file"
        entry.stat()
    except OSError:
        return "file"  # a link to nothing is kept, so that reading it reports it
    return "other"


class FolderReader(Reader):
    """Reads the files of a scanned folder."""

    def __init__(self, root: Path, paths: PathTable) -> None:
        self._root = os.path.join(os.fsencode(root), b"")
        self._paths = paths

    def read(self, index: int) -> bytes:
        # Of small files the time goes to the calls, which are twice as many through open().
        file = os.open(self.path(index), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            data = os.read(file, size)
            while len(data) < size and (more := os.read(file, size - len(data))):
                data += more
            return data
        finally:
            os.close(file)

    def read_ends(self, index: int, most: int) -> tuple[bytes, bytes, int]:
        """The first and the last bytes of sample ``index``, up to ``most`` of each, and how many
        it has."""
        file = os.open(self.path(index), os.O_RDONLY | os.O_CLOEXEC)
        try:
            first, length = os.read(file, most), os.fstat(file).st_size
            if length <= len(first):
                return first, first, length
            return first, os.pread(file, most, max(0, length - most)), length
        finally:
            os.close(file)

    def path(self, index: int) -> bytes:
        """Absolute path of sample ``index``."""
        return self._root + self._paths[index]

    def location(self, index: int) -> tuple[bytes, int, int]:
        path = self.path(index)
        return path, 0, os.stat(path).st_size

    def close(self) -> None:
        """Nothing stays open between reads."""
