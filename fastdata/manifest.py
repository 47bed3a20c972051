"""``fastdata.json``: what a dataset is.

It is written last, so a folder that has one holds a whole dataset. It says nothing of when, where
or by whom the conversion ran: the same input and arguments give the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, UnfinishedError
from fastdata.files import sha256_range, write_whole

__all__ = ["MANIFEST", "STAGING", "Manifest", "Part"]

MANIFEST = "fastdata.json"
STAGING = ".fastdata-partial"
"""The folder inside a destination that holds an unfinished conversion."""
_LAYOUT = 1
_MOST_CHECKED = 64_000_000
_NO_DATA_FILES = ("", ".", "..", MANIFEST, STAGING)


@dataclass(frozen=True)
class Part:
    """A range of one of the dataset's files, and its checksum.

    Attributes:
        file: name relative to the dataset.
        offset, bytes: the range.
        sha256: of the range, in hexadecimal.
        samples: for a range that holds whole samples, how many; None for a sidecar.
    """

    file: str
    offset: int
    bytes: int
    sha256: str
    samples: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents of ``fastdata.json``.

    Attributes:
        format: name in the registry.
        samples: number of samples.
        classes: class names in label order; empty where the labels are no class indices.
        label_dtype: of ``labels.npy``: ``"int64"`` or ``"float32"``.
        columns: None for labels [N]; names of the K columns of labels [N, K]; empty for none.
        image_size: (height, width) that all images share, for memmap; None elsewhere.
        conversion: the arguments that decide the dataset's bytes.
        source: ``files``, ``bytes`` and ``fingerprint`` of what was converted.
        skipped: number of records left out, listed in ``skipped.jsonl``.
        treated: reason -> number of samples that are not their source's own bytes, though nothing
            was wrong with those.
        repaired: what was wrong -> number of samples mended, listed in ``repaired.jsonl``.
        parts: every file of the dataset but the manifest, in ranges with checksums.
        created_by: name and version of the program that wrote it.
    """

    format: str
    samples: int
    classes: list[str]
    image_size: tuple[int, int] | None
    conversion: dict[str, Any]
    source: dict[str, Any]
    skipped: int
    created_by: str
    label_dtype: str = "int64"
    columns: list[str] | None = None
    treated: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """The file's exact bytes: the same for equal manifests."""
        return _dumped({"fastdata": _LAYOUT, "identity": self.identity, **self._fields()})

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 over the rest of the manifest, hexadecimal: equal for equal datasets, byte for
        byte."""
        return hashlib.sha256(_dumped(self._fields())).hexdigest()

    def _fields(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("conversion", "source", "treated", "repaired"):
            fields[name] = dict(sorted(fields[name].items()))  # equal dicts may differ in order
        return fields

    @property
    def files(self) -> list[str]:
        """Names of the dataset's files, without the manifest, sorted."""
        return sorted({part.file for part in self.parts})

    def missing_or_resized(self, root: Path) -> list[str]:
        """A line for each of the dataset's files that is not there, or not of its size."""
        sizes: dict[str, int] = {}
        for part in self.parts:
            sizes[part.file] = max(sizes.get(part.file, 0), part.offset + part.bytes)
        problems = []
        for name, expected in sorted(sizes.items()):
            try:
                found = (root / name).stat().st_size
            except OSError as error:
                problems.append(f"{root / name}: {error.strerror}")
                continue
            if found != expected:
                problems.append(f"{root / name}: expected {expected} bytes, found {found}")
        return problems

    def altered(self, root: Path, names: Iterable[str]) -> list[str]:
        """A line for each of the named files whose bytes are not what was written; files of more
        than 64 MB are not looked at.

        Raises:
            OSError: one cannot be read.
        """
        names = set(names)
        return [
            f"{root / part.file} is damaged: its checksum differs"
            for part in self.parts
            if part.file in names
            and part.bytes <= _MOST_CHECKED
            and sha256_range(root / part.file, part.offset, part.bytes) != part.sha256
        ]

    def write(self, root: Path) -> None:
        """Write it into ``root``, whole or not at all."""
        with write_whole(root / MANIFEST) as file:
            file.write(self.to_bytes())

    @classmethod
    def read(cls, root: Path) -> Manifest:
        """Read the manifest of the dataset in ``root``.

        Raises:
            UnfinishedError: a conversion into ``root`` was interrupted.
            DatasetError: there is no manifest, or one that this version cannot read.
        """
        path = root / MANIFEST
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            if (root / STAGING).is_dir():
                raise UnfinishedError(_unfinished(root)) from None
            raise DatasetError(
                f"no dataset in {root}: expected a {MANIFEST}; "
                "make one with: fastdata convert SRC DST --to FORMAT"
            ) from None
        except OSError as error:
            raise DatasetError(
                f"cannot read {path}: {error.strerror}; check its permissions and the disk"
            ) from error
        try:
            document = json.loads(text)
            layout = document.pop("fastdata")
            if layout != _LAYOUT:
                raise DatasetError(
                    f"{path} has layout version {layout!r}, this version of fastdata reads "
                    f"{_LAYOUT}; convert the source again, or install the version that wrote it"
                )
            document.pop("identity")
            parts = [Part(**part) for part in document.pop("parts")]
            for part in parts:  # these names are opened, and removed by --overwrite
                if os.path.basename(part.file) != part.file or part.file in _NO_DATA_FILES:
                    raise ValueError(f"{part.file!r} is no name of a data file")
            size = document.pop("image_size")
            if not isinstance(document["samples"], int):
                raise TypeError(f"samples is {document['samples']!r}, no number")
            manifest = cls(
                **document, image_size=None if size is None else tuple(size), parts=parts
            )
            if manifest.to_bytes() != text:  # the identity in it is a checksum of the rest
                raise ValueError("it is not as it was written")
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DatasetError(
                f"{path} is damaged ({error}); restore it, or convert the source again"
            ) from error


def _dumped(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


def _unfinished(root: Path) -> str:
    done = sum(1 for _ in (root / STAGING).glob("shard-*.npz"))
    try:
        total = str(json.loads((root / STAGING / "plan.json").read_text())["shards"])
    except (OSError, ValueError, KeyError, TypeError):
        total = "an unknown number of"
    return (
        f"conversion of {root} unfinished: {done} of {total} shards; "
        "run the same fastdata convert again to resume"
    )
