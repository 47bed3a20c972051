"""Dataset: a converted dataset, or a plain image folder, as a sequence of samples."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.decode import Decode, decode_any
from fastdata.errors import DatasetError, ImageError, UsageError
from fastdata.files import open_array
from fastdata.formats import OFFSETS, Reader
from fastdata.formats.folder import FolderReader, FolderScan, scan_folder
from fastdata.header import read_header
from fastdata.manifest import MANIFEST, STAGING, Manifest
from fastdata.paths import PathTable, display
from fastdata.registry import DECODERS, DEFAULT_DECODER, READERS, load
from fastdata.threads import Threads

__all__ = [
    "COPIES",
    "LABELS",
    "PATHS",
    "REPAIRED",
    "SIZES",
    "SKIPPED",
    "Dataset",
    "open_dataset",
]

LABELS, SIZES, PATHS, COPIES = "labels.npy", "sizes.npy", "paths.bin", "copies.npy"
SKIPPED, REPAIRED = "skipped.jsonl", "repaired.jsonl"
_CHECKED = (LABELS, SIZES, PATHS, COPIES, OFFSETS)
_NO_COPIES: NDArray[np.int64] = np.zeros((0, 2), np.int64)
_HEADER_THREADS, _HEADERS_AT_ONCE = 8, 64


def open_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Open a converted dataset, or a plain image folder.

    Args:
        path: a folder that ``fastdata convert`` has written, or one with a folder per class.

    Raises:
        UnfinishedError: a conversion into ``path`` was interrupted.
        DatasetError: the dataset is damaged.
        SourceError: there is no such folder, or it holds no images.
        MissingExtraError: the format needs a package that is not installed.
    """
    return Dataset(path)


