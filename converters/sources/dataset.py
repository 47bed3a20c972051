"""A dataset of ours as a source: formats convert into each other."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import converters.sources as sources
from converters.labels import LabelTable, renumber
from converters.sources import Source
from fastdata.dataset import Dataset
from fastdata.errors import SourceError
from fastdata.paths import PathTable

__all__ = ["Records", "scan"]


def scan(
    src: str | os.PathLike[str],
    table: LabelTable | None,
    classes: list[str] | None,
    progress: Callable[[int], None] | None,
) -> Source:
    """See :func:`converters.sources.scan_source`."""
    with Dataset(src) as dataset:
        count = len(dataset)
        labels, names = dataset.labels, dataset.classes
        if classes is not None:
            labels, names = renumber(labels, names, classes, os.fspath(src)), classes
        assert dataset.manifest is not None
        if progress is not None:
            progress(count)
        return Source(
            kind="dataset",
            root=os.fsencode(dataset.path),
            paths=PathTable.of(dataset.path_of(i) for i in range(count)),
            labels=labels,
            classes=names,
            columns=list(dataset.manifest.columns or []),
            bytes=np.array(dataset.reader.lengths),
            stamps=np.zeros(count, np.int64),
            identity=dataset.identity,
            groups=dataset.copies,
        )


class Records(sources.Records):
    """Reads the samples of a dataset."""

    def __init__(self, source: Source) -> None:
        self._dataset = Dataset(os.fsdecode(source.root))
        if self._dataset.identity != source.identity:
            raise SourceError(
                f"{self._dataset.path} was replaced while it was converted; run the command again "
                "with --no-resume"
            )

    def name(self, index: int) -> str:
        return self._dataset.name_of(index)

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        if self._dataset.encoded:
            return self._dataset.read(index)
        pixels: NDArray[np.uint8] = self._dataset.pixels[index]
        return pixels
