"""Datasets of every format, converted once from images that Pillow made.

What a dataset must hold is told by the source folder, torchvision's ImageFolder and Pillow, never
by fastdata's own reading of it.
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import ImageFolder

from fastdata import convert
from fastdata.dataset import Dataset
from fastdata.registry import READERS, load

Pixels = NDArray[np.uint8]

PATIENCE = 60  # seconds until a process counts as hanging

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


class Case:
    """A dataset and the source folder that tells what is in it."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        self.source = source
        self.folder = ImageFolder(os.fspath(source.root))


@pytest.fixture(scope="session")
def make_case(
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> Callable[[str], Case]:
    """Format -> a dataset of images that are awkward in every way the format allows.

    Class names sort by code point (capitals first), one class has folders inside, endings are
    mixed, one name is not UTF-8, one JPEG is grey and one has full colour resolution. Formats of
    encoded images also hold sizes of all kinds, which formats of pixels cannot.
    """
    cases: dict[str, Case] = {}

    def make(name: str) -> Case:
        if name not in cases:
            varied = name not in PIXELS
            sizes = [(61, 37), (16, 90), (8, 8), (48, 40), (130, 97), (40, 48)]
            sizes = sizes if varied else [(48, 40)]
            paths = [b"Zebra/1.jpg", b"ant/10.JPG", b"ant/2.jpeg", b"ant/deep/z.jpg"]
            paths += [b"ant/deep/er/0.jpg", b"bee hive/b.jpg", b"bee hive/\xff\xe9.jpg"]
            paths += [os.fsencode("été/x.jpg"), os.fsencode("été/y.jpg")]
            files = {}
            for number, path in enumerate(paths):
                pixels = picture(*sizes[number % len(sizes)], number)
                if number == 3:
                    pixels = np.asarray(Image.fromarray(pixels).convert("L"))
                files[path] = jpeg(pixels, **({"subsampling": 0} if number == 4 else {}))
            source = write_source(files)
            cases[name] = Case(in_format(name, source), source)
        return cases[name]

    return make


@pytest.fixture
def copied(in_format: Callable[..., Path], tmp_path: Path) -> Callable[[str, Any], Path]:
    """(format, source) -> a copy of the dataset that a test may damage."""

    def make(name: str, source: Any) -> Path:
        return Path(shutil.copytree(in_format(name, source), tmp_path / "copy"))

    return make


@pytest.fixture(scope="session")
def digest() -> Callable[[bytes | Pixels], str]:
    """Bytes or pixels -> a short text that tells them from all others."""

    def make(data: bytes | Pixels) -> str:
        if isinstance(data, np.ndarray):
            return f"{data.shape} {hashlib.sha256(data.tobytes()).hexdigest()}"
        return hashlib.sha256(data).hexdigest()

    return make


@pytest.fixture(scope="session")
def contents(digest: Callable[[bytes | Pixels], str]) -> Callable[[Dataset], dict[str, Any]]:
    """All that a dataset tells and holds, comparable and picklable."""

    def take(dataset: Dataset) -> dict[str, Any]:
        everything: dict[str, Any] = {
            "labels": dataset.labels.tolist(),
            "classes": dataset.classes,
            "sizes": dataset.sizes.tolist(),
            "paths": [dataset.path_of(i) for i in range(len(dataset))],
            "decoded": [digest(dataset.decode(i)) for i in range(len(dataset))],
        }
        if dataset.encoded:
            everything["data"] = [digest(dataset.read(i)) for i in range(len(dataset))]
        else:
            everything["data"] = [digest(row) for row in dataset.pixels]
        return everything

    return take


class Child:
    """A forked process that runs a function; its end, whatever it is, is told and awaited."""

    def __init__(self, function: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._answers, end = context.Pipe(duplex=False)
        self._process = context.Process(target=self._run, args=(function, end))
        self._process.start()
        end.close()

    @staticmethod
    def _run(function: Callable[[], Any], end: Connection) -> None:
        try:
            answer = ("value", function())
        except BaseException as error:
            answer = ("error", type(error), str(error))
        end.send(answer)

    def answer(self) -> tuple[Any, ...]:
        """``("value", value)``, ``("error", type, message)`` or ``("died", exit code)``."""
        try:
            answer = self._answers.recv() if self._answers.poll(PATIENCE) else ("hangs",)
        except EOFError:
            self._process.join(PATIENCE)
            answer = ("died", self._process.exitcode)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._answers.close()
        return answer


@pytest.fixture(scope="session")
def fork() -> Callable[[Callable[[], Any]], Child]:
    """Run a function in a forked process; ``.answer()`` tells what became of it."""
    return Child
