"""What other people's tools must find: a source's files, and torchvision's labels for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from fastdata import convert, open_dataset

Pairs = list[tuple[bytes, int]]


@pytest.fixture
def source(make_folder: Callable[..., Path]) -> Path:
    """Twelve classes, so that labels of one and of two digits stand side by side in a batch."""
    sizes = [(40, 30), (30, 40), (33, 47), (48, 48), (25, 61), (70, 31), (56, 29)]
    return make_folder({f"class {number:02d}": 4 + number % 3 for number in range(12)}, sizes)


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Callable[..., Path]:
    """Convert the source; returns the dataset's path. Arguments are those of ``convert``."""

    def make(**options: object) -> Path:
        convert(source, tmp_path / "made", workers=1, shard_size=10_000, **options)
        return tmp_path / "made"

    return make


@pytest.fixture
def expected(source: Path) -> Callable[[Path], Pairs]:
    """The image file and the label of each sample of a dataset, in the dataset's order.

    Only the order is taken from fastdata: files and labels are ImageFolder's, each exactly once.
    """

    def pairs(out: Path) -> Pairs:
        labels = dict(ImageFolder(str(source)).samples)
        assert len(set(labels.values())) == 12
        with open_dataset(out) as dataset:
            paths = [
                os.path.join(source, os.fsdecode(dataset.path_of(i))) for i in range(len(dataset))
            ]
        assert sorted(paths) == sorted(labels)
        return [(Path(path).read_bytes(), labels[path]) for path in paths]

    return pairs
