"""Files that are whole or absent, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import DatasetError, StorageError

__all__ = [
    "SYSTEM_FAULTS",
    "TEMPORARY",
    "npy_bytes",
    "open_array",
    "sha256_range",
    "storage_errors",
    "sync_directory",
    "write_whole",
]

SYSTEM_FAULTS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of reading a file that are no fault of that file: skipping it would hide them."""
TEMPORARY = ".tmp"
"""Suffix of a file that is being written."""
_BLOCK = 1 << 20
_NPY_HEADER = 128


@contextmanager
def storage_errors(path: str | os.PathLike[str], action: str = "write") -> Iterator[None]:
    """Turn an OSError of the enclosed file operations into a StorageError that names ``path``."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space on that disk and run the same command again",
            errno.EDQUOT: "free some of your disk quota and run the same command again",
            errno.EROFS: "choose a place on a file system that can be written",
            errno.EACCES: "check the permissions, or choose another place",
            errno.EPERM: "check the permissions, or choose another place",
        }.get(error.errno or 0, "check the disk and run the same command again")
        reason = error.strerror or str(error)
        raise StorageError(f"cannot {action} {os.fspath(path)}: {reason}; {advice}") from error


@contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """Write a file under a temporary name; sync and rename it when the block ends well.

    Raises:
        StorageError: the file cannot be written. The temporary file is removed on any error.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    with storage_errors(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_range(
    path: Path, offset: int, size: int, progress: Callable[[int], None] | None = None
) -> str:
    """SHA-256 of ``size`` bytes of a file from ``offset`` on, in hexadecimal.

    Args:
        progress: called with the number of bytes after each block.

    Raises:
        OSError: the file cannot be read, or ends earlier.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = size
        while left:
            block = file.read(min(_BLOCK, left))
            if not block:
                raise OSError(errno.EIO, f"the file ends {left} bytes early")
            digest.update(block)
            left -= len(block)
            if progress is not None:
                progress(len(block))
    return digest.hexdigest()


def npy_bytes(array: NDArray[Any]) -> bytes:
    """An array as the contents of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def open_array(path: Path, dtype: type[np.generic], *shape: int | None) -> NDArray[Any]:
    """Map a .npy file of a dataset, read-only, as a plain array.

    Args:
        dtype, shape: what it must be; None is any length.

    Raises:
        DatasetError: it cannot be read, or is of another kind.
    """
    advice = "restore it, or convert the source again"
    try:
        if path.stat().st_size > _NPY_HEADER:
            array: NDArray[Any] = np.asarray(np.lib.format.open_memmap(path, mode="r"))
        else:  # without elements, as the labels of samples that have none: nothing to map
            with path.open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # numpy raises whatever its parsing of a header trips over
        raise DatasetError(f"{path} cannot be read ({error}); {advice}") from error
    fits = len(array.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        raise DatasetError(
            f"{path}: expected {np.dtype(dtype)} of shape {shape}, found {array.dtype} of shape "
            f"{array.shape}; {advice}"
        )
    return array
