"""The memmap format on disk: a plain .npy file."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata import DatasetError, UsageError, convert, open_dataset

HANG_GUARD = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images of the very size that is stored, so that a row is the file's own pixels; only read."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made") / "out"
    generator = np.random.default_rng(0)
    for number in range(22):
        folder = source / ("ant", "bee", "cat")[number % 3]
        folder.mkdir(exist_ok=True)
        noise = generator.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number:03d}.jpg")
    convert(source, out, to="memmap", size=(30, 40), workers=1, shard_size=4000)
    return source, out


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """The dataset, to be damaged."""
    return Path(shutil.copytree(made[1], tmp_path / "out"))


def test_numpy_maps_the_images_as_they_are(made: tuple[Path, Path]) -> None:
    source, out = made
    images = np.load(out / "images.npy", mmap_mode="r")
    assert (images.dtype, images.shape) == (np.uint8, (22, 30, 40, 3))
    assert images.flags.c_contiguous
    paths = (out / "paths.bin").read_bytes().split(b"\0")
    for i in range(22):
        with Image.open(source / os.fsdecode(paths[i])) as image:
            np.testing.assert_array_equal(images[i], np.asarray(image))


def test_pixels_are_the_same_array(made: tuple[Path, Path]) -> None:
    _, out = made
    dataset = open_dataset(out)
    images = np.load(out / "images.npy", mmap_mode="r")
    assert (dataset.format, dataset.encoded) == ("memmap", False)
    np.testing.assert_array_equal(dataset.pixels, images)
    assert (dataset.pixels.dtype, dataset.pixels.shape) == (images.dtype, images.shape)
    assert not dataset.pixels.flags.writeable
    np.testing.assert_array_equal(dataset.decode(3), images[3])
    np.testing.assert_array_equal(dataset.sizes, [[40, 30]] * 22)


def test_the_header_is_that_of_version_one_and_aligned(made: tuple[Path, Path]) -> None:
    data = (made[1] / "images.npy").read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00"
    assert int.from_bytes(data[8:10], "little") == 118  # the data begins at byte 128
    assert len(data) == 128 + 22 * 30 * 40 * 3


def test_the_file_is_the_one_that_numpy_would_write(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    _, out = made
    again = tmp_path / "again.npy"
    np.save(again, np.load(out / "images.npy"))
    np.testing.assert_array_equal(np.load(again), np.load(out / "images.npy"))
    assert again.stat().st_size == (out / "images.npy").stat().st_size


def test_skipped_images_leave_no_hole_between_rows(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder({"a": 6, "b": 6}, sizes=[(20, 20)]), tmp_path / "out"
    bad = {"a/a_000", "a/a_003", "a/a_004", "b/b_005"}  # the first, the last, two in a row
    for name in bad:
        (source / f"{name}.jpg").write_bytes(b"no image")
    options: dict[str, Any] = {"to": "memmap", "size": 20, "workers": 1, "on_error": "skip"}
    convert(source, out, shuffle=False, shard_size=1500, **options)
    images = np.load(out / "images.npy", mmap_mode="r")
    kept = [f"{c}/{c}_{i:03d}" for c in "ab" for i in range(6)]
    kept = [name for name in kept if name not in bad]
    assert images.shape == (8, 20, 20, 3)
    assert (out / "images.npy").stat().st_size == 128 + 8 * 1200
    for row, name in zip(images, kept, strict=True):
        with Image.open(source / f"{name}.jpg") as image:
            np.testing.assert_array_equal(row, np.asarray(image))
    assert np.load(out / "labels.npy").tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    dataset = open_dataset(out)
    assert dataset.manifest is not None
    assert dataset.manifest.image_size == (20, 20)


def test_height_comes_before_width(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    convert(make_folder({"a": 2}), tmp_path / "out", to="memmap", size=(10, 24), workers=1)
    assert np.load(tmp_path / "out" / "images.npy").shape == (2, 10, 24, 3)
    assert np.load(tmp_path / "out" / "sizes.npy").tolist() == [[24, 10]] * 2


# Reading.


def test_there_are_no_encoded_images(made: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=r"\.pixels or \.decode\(\)"):
        open_dataset(made[1]).read(0)


def test_pixels_that_are_in_use_outlive_the_dataset(made: tuple[Path, Path]) -> None:
    expected = np.load(made[1] / "images.npy")
    with open_dataset(made[1]) as dataset:
        pixels, row = dataset.pixels, dataset.pixels[21]
    np.testing.assert_array_equal(pixels, expected)
    np.testing.assert_array_equal(row, expected[21])


def test_decoded_pixels_are_the_callers(made: tuple[Path, Path]) -> None:
    dataset = open_dataset(made[1])
    image = dataset.decode(0)
    image[:] = 0
    assert dataset.decode(0).any()


def _sum(path: Path, queue: Any) -> None:
    queue.put(open_dataset(path).pixels.sum(axis=(1, 2, 3)).tolist())


def test_a_spawned_process_reads_the_same(made: tuple[Path, Path]) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_sum, args=(made[1], queue))
    process.start()
    found = queue.get(timeout=HANG_GUARD)
    process.join(HANG_GUARD)
    assert found == np.load(made[1] / "images.npy").sum(axis=(1, 2, 3)).tolist()
    assert process.exitcode == 0


@pytest.mark.parametrize("change", ["cut", "grown", "gone", "empty"])
def test_a_file_of_another_length_is_refused(change: str, copied: Path) -> None:
    path = copied / "images.npy"
    size = path.stat().st_size
    if change == "gone":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate({"cut": size - 1, "grown": size + 1, "empty": 0}[change])
    with pytest.raises(
        DatasetError, match=rf"{path}: (expected {size} bytes, found \d+|No such file)"
    ):
        open_dataset(copied)


@pytest.mark.parametrize("array", [np.zeros((22, 40, 30, 3), np.uint8), np.zeros(79200, np.int8)])
def test_an_array_of_another_shape_or_type_is_refused(array: np.ndarray, copied: Path) -> None:
    path = copied / "images.npy"
    size = path.stat().st_size
    np.save(path, array)
    assert path.stat().st_size == size  # only the header tells
    with pytest.raises(DatasetError, match=r"header does not say uint8 \(22, 30, 40, 3\)"):
        open_dataset(copied)