class Dataset:
    """N samples: encoded images or pixels, labels, sizes, and where they came from.

    Pickling keeps the path alone (for a plain folder also its list of files), and a copy that was
    pickled or forked opens its own files. A dataset that was replaced since is refused.

    Attributes:
        path: absolute path of the folder.
        format: name in the registry; ``"folder"`` for a plain image folder.
        manifest: the parsed ``fastdata.json``; None for a plain folder.
        labels: int64 [N], class indices; float32 [N], targets; int64 or float32 [N, K], columns;
            int64 [N, 0] where there are none.
        classes: class names in label order; empty where the labels are no class indices.
        copies: int64 [N, 2], number of the source and of the variant of it that a sample is;
            [0, 2] where each source has one sample.
        identity: hexadecimal; equal for equal datasets, byte for byte. A plain folder's is that of
            its paths alone.
        encoded: True where :meth:`read` gives encoded images, False where :attr:`pixels` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """See :func:`open_dataset`."""
        self.path = Path(os.path.abspath(path))
        self._open(None)

    def _open(self, scan: FolderScan | None) -> None:
        self.manifest: Manifest | None = None
        self._scan: FolderScan | None = None
        self._sizes: NDArray[np.int32] | None = None
        if (self.path / MANIFEST).exists() or (self.path / STAGING).exists():
            self.manifest = Manifest.read(self.path)
            self._check_files(self.manifest)
            self.format = self.manifest.format
            self.classes = list(self.manifest.classes)
            self.identity = self.manifest.identity
            samples = self.manifest.samples
            columns = self.manifest.columns
            self.labels: NDArray[Any] = open_array(
                self.path / LABELS,
                np.dtype(self.manifest.label_dtype).type,
                samples,
                *(() if columns is None else (len(columns),)),
            )
            self.copies = _NO_COPIES
            if COPIES in self.manifest.files:
                self.copies = open_array(self.path / COPIES, np.int64, samples, 2)
            self._sizes = open_array(self.path / SIZES, np.int32, samples, 2)
            if self.manifest.image_size is not None:
                # All are the same: planning need not read them, at random, from a large file.
                height, width = self.manifest.image_size
                self._sizes = np.broadcast_to(np.array([width, height], np.int32), (samples, 2))
            self._paths = _path_table(self.path / PATHS)
        else:
            self._scan = scan_folder(self.path) if scan is None else scan
            self.format = "folder"
            self.classes = self._scan.classes
            self.identity = self._scan.fingerprint()
            self.labels = self._scan.labels
            self.copies = _NO_COPIES
            self._paths = self._scan.paths
        self._reader: Reader | None = None
        self._pid = -1
        self.encoded = self.reader.encoded

    def _check_files(self, manifest: Manifest) -> None:
        """All files are there in full, and what finds the samples in them is as it was written:
        a damaged index would give wrong samples without a word."""
        problems = manifest.missing_or_resized(self.path)
        if not problems:
            try:
                problems = manifest.altered(self.path, _CHECKED)
            except OSError as error:
                problems = [f"{error.filename}: {error.strerror}"]
        if problems:
            raise DatasetError(f"{problems[0]}; restore it, or convert the source again")

    @property
    def reader(self) -> Reader:
        """The format's reader of this process."""
        if self._reader is None or self._pid != os.getpid():
            # A fork shares files and maps with its parent, so it opens its own and leaves those.
            self._reader = self._open_reader()
            self._pid = os.getpid()
        return self._reader

    def _open_reader(self) -> Reader:
        if self.manifest is None:
            return FolderReader(self.path, self._paths)
        reader: Reader = load(READERS, self.format, "format")(self.path, self.manifest)
        if Manifest.read(self.path).identity != self.identity:  # after a fork, or a close
            reader.close()
            raise DatasetError(f"{self.path} was replaced meanwhile; open it again")
        return reader

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, format={self.format!r}, samples={len(self)})"

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> label, as torchvision's datasets have it."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def plain(self) -> bool:
        """Whether every encoded image is a plain JPEG (see :class:`fastdata.header.Header`): the
        converter sees to that; a plain folder may hold anything."""
        return self.manifest is not None

    @property
    def sizes(self) -> NDArray[np.int32]:
        """Width and height of every image in pixels, int32 [N, 2].

        For a plain folder the first use reads the header of every file.

        Raises:
            ImageError: a file of a plain folder is no image.
        """
        if self._sizes is None:
            starts = range(0, len(self), _HEADERS_AT_ONCE)
            with Threads(_HEADER_THREADS, "fastdata-headers") as threads:
                sizes = list(chain.from_iterable(threads.map(self._header_sizes, starts)))
            self._sizes = np.array(sizes, np.int32).reshape(-1, 2)
        return self._sizes

    def _header_sizes(self, start: int) -> list[tuple[int, int]]:
        """Those of some samples from ``start`` on."""
        sizes = []
        for index in range(start, min(start + _HEADERS_AT_ONCE, len(self))):
            try:
                header = read_header(self.reader.read(index))
            except (OSError, ValueError) as error:
                raise ImageError(self.name_of(index), str(error)) from error
            sizes.append((header.width, header.height))
        return sizes

    def read(self, index: int) -> bytes:
        """The encoded image of sample ``index``, byte for byte as it is stored.

        Raises:
            UsageError: the format holds pixels.
            IndexError: there is no such sample.
            ImageError: it cannot be read.
        """
        self._check(index)
        if not self.encoded:
            raise UsageError(f"{self.format} holds no encoded images; use .pixels or .decode()")
        try:
            return bytes(self.reader.read(index))
        except OSError as error:
            raise ImageError(self.name_of(index), error.strerror or str(error)) from error

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """All images, uint8 [N, H, W, 3], mapped from disk and read-only.

        Raises:
            UsageError: the format holds encoded images.
        """
        if self.encoded:
            raise UsageError(f"{self.format} holds encoded images; use .read() or .decode()")
        return self.reader.pixels

    def decode(self, index: int) -> NDArray[np.uint8]:
        """The pixels of sample ``index``, uint8 [height, width, 3], RGB.

        Raises:
            IndexError: there is no such sample.
            ImageError: it cannot be read or decoded.
        """
        if not self.encoded:
            self._check(index)
            return np.array(self.pixels[index])
        data = self.read(index)
        decode: Decode = load(DECODERS, DEFAULT_DECODER, "decoder")
        try:
            return decode_any(data, decode)
        except ValueError as error:
            raise ImageError(self.name_of(index), str(error)) from error

    def path_of(self, index: int) -> bytes:
        """The source's path relative to the source folder, its bytes as they were."""
        self._check(index)
        return self._paths[index]

    def name_of(self, index: int) -> str:
        """What to call sample ``index`` in a message: where it lies and where it came from."""
        source = display(self._paths[index])
        if self.manifest is None:
            return os.path.join(str(self.path), source)
        return f"sample {index} of {self.path} (from {source})"

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a dataset of {len(self)}")

    def close(self) -> None:
        """Release the images' files and maps; used again, the dataset opens them again."""
        if self._reader is not None and self._pid == os.getpid():
            self._reader.close()
        self._reader = None

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "identity": self.identity, "scan": self._scan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self._open(state["scan"])
        if self.identity != state["identity"]:
            raise DatasetError(f"{self.path} was replaced since it was pickled; open it again")


def _path_table(path: Path) -> PathTable:
    try:
        return PathTable.open(path)
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read ({error.strerror}); restore it, or convert the source again"
        ) from error
