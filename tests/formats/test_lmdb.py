"""LMDB on disk, as a plain loop with the lmdb package reads it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

import fastdata
from fastdata import DatasetError, ImageError, convert, open_dataset

HANG_GUARD = 60
REPOSITORY = Path(fastdata.__file__).parent.parent


def contents(path: Path) -> dict[bytes, bytes]:
    """All keys and values."""
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return dict(transaction.cursor())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source and its dataset of several shards; only read."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made") / "out"
    generator = np.random.default_rng(0)
    for number in range(22):
        folder = source / ("ant", "bee", "cat")[number % 3]
        folder.mkdir(exist_ok=True)
        noise = generator.integers(0, 256, (40 + number % 4, 60, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number:03d}.jpg")
    convert(source, out, to="lmdb", workers=1, shard_size=9000)
    return source, out


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """The dataset, to be damaged."""
    return Path(shutil.copytree(made[1], tmp_path / "out"))


def test_a_plain_loop_finds_images_and_labels_from_one_on(made: tuple[Path, Path]) -> None:
    source, out = made
    labels = np.load(out / "labels.npy")
    paths = (out / "paths.bin").read_bytes().split(b"\0")
    with (
        lmdb.open(str(out / "data.mdb"), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        count = int(transaction.get(b"num-samples"))
        assert count == 22
        for i in range(count):
            image = transaction.get(f"image-{i + 1:09d}".encode())
            assert image == (source / os.fsdecode(paths[i])).read_bytes()
            assert int(transaction.get(f"label-{i + 1:09d}".encode())) == labels[i]
        assert transaction.get(b"image-000000000") is None
        assert environment.stat()["entries"] == 2 * 22 + 1


def test_values_are_ascii_and_jpegs_and_keys_are_in_order(made: tuple[Path, Path]) -> None:
    found = contents(made[1] / "data.mdb")
    assert list(found) == sorted(found)
    for key, value in found.items():
        if key.startswith(b"image-"):
            assert value[:3] == b"\xff\xd8\xff"
        else:
            assert value.isdigit()


def test_images_larger_and_smaller_than_a_page_are_kept(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    # LMDB keeps small values inside a page of 4096 bytes and larger ones in pages of their own.
    source = make_folder({"a": 12}, sizes=[(8, 8), (80, 60), (900, 700)])
    sizes = [path.stat().st_size for path in (source / "a").iterdir()]
    assert min(sizes) < 2000
    assert max(sizes) > 3 * 4096
    convert(source, tmp_path / "out", to="lmdb", workers=1, shuffle=False)
    found = contents(tmp_path / "out" / "data.mdb")
    for i, path in enumerate(sorted((source / "a").iterdir())):
        assert found[b"image-%09d" % (i + 1)] == path.read_bytes()


def test_samples_without_labels_have_no_label_keys(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"a": 3}) / "a", tmp_path / "out", to="lmdb", workers=1)
    found = contents(tmp_path / "out" / "data.mdb")
    assert list(found) == [*(b"image-%09d" % i for i in (1, 2, 3)), b"num-samples"]


def test_skipped_images_leave_no_hole_in_the_keys(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder({"a": 4, "b": 4}), tmp_path / "out"
    for name in ("a/a_000", "a/a_002", "b/b_003"):
        (source / f"{name}.jpg").write_bytes(b"no image")
    convert(source, out, to="lmdb", workers=1, shuffle=False, shard_size=8000, on_error="skip")
    found = contents(out / "data.mdb")
    kept = ["a/a_001", "a/a_003", "b/b_000", "b/b_001", "b/b_002"]
    assert found[b"num-samples"] == b"5"
    assert len(found) == 11
    for i, name in enumerate(kept, start=1):
        assert found[b"image-%09d" % i] == (source / f"{name}.jpg").read_bytes()
        assert found[b"label-%09d" % i] == (b"0" if name[0] == "a" else b"1")


def test_neither_writing_nor_reading_leaves_a_lock_file(made: tuple[Path, Path]) -> None:
    _, out = made
    expected = {
        *("data.mdb", "fastdata.json", "labels.npy", "offsets.npy", "paths.bin", "repaired.jsonl"),
        *("sizes.npy", "skipped.jsonl"),
    }
    assert {path.name for path in out.iterdir()} == expected
    with open_dataset(out) as dataset:
        dataset.read(0)
        assert {path.name for path in out.iterdir()} == expected
    assert {path.name for path in out.iterdir()} == expected


def test_the_file_is_no_larger_than_its_pages(made: tuple[Path, Path]) -> None:
    # LMDB's map is made larger than needed; the file must not be.
    source, out = made
    pages = sum(-(-path.stat().st_size // 4096) + 1 for path in source.rglob("*.jpg"))
    assert (out / "data.mdb").stat().st_size <= (pages + 8) * 4096
    assert (out / "data.mdb").stat().st_size % 4096 == 0


# Reading.


def test_several_datasets_read_one_database_at_once(made: tuple[Path, Path]) -> None:
    _, out = made
    first, second = open_dataset(out), open_dataset(out)
    expected = [bytes(first.read(i)) for i in range(22)]
    assert [bytes(second.read(i)) for i in range(22)] == expected
    first.close()
    assert [bytes(second.read(i)) for i in range(22)] == expected  # the other's end is not its own
    third = open_dataset(out)
    second.close()
    second.close()
    assert [bytes(third.read(i)) for i in range(22)] == expected
    assert [bytes(first.read(i)) for i in range(22)] == expected  # opens again
    third.close()
    first.close()


def test_a_dataset_that_replaces_an_open_one_is_read_and_not_the_old_one(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert(make_folder({"a": 5}), out, to="lmdb", workers=1)
    old = open_dataset(out)
    before = [bytes(old.read(i)) for i in range(5)]
    other = make_folder({"b": 9}, name="other")
    convert(other, out, to="lmdb", workers=1, shuffle=False, overwrite=True)
    new = open_dataset(out)
    assert len(new) == 9
    for i, path in enumerate(sorted((other / "b").iterdir())):
        assert bytes(new.read(i)) == path.read_bytes()
    assert [bytes(old.read(i)) for i in range(5)] == before  # its pages are still mapped
    old.close()
    new.close()


READERS = """
import hashlib, multiprocessing, os, sys
from fastdata import open_dataset

