"""What DALI is given of a plain folder: the names of sound files, whose headers are looked at once;
files that have changed since are found out by the pipeline."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import Recipe, make_loader, open_dataset
from fastdata.engines.dali.encoded import ImageFiles
from fastdata.formats.folder import FolderReader
from fastdata.plan import plan_batches
from fastdata.recipe import draw_key

RECIPE = Recipe(size=24, crop="center", dtype="uint8")
DEVICES = [
    pytest.param("dali-cpu", "cpu"),
    pytest.param(
        "dali",
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
TURNED = Image.Exif()
TURNED[0x0112] = 6


def encoded(width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    ramp = np.linspace(0, 255, width * height).reshape(height, width).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp).convert(mode).save(file, options.pop("format", "JPEG"), **options)
    return file.getvalue()


def sampled(data: bytes, factors: int) -> bytes:
    """A grey JPEG with other sampling factors."""
    frame = data.index(b"\xff\xc0")
    return data[: frame + 11] + bytes([factors]) + data[frame + 12 :]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """(files' contents) -> a folder of them, named in their order."""

    def make(*files: bytes) -> Path:
        for number, data in enumerate(files):
            path = tmp_path / "images" / "a" / f"{number:02d}{'-' * number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return tmp_path / "images"

    return make


def taken(path: Path) -> tuple[list[bytes], list[list[int]], list[int]]:
    """Names and facts that the pipeline is given of all samples, and what it is not given."""
    with open_dataset(path) as dataset:
        images = ImageFiles(dataset, RECIPE)
        [plan] = plan_batches(RECIPE, draw_key(0, 0), [np.arange(len(dataset))], None)
        (names, facts), plan, aside = images.take(plan)
        images.close()
        assert plan.boxes is not None
    return [bytes(row).rstrip(b"\0") for row in names], facts.tolist(), aside.tolist()  # type: ignore[union-attr]


def test_names_of_all_lengths_and_what_the_files_hold(write: Callable[..., Path]) -> None:
    files = [encoded(40, 30), encoded(32, 50, comment=b"#" * 40_000), encoded(30, 30, "L")]
    names, facts, aside = taken(path := write(*files))
    assert names == [bytes(file) for file in sorted((path / "a").iterdir())]
    sizes = [[40, 30], [32, 50], [30, 30]]
    assert facts == [[*size, len(data)] for size, data in zip(sizes, files, strict=True)]
    assert aside == []


@pytest.mark.parametrize(
    "odd",
    [
        encoded(40, 30, format="PNG"),
        encoded(40, 30, progressive=True),
        encoded(
            40, 30, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
        ),
        sampled(encoded(40, 30, "L"), 0x22),
        encoded(40, 30)[:100],
        b"This is no image. " * 2000,
        b"",
    ],
    ids=["PNG", "progressive", "turned", "grey 2x2", "cut", "text", "empty"],
)
def test_what_is_no_plain_jpeg_is_not_given(odd: bytes, write: Callable[..., Path]) -> None:
    _, facts, aside = taken(write(encoded(40, 30), odd, encoded(32, 50)))
    assert [fact[:2] for fact in facts] == [[40, 30], [32, 50]]
    assert aside == [1]


def test_headers_are_looked_at_once_also_of_what_is_not_given(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = FolderReader.read_beginning

    def counted(reader: FolderReader, index: int, most: int) -> tuple[bytes, int]:
        looks.append(index)
        return look(reader, index, most)

    monkeypatch.setattr(FolderReader, "read_beginning", counted)
    with open_dataset(write(encoded(40, 30), encoded(400, 300, format="PNG"))) as dataset:
        images = ImageFiles(dataset, RECIPE)
        [plan] = plan_batches(RECIPE, draw_key(0, 0), [np.array([1, 0, 1])], None)
        for _ in range(3):
            _, _, aside = images.take(plan)
            assert aside.tolist() == [0, 2]
        [plan] = plan_batches(RECIPE, draw_key(0, 0), [np.array([1, 1])], None)
        columns, _, aside = images.take(plan)
        images.close()
    assert [len(column) for column in columns] == [0, 0]
    assert aside.tolist() == [0, 1]
    assert sorted(looks) == [0, 1]


def test_a_file_that_is_gone_is_not_given(write: Callable[..., Path]) -> None:
    path = write(encoded(40, 30), encoded(32, 50))
    with open_dataset(path) as dataset:
        (path / "a" / "00.jpg").unlink()
        images = ImageFiles(dataset, RECIPE)
        [plan] = plan_batches(RECIPE, draw_key(0, 0), [np.arange(2)], None)
        (names, _), _, aside = images.take(plan)
        images.close()
    assert len(names) == 1
    assert aside.tolist() == [0]


# What is behind the end marker belongs to no image.
SMALLER = encoded(30, 40).ljust(len(encoded(40, 30)), b"\0")


@pytest.mark.parametrize(("engine", "device"), DEVICES)
@pytest.mark.parametrize(
    "changed", [SMALLER, encoded(40, 30, quality=95)], ids=["other size", "other length"]
)
def test_a_file_that_changes_costs_its_batch_one_pipeline(
    changed: bytes, engine: str, device: str, write: Callable[..., Path]
) -> None:
    path = write(*(encoded(40, 30) for _ in range(6)))
    options: dict[str, Any] = {"recipe": RECIPE, "shuffle": False, "num_workers": 1}
    with make_loader(path, 2, engine=engine, device=device, **options) as loader:
        first = torch.cat([images for images, _ in loader])
        before: Any = loader.carrier
        pipeline = before.pipeline
        (path / "a" / "03---.jpg").write_bytes(changed)
        pipelines = []
        for _ in range(2):
            images = torch.cat([images for images, _ in loader]).cpu()
            pipelines.append(before.pipeline)
            with make_loader(path, 6, engine="workers", device="cpu", **options) as reference:
                [(expected, _)] = list(reference)
            assert (
                images.int() - expected.int()
            ).abs().max() <= 4  # as docs/architecture.md has it
            assert torch.equal(images[:2], first[:2].cpu())
    assert pipelines[0] is not pipeline  # the batch was refused
    assert pipelines[1] is pipelines[0]


def test_all_files_may_change_between_two_epochs(write: Callable[..., Path]) -> None:
    path = write(*(encoded(40, 30) for _ in range(30)))  # more batches than may be refused
    options: dict[str, Any] = {"recipe": RECIPE, "shuffle": False, "num_workers": 1}
    with make_loader(path, 2, engine="dali-cpu", **options) as loader:
        assert len(list(loader)) == 15
        write(*(encoded(40, 30, quality=95) for _ in range(30)))
        images = torch.cat([images for images, _ in loader])
    with make_loader(path, 30, engine="workers", **options) as reference:
        [(expected, _)] = list(reference)
    assert (images.int() - expected.int()).abs().max() <= 4


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from fastdata import UsageError, make_loader
options = {"engine": "dali-cpu", "recipe": "imagenet-eval", "shuffle": False}
with make_loader(sys.argv[1], 44, num_workers=1, **options) as loader:
    print(sum(len(images) for images, _ in loader))
try:
    make_loader(sys.argv[1], 45, **options)
except UsageError as error:
    print(error)
"""


def test_a_batch_has_no_more_files_than_may_be_open(write: Callable[..., Path]) -> None:
    path = write(*(encoded(40, 30) for _ in range(50)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded, message = done.stdout.splitlines()
    assert loaded == "50"
    assert "45, and 256 to spare, are more than the 300" in message
    assert "ulimit -n" in message
