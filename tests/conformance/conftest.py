"""Datasets of every format, converted once from images that Pillow made.

What a dataset must hold is told by the source folder, torchvision's ImageFolder and Pillow, never
by fastdata's own reading of it.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastdata import convert
from fastdata.registry import READERS, load

Pixels = NDArray[np.uint8]

FORMATS = ["folder", *READERS]
CONVERTED = list(READERS)
ENCODED = [name for name in READERS if load(READERS, name, "format").encoded]
PIXELS = [name for name in READERS if name not in ENCODED]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test over the registry: it names its format by one of these arguments."""
    kinds = {"any_format": FORMATS, "converted_format": CONVERTED, "pixel_format": PIXELS}
    kinds["encoded_format"] = ["folder", *ENCODED]
    for argument, names in kinds.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names, scope="session")


@pytest.fixture(autouse=True)
def _hang_guard() -> Iterator[None]:
    """Nothing may hang: a test that does fails instead of standing still."""

    def interrupt(number: int, frame: object) -> None:
        pytest.fail("still not done after 120 s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def picture() -> Callable[[int, int, int], Pixels]:
    """(width, height, seed) -> a smooth random picture, uint8 [height, width, 3]."""

    def make(width: int, height: int, seed: int) -> Pixels:
        generator = np.random.default_rng(seed)
        cells = (max(2, height // 12), max(2, width // 12), 3)
        coarse = Image.fromarray(generator.integers(0, 256, cells, np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
        grain = generator.integers(-8, 9, (height, width, 3))
        return np.clip(smooth.astype(np.int64) + grain, 0, 255).astype(np.uint8)

    return make


@pytest.fixture(scope="session")
def jpeg() -> Callable[..., bytes]:
    """Pixels -> a JPEG by Pillow; quality 90 and 4:2:0 unless told otherwise."""

    def encode(pixels: Pixels, **options: object) -> bytes:
        buffer = io.BytesIO()
        settings = {"quality": 90, "subsampling": 2, **options}
        Image.fromarray(pixels).save(buffer, "JPEG", **settings)
        return buffer.getvalue()

    return encode


@dataclass(frozen=True)
class Source:
    """A folder of images, and what Pillow makes of them.

    Attributes:
        root: the folder.
        paths: of the samples relative to it, in ImageFolder's order.
    """

    root: Path
    paths: list[bytes]

    def data(self, index: int) -> bytes:
        with open(os.path.join(os.fsencode(self.root), self.paths[index]), "rb") as file:
            return file.read()

    def pixels(self, index: int) -> Pixels:
        with Image.open(io.BytesIO(self.data(index))) as image:
            return np.asarray(image.convert("RGB"))


@pytest.fixture(scope="session")
def write_source(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[dict[bytes, bytes]], Source]:
    """Write a folder of files, given as path -> contents in ImageFolder's order."""

    def write(files: dict[bytes, bytes]) -> Source:
        root = tmp_path_factory.mktemp("source")
        for path, data in files.items():
            full = os.path.join(os.fsencode(root), path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as file:
                file.write(data)
        return Source(root, list(files))

    return write


@pytest.fixture(scope="session")
def in_format(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(format, source, **convert's options) -> a dataset in the source's order.

    ``"folder"`` is the source as it is. Formats of pixels are made with the size of the source's
    images, which must be the same for all, so that no pixel changes on the way. A dataset is made
    once: tests that damage or replace one take a copy.
    """
    made: dict[object, Path] = {}

    def make(name: str, source: Source, **options: object) -> Path:
        if name == "folder":
            return source.root
        key = (name, source.root, *sorted(options.items()))
        if key not in made:
            if name in PIXELS:
                sizes = {source.pixels(index).shape[:2] for index in range(len(source.paths))}
                (options["size"],) = sizes
            made[key] = tmp_path_factory.mktemp(name) / "dataset"
            convert(source.root, made[key], to=name, shuffle=False, workers=1, **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def uniform(
    write_source: Callable[[dict[bytes, bytes]], Source],
    picture: Callable[[int, int, int], Pixels],
    jpeg: Callable[..., bytes],
) -> Source:
    """Eleven baseline JPEGs of 48 x 40 in three classes: every format can hold exactly these."""
    names = [b"ant/%d.jpg" % i for i in range(4)] + [b"bee/%d.jpg" % i for i in range(2)]
    names += [b"cat/%d.jpg" % i for i in range(5)]
    return write_source({name: jpeg(picture(48, 40, i)) for i, name in enumerate(names)})
