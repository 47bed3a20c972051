"""Source folder -> records: the first step of a conversion."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdata.formats.folder import FolderScan, scan_folder

__all__ = ["Source", "scan_source"]

_REPORT_EVERY = 10_000


@dataclass(frozen=True)
class Source:
    """The images of a source folder, and enough of each file to notice that it changed.

    Attributes:
        scan: paths, labels and classes.
        bytes: int64 [N], sizes of the files; -1 where a file has gone.
        mtimes: int64 [N], modification times in ns.
    """

    scan: FolderScan
    bytes: NDArray[np.int64]
    mtimes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bytes)

    def summary(self) -> dict[str, int | str]:
        """What the manifest keeps: the same wherever, and whenever, the folder lies."""
        digest = hashlib.sha256(self.scan.paths.tobytes())
        digest.update(self.bytes.astype("<i8").tobytes())
        total = int(self.bytes[self.bytes > 0].sum())
        return {"files": len(self), "bytes": total, "fingerprint": digest.hexdigest()}


def scan_source(
    src: str | os.PathLike[str], progress: Callable[[int], None] | None = None
) -> Source:
    """List a source folder and look at each file's size and time.

    Args:
        src: see :func:`fastdata.formats.folder.scan_folder`.
        progress: called now and then with the number of images found so far.

    Raises:
        SourceError: as scan_folder does.
    """
    scan = scan_folder(src, progress)
    count = len(scan.paths)
    sizes, mtimes = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    for i in range(count):
        try:
            status = os.stat(os.path.join(scan.root, scan.paths[i]))
        except OSError:
            continue  # reading it will fail too, and then the file is reported as on_error says
        sizes[i], mtimes[i] = status.st_size, status.st_mtime_ns
        if progress is not None and i % _REPORT_EVERY == 0:
            progress(count)
    return Source(scan, sizes, mtimes)
