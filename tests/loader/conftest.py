"""What the loader's tests share: small folders of images, and how batches are taken and compared.

The pixels themselves are held to a reference in tests/conformance/test_engines.py.
"""

from __future__ import annotations

import gc
import io
import itertools
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import Recipe, convert, make_loader
from fastdata.registry import READERS, load

FORMATS = ["folder", *READERS]
ENCODED = [name for name in FORMATS if name == "folder" or load(READERS, name, "format").encoded]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
COUNT = 22  # images in the folders
PATIENCE = 240  # seconds until something counts as hanging, on a machine with much else to do


@pytest.fixture(autouse=True)
def _hang_guard() -> Iterator[None]:
    """Nothing may hang: a test that does fails instead of standing still."""

    def interrupt(number: int, frame: object) -> None:
        pytest.fail(f"still not done after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def encode() -> Callable[[int, int, int], bytes]:
    """(number, width, height) -> a small JPEG that is like no other."""

    def make(number: int, width: int, height: int) -> bytes:
        generator = np.random.default_rng(number)
        coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), np.uint8))
        buffer = io.BytesIO()
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def write_folder(
    encode: Callable[[int, int, int], bytes],
) -> Callable[[Path, list[tuple[int, int]]], Path]:
    """(path, sizes) -> ``COUNT`` JPEGs in three classes; the labels follow from the names alone."""

    def write(root: Path, sizes: list[tuple[int, int]]) -> Path:
        for number in range(COUNT):
            path = root / "abc"[number * 3 // COUNT] / f"{number:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(number, *sizes[number % len(sizes)]))
        return root

    return write


@pytest.fixture(scope="session")
def folder(write_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many sizes, from smaller than the recipes' output to eight times as large."""
    sizes = [(80, 60), (61, 97), (64, 128), (300, 270), (30, 20)]
    return write_folder(tmp_path_factory.mktemp("varied") / "source", sizes)


@pytest.fixture(scope="session")
def uniform(write_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 48 x 40."""
    return write_folder(tmp_path_factory.mktemp("uniform") / "source", [(48, 40)])


@pytest.fixture(scope="session")
def in_format(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """(format, folder) -> a dataset of the same samples in the same order."""
    made: dict[tuple[str, Path], Path] = {}

    def make(name: str, source: Path) -> Path:
        if name == "folder":
            return source
        if (name, source) not in made:
            path = tmp_path_factory.mktemp(name) / "dataset"
            size = None if name in ENCODED else (40, 48)
            convert(source, path, to=name, shuffle=False, workers=1, size=size)
            made[name, source] = path
        return made[name, source]

    return make


@pytest.fixture(scope="session")
def packed(in_format: Callable[[str, Path], Path], folder: Path) -> Path:
    """The varied images as one dataset, for tests to which the format does not matter."""
    return in_format("webdataset", folder)


@pytest.fixture(scope="session")
def run() -> Callable[..., list[Any]]:
    """All batches of one epoch of a loader made for it."""

    def take(path: Any, batch_size: int = 4, epoch: int = 0, **options: Any) -> list[Any]:
        options = {"recipe": TRAIN, "num_workers": 0, "with_index": True, **options}
        with make_loader(path, batch_size, **options) as loader:
            loader.set_epoch(epoch)
            return list(loader)

    return take


@pytest.fixture(scope="session")
def same() -> Callable[..., bool]:
    """Whether two epochs hold the same batches, bit by bit."""

    def compare(found: Iterable[Any], expected: Iterable[Any]) -> bool:
        pairs = list(itertools.zip_longest(found, expected))
        return bool(pairs) and all(
            one is not None
            and two is not None
            and len(one) == len(two)
            and all(map(torch.equal, one, two))
            for one, two in pairs
        )

    return compare


@pytest.fixture(scope="session")
def order() -> Callable[..., list[int]]:
    """The dataset indices of batches made with ``with_index``."""

    def read(batches: Iterable[Any]) -> list[int]:
        return [index for *_, indices in batches for index in indices.tolist()]

    return read


@pytest.fixture(scope="session")
def children() -> Callable[[], set[int]]:
    """Living child processes of this one, whoever made them.

    The first thread of a killed process may have ended before the others: only with the last of
    them are its files closed, by which others hear of its end.
    """

    def find() -> set[int]:
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
                    if parent == os.getpid() and (state != "Z" or threads > 1):
                        found.add(int(entry.name))
        return found

    return find


@pytest.fixture
def before(children: Callable[[], set[int]]) -> set[int]:
    """The children before a test."""
    gc.collect()
    return children()