def digest(dataset):
    return hashlib.sha256(b"".join(bytes(dataset.read(i)) for i in range(len(dataset)))).hexdigest()

def child(dataset, queue):
    queue.put(digest(dataset))
    with open_dataset(dataset.path) as again:
        queue.put(digest(again))
    dataset.close()

if __name__ == "__main__":
    dataset, second = open_dataset(sys.argv[1]), open_dataset(sys.argv[1])
    expected = digest(dataset), digest(second)
    context = multiprocessing.get_context(sys.argv[2])
    queue = context.Queue()
    processes = [context.Process(target=child, args=(dataset, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=50) for _ in range(6)]
    for process in processes:
        process.join(50)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    # The children have closed what they had; the parent's own is untouched by that.
    assert digest(dataset) == digest(second) == expected[0]
    dataset.close()
    second.close()
    print(*sorted({*found, *expected}))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_read_the_database_of_their_parent(
    method: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    # In a process of its own: this one has threads, and those and fork do not mix.
    script = tmp_path / "readers.py"
    script.write_text(READERS)
    result = subprocess.run(
        [sys.executable, str(script), str(made[1]), method],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=2 * HANG_GUARD,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 1  # all have read the same bytes


@pytest.mark.parametrize("change", ["cut", "grown", "gone"])
def test_a_database_that_is_not_as_it_was_written_is_refused(change: str, copied: Path) -> None:
    path = copied / "data.mdb"
    if change == "gone":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + (4096 if change == "grown" else -4096))
    with pytest.raises(
        DatasetError, match=rf"{path}: (expected \d+ bytes, found \d+|No such file)"
    ):
        open_dataset(copied)


def test_damaged_pages_cannot_harm_a_reader(copied: Path) -> None:
    # LMDB trusts its pages, and a damaged one takes the process down; ours are not looked at.
    path = copied / "data.mdb"
    path.write_bytes(bytes(path.stat().st_size))
    with open_dataset(copied) as dataset, pytest.raises(ImageError, match="not an image"):
        dataset.decode(0)


def test_a_database_is_released_with_its_last_dataset(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"ant": 3}), tmp_path / "out", to="lmdb")

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path / "out" / "data.mdb"))

    first, second = open_dataset(tmp_path / "out"), open_dataset(tmp_path / "out")
    assert first.read(0) == second.read(0)
    assert maps() > 0
    first.close()
    assert second.read(1)  # the other one still uses it
    del first, second  # forgotten, not closed
    gc.collect()
    assert maps() == 0
