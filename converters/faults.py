"""What to do about records that cannot be used."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from converters.sources import Source, open_records
from fastdata.errors import DataError, ImageError, SourceError, UsageError
from fastdata.paths import display

__all__ = ["ADVICE", "ON_ERROR", "ErrorPolicy", "SkipLimit"]

ON_ERROR = ("raise", "skip")
ADVICE = "repair or remove it, or leave such files out with --on-error skip"


@dataclass(frozen=True)
class SkipLimit:
    """How many images may be left out: a number, or a percentage of all; None: any."""

    count: int | None = None
    percent: float | None = None

    @classmethod
    def parse(cls, text: str | int | None) -> SkipLimit:
        """``5``, ``"5"`` or ``"0.1%"``.

        Raises:
            UsageError: it is neither.
        """
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)\s*%", str(text).strip())
        if match is None or (match[2] and float(match[2]) > 100):
            raise UsageError(f"--max-errors: expected a number or a percentage, got {text!r}")
        return cls(int(match[1])) if match[1] else cls(percent=float(match[2]))

    def exceeded(self, skipped: int, planned: int) -> bool:
        """Whether ``skipped`` of ``planned`` images are too many."""
        if self.percent is not None:
            return skipped * 100 > self.percent * planned
        return self.count is not None and skipped > self.count

    def __str__(self) -> str:
        return f"{self.percent:g}%" if self.percent is not None else str(self.count)


@dataclass(frozen=True)
class ErrorPolicy:
    """What to do about records that are at fault."""

    on_error: str
    limit: SkipLimit

    def check(self, skipped: int, planned: int, listed: Path | None = None) -> None:
        """Refuse to leave out too many.

        Raises:
            DataError: there are more than ``limit``.
        """
        if self.limit.exceeded(skipped, planned):
            where = "" if listed is None else f", listed in {listed}"
            raise DataError(
                f"{skipped} of {planned} images cannot be used{where}, more than --max-errors "
                f"{self.limit}; look at some of them, or allow more (what is done is kept)"
            )

    def check_source(self, source: Source) -> None:
        """Refuse a source of which the scan has already found that it cannot be read.

        Raises:
            SourceError: a folder cannot be listed.
            ImageError: a file has gone.
        """
        if self.on_error == "skip":
            lost = int((source.bytes < 0).sum()) + len(source.unreadable)
            self.check(lost, len(source) + len(source.unreadable))
            return
        if source.unreadable:
            folder = source.unreadable[0]
            raise SourceError(
                f"{os.path.join(display(source.root), folder.path)}: {folder.reason}; check its "
                "permissions, or hide it with a leading dot"
            )
        gone = np.flatnonzero(source.bytes < 0)
        if gone.size:
            more = f" (and {gone.size - 1} more)" if gone.size > 1 else ""
            try:
                open_records(source).read(int(gone[0]))
            except ImageError as error:
                raise ImageError(error.path, f"{error.reason}{more}; {ADVICE}") from error
