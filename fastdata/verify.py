"""Checking a converted dataset against its manifest, and its images against a decoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fastdata.dataset import Dataset
from fastdata.errors import DataError
from fastdata.files import sha256_range
from fastdata.machine import available_cpus
from fastdata.manifest import Manifest, Part
from fastdata.threads import Threads

__all__ = ["Verification", "verify"]

_IMAGES_AT_ONCE = 64  # by a thread: to hand over a single one takes longer than to decode some


@dataclass(frozen=True)
class Verification:
    """What a verification found.

    Attributes:
        path: the dataset.
        samples: number of samples in it.
        files: number of files whose checksums were compared.
        bytes: their size.
        decoded: number of images that were decoded.
        problems: a line for each thing that is wrong, naming the file; empty if all is well.
    """

    path: str
    samples: int
    files: int
    bytes: int
    decoded: int
    problems: list[str]


def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Compare every byte of a dataset with its manifest's checksums.

    Args:
        path: the dataset.
        decode: also decode every image.
        progress: called with the number of bytes checked since the last call; with ``decode``
            then with the number of images.

    Raises:
        DatasetError: no dataset lies there, or its manifest cannot be read. Everything else that
            is wrong is a line of the result's ``problems``.
    """
    root = Path(os.path.abspath(path))
    manifest = Manifest.read(root)
    # Hashing and decoding release the interpreter's lock.
    with Threads(available_cpus(), "fastdata-verify") as threads:
        found = threads.map(lambda part: _check_part(root, part, progress), manifest.parts)
        problems = manifest.missing_or_resized(root) + [line for line in found if line]
        problems += _strangers(root, manifest)
        decoded = 0
        if not problems:
            try:
                dataset = Dataset(root)
            except DataError as error:
                problems.append(str(error))
            else:
                problems += _check_labels(dataset)
                if decode:
                    for fault in _decode_all(dataset, threads):
                        decoded += 1
                        problems += [fault] if fault else []
                        if progress is not None:
                            progress(1)
                dataset.close()
    return Verification(
        path=os.fspath(root),
        samples=manifest.samples,
        files=len(manifest.files),
        bytes=sum(part.bytes for part in manifest.parts),
        decoded=decoded,
        problems=problems,
    )


def _check_part(root: Path, part: Part, progress: Callable[[int], None] | None) -> str | None:
    path = root / part.file
    try:
        digest = sha256_range(path, part.offset, part.bytes, progress)
    except OSError:
        return None  # missing or short: that was said already
    if digest == part.sha256:
        return None
    where = f"bytes {part.offset} to {part.offset + part.bytes}"
    return f"{path}: {where} are not what was written (checksum differs)"


def _strangers(root: Path, manifest: Manifest) -> list[str]:
    """Shards that no manifest names: readers that take shards by pattern would read them too."""
    shards = {name for name in manifest.files if name.endswith(".tar")}
    if not shards:
        return []
    strangers = sorted({path.name for path in root.glob("*.tar")} - shards)
    return [f"{root / name}: a shard that is no part of this dataset" for name in strangers]


def _check_labels(dataset: Dataset) -> list[str]:
    labels = dataset.labels
    if dataset.classes and (labels.min() < 0 or labels.max() >= len(dataset.classes)):
        return [
            f"{dataset.path / 'labels.npy'}: expected labels from 0 to "
            f"{len(dataset.classes) - 1}, found {labels.min()} to {labels.max()}"
        ]
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        return [f"{dataset.path / 'labels.npy'}: expected finite targets, found others"]
    return []


def _decode_all(dataset: Dataset, threads: Threads) -> Iterator[str | None]:
    """The fault of each image in turn, or None where it has none."""

    def faults(start: int) -> list[str | None]:
        return [fault(index) for index in range(start, min(start + _IMAGES_AT_ONCE, len(dataset)))]

    def fault(index: int) -> str | None:
        try:
            pixels = dataset.decode(index)
        except DataError as error:
            return str(error)
        width, height = dataset.sizes[index].tolist()
        if pixels.shape != (height, width, 3):
            return (
                f"{dataset.name_of(index)}: expected {width}x{height} pixels, found {pixels.shape}"
            )
        return None

    return chain.from_iterable(threads.map(faults, range(0, len(dataset), _IMAGES_AT_ONCE)))
