"""Everything that fastdata raises on purpose.

::

    FastdataError
    ├── UsageError (ValueError)            the call is at fault        exit code 2
    │   ├── MissingExtraError (ImportError)    an optional package is not installed
    │   └── DestinationError                   DST is in the way: not ours, or another conversion
    └── DataError                          the data is at fault        exit code 1
        ├── SourceError                        a source folder that cannot be converted or loaded
        ├── ImageError                         one image cannot be used; has ``path`` and ``reason``
        ├── DatasetError                       a converted dataset that is damaged or was replaced
        │   └── UnfinishedError                a conversion that has not ended yet
        ├── StorageError                       the disk or file system refused (full, read-only)
        └── WorkerError                        a worker process died

Each message says what was expected, what was found, where, and what to do.
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "DatasetError",
    "DestinationError",
    "FastdataError",
    "ImageError",
    "MissingExtraError",
    "SourceError",
    "StorageError",
    "UnfinishedError",
    "UsageError",
    "WorkerError",
]


class FastdataError(Exception):
    """Base of all errors that fastdata raises on purpose."""

    exit_code = 1


class UsageError(FastdataError, ValueError):
    """An argument, or a combination of arguments, that cannot be carried out."""

    exit_code = 2


class MissingExtraError(UsageError, ImportError):
    """An optional package is needed and not installed; the message has the install line."""


class DestinationError(UsageError):
    """The destination holds something that must not be overwritten."""


class DataError(FastdataError):
    """The data, or the place where it lies, is at fault."""


class SourceError(DataError):
    """A source folder that cannot be converted or loaded."""


class ImageError(DataError):
    """One image that cannot be used.

    Attributes:
        path: where the image comes from, as text (undecodable bytes are escaped).
        reason: what is wrong with it, and what to do.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class DatasetError(DataError):
    """A converted dataset that is damaged, or is not the one that was expected."""


class UnfinishedError(DatasetError):
    """A conversion that was interrupted and not yet resumed."""


class StorageError(DataError):
    """Reading or writing failed for a reason outside the data: full disk, no permission."""


class WorkerError(DataError):
    """A worker process ended without a result."""
