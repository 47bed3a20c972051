"""Whole conversions: what comes out, that it always comes out the same, and what is left alone."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import ImageFolder

import fastdata
from fastdata import (
    DataError,
    DestinationError,
    ImageError,
    SourceError,
    UsageError,
    open_dataset,
)

# One worker, where the test is not about workers: a process takes longer to start than to work.
convert = functools.partial(fastdata.convert, workers=1)
FORMATS = ("webdataset", "lmdb", "memmap")
BAD = b"this is no image"
Digests = Callable[[Path], dict[str, str]]


def needed(to: str) -> dict[str, Any]:
    """The options that a format cannot do without."""
    return {"to": to, "size": (24, 32)} if to == "memmap" else {"to": to}


@pytest.fixture
def mixed(
    tmp_path: Path, pixels: Callable[..., NDArray[np.uint8]], encode: Callable[..., bytes]
) -> Callable[..., Path]:
    """Write a source of every kind of file: ``mixed(name="source", bad=0)``."""

    def make(name: str = "source", bad: int = 0) -> Path:
        root = os.fsencode(tmp_path / name)
        exif = Image.Exif()
        exif[0x0112] = 6
        kinds: list[dict[str, Any]] = [
            {},
            {"format": "PNG"},
            {"progressive": True},
            {"mode": "L"},
            {"exif": exif},
            {"mode": "CMYK"},
        ]
        number = 0
        for label, count in ((b"ant", 9), (b"B\xff", 7), ("é".encode(), 8)):
            os.makedirs(os.path.join(root, label))
            for i in range(count):
                size = [(80, 60), (60, 80), (97, 61), (30, 31)][number % 4]
                data = encode(pixels(*size, seed=number), **kinds[number % len(kinds)])
                with open(os.path.join(root, label, b"%d.jpg" % i), "wb") as file:
                    file.write(data)
                number += 1
        for i in range(bad):
            with open(os.path.join(root, b"ant", b"bad%d.jpg" % i), "wb") as file:
                file.write(BAD)
        return Path(os.fsdecode(root))

    return make


def source_paths(root: Path) -> list[bytes]:
    """Paths in the source's order, by torchvision."""
    samples = ImageFolder(str(root)).samples
    return [os.path.relpath(os.fsencode(path), os.fsencode(root)) for path, _ in samples]


def stored_paths(dataset: fastdata.Dataset) -> list[bytes]:
    return [dataset.path_of(i) for i in range(len(dataset))]


# What comes out.


@pytest.mark.parametrize("to", ["webdataset", "lmdb"])
def test_baseline_jpegs_pass_through_byte_for_byte(
    to: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    result = convert(source, tmp_path / "out", to=to, shuffle=False)
    assert (result.samples, result.classes, result.skipped) == (22, 3, 0)
    assert (result.format, result.already_done, result.resumed) == (to, False, 0)
    dataset = open_dataset(tmp_path / "out")
    expected = ImageFolder(str(source))
    assert dataset.classes == expected.classes
    assert dataset.labels.tolist() == expected.targets
    for i, (path, _) in enumerate(expected.samples):
        data = Path(path).read_bytes()
        assert bytes(dataset.read(i)) == data
        with Image.open(path) as image:
            assert dataset.sizes[i].tolist() == list(image.size)


@pytest.mark.parametrize("to", FORMATS)
def test_each_sample_keeps_its_label_path_and_size_in_the_shuffle(
    to: str, mixed: Callable[..., Path], tmp_path: Path
) -> None:
    source = mixed()
    convert(source, tmp_path / "out", shard_size=6000, **needed(to))
    expected = dict(zip(source_paths(source), ImageFolder(str(source)).targets, strict=True))
    out = tmp_path / "out"
    labels, sizes = np.load(out / "labels.npy"), np.load(out / "sizes.npy")
    paths = (out / "paths.bin").read_bytes().split(b"\0")
    assert paths.pop() == b""  # each path is ended, none is begun
    assert (labels.dtype, labels.shape) == (np.int64, (24,))
    assert (sizes.dtype, sizes.shape) == (np.int32, (24, 2))
    assert sorted(paths) == sorted(expected)
    assert labels.tolist() == [expected[path] for path in paths]
    assert (out / "skipped.jsonl").read_bytes() == b""
    dataset = open_dataset(out)
    for i, path in enumerate(paths):
        assert dataset.path_of(i) == path
        image = dataset.decode(i)
        assert sizes[i].tolist() == [image.shape[1], image.shape[0]]
        with Image.open(os.path.join(os.fsencode(source), path)) as original:
            turned = original.getexif().get(0x0112, 1) == 6
            width, height = original.size[::-1] if turned else original.size
            if to == "memmap":
                width, height = 32, 24
            assert sizes[i].tolist() == [width, height]


@pytest.mark.parametrize("to", FORMATS)
def test_every_sample_is_the_picture_of_its_source(
    to: str, mixed: Callable[..., Path], tmp_path: Path
) -> None:
    # In a coarse view, so that scaling, cutting and JPEG hardly matter, but a picture in the
    # place of another one does.
    source, out = mixed(), tmp_path / "out"
    convert(source, out, shard_size=6000, **{**needed(to), "size": (48, 48)})
    dataset = open_dataset(out)
    for i in range(len(dataset)):
        with Image.open(os.path.join(os.fsencode(source), dataset.path_of(i))) as file:
            image = file.convert("RGB")
            if file.getexif().get(0x0112, 1) == 6:
                image = image.transpose(Image.Transpose.ROTATE_270)
        short, (width, height) = min(image.size), image.size
        left, top = (width - short) / 2, (height - short) / 2
        box = (left, top, left + short, top + short)
        expected = image.resize((8, 8), Image.Resampling.BOX, box)
        found = Image.fromarray(dataset.decode(i)).resize((8, 8), Image.Resampling.BOX)
        error = np.abs(np.asarray(found, np.float64) - np.asarray(expected))
        assert error.mean() < 8


def test_images_of_the_memmaps_own_size_become_rows_of_their_own(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder({"a": 40, "b": 40}, sizes=[(32, 32)])
    convert(source, tmp_path / "out", to="memmap", size=32, shuffle=False)
    images = np.load(tmp_path / "out" / "images.npy", mmap_mode="r")
    for i, path in enumerate(source_paths(source)):
        with Image.open(source / os.fsdecode(path)) as image:
            np.testing.assert_array_equal(images[i], np.asarray(image))


@pytest.mark.parametrize("to", FORMATS)
def test_images_without_class_folders_are_converted_without_labels(
    to: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder({"only": 5}) / "only"
    result = convert(source, tmp_path / "out", **needed(to))
    assert (result.samples, result.classes) == (5, 0)
    assert np.load(tmp_path / "out" / "labels.npy").shape == (5, 0)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.classes == []
    names = sorted(os.fsencode(path.name) for path in source.iterdir())
    assert sorted(stored_paths(dataset)) == names


def test_the_report_counts_what_was_written_and_ignored(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    (source / "ant" / "notes.txt").write_text("no image")
    (source / ".hidden").mkdir()
    result = convert(source, tmp_path / "out")
    assert result.ignored == {"hidden": 1, "not an image's name": 1}
    assert result.path == str(tmp_path / "out")
    files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert result.bytes == sum(path.stat().st_size for path in files)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in files}


@pytest.mark.parametrize("to", FORMATS)
def test_the_manifest_names_every_file_with_its_checksum(
    to: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out, shard_size=8000, **needed(to))
    manifest = json.loads((out / "fastdata.json").read_bytes())
    # Nothing of when, where or by whom: a new key must be looked at.
    assert set(manifest) == {
        *("fastdata", "format", "samples", "classes", "image_size", "conversion", "source"),
        *("skipped", "parts", "created_by", "identity", "label_dtype", "columns", "treated"),
        "repaired",
    }
    assert set(manifest["source"]) == {"files", "bytes", "fingerprint"}
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    for part in manifest["parts"]:
        ranges.setdefault(part["file"], []).append((part["offset"], part["bytes"], part["sha256"]))
    assert {*ranges, "fastdata.json"} == {path.name for path in out.iterdir()}
    for name, parts in ranges.items():
        data, end = (out / name).read_bytes(), 0
        for offset, size, sha256 in sorted(parts):
            assert offset == end
            end += size
            assert hashlib.sha256(data[offset:end]).hexdigest() == sha256
        assert end == len(data)
    assert sum(part["samples"] or 0 for part in manifest["parts"]) == 22 == manifest["samples"]


# The order.


def test_without_shuffle_samples_come_in_the_sources_order(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    convert(source, tmp_path / "out", shuffle=False, shard_size=5000)
    assert stored_paths(open_dataset(tmp_path / "out")) == source_paths(source)


def test_a_seed_names_an_order_and_the_shuffle_mixes_classes(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder({"a": 30, "b": 30})
    orders = []
    for number, seed in enumerate((0, 0, 1)):
        convert(source, tmp_path / f"{number}", seed=seed, shard_size=10**6)
        orders.append(stored_paths(open_dataset(tmp_path / f"{number}")))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == source_paths(source)
    # In 60 mixed samples both classes are in each third; the chance of a fault is below 1e-5.
    labels = np.load(tmp_path / "0" / "labels.npy")
    assert all(0 < third.mean() < 1 for third in labels.reshape(3, 20))


def test_shards_hold_the_source_bytes_that_were_asked_for(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, target = make_folder(), 9000
    convert(source, tmp_path / "out", shuffle=False, shard_size=target)
    sizes = [(source / os.fsdecode(path)).stat().st_size for path in source_paths(source)]
    # By hand: a sample goes where its first byte lies.
    firsts = [sum(sizes[:i]) // target for i in range(len(sizes))]
    expected = [firsts.count(number) for number in sorted(set(firsts))]
    assert len(expected) > 3
    info = json.loads((tmp_path / "out" / "_info.json").read_bytes())
    assert info["splits"]["shard"]["shard_lengths"] == expected


# Always the same.


@pytest.mark.parametrize("to", FORMATS)
def test_bytes_depend_on_neither_workers_nor_place_nor_time_nor_host(
    to: str, mixed: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source = mixed(bad=2)
    copy = tmp_path / "a copy elsewhere" / "renamed"
    shutil.copytree(source, copy)
    for number, path in enumerate(copy.rglob("*")):
        os.utime(path, (number, number))
    # Directories list in another order where their entries were made in another order.
    for path in sorted(copy.rglob("*.jpg"), reverse=True):
        path.rename(path.with_name("tmp"))
        path.with_name("tmp").rename(path)
    found = []
    for number, (src, workers) in enumerate([(source, 1), (source, 2), (copy, 3)]):
        out = tmp_path / f"out{number}"
        options = {"resize": 40} if to != "memmap" else {}
        convert(
            src, out, workers=workers, shard_size=5000, on_error="skip", **options, **needed(to)
        )
        found.append(digests(out))
        assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    assert found[0] == found[1] == found[2]
    for path in (tmp_path / "out0").iterdir():
        data = path.read_bytes()
        assert os.fsencode(tmp_path) not in data
        assert os.fsencode(tmp_path.name) not in data
        if path.suffix in (".json", ".jsonl", ".idx"):
            host = re.escape(socket.gethostname().encode())
            assert not re.search(rb"(?<![\w.-])" + host + rb"(?![\w.-])", data)


@pytest.mark.parametrize("to", FORMATS)
def test_a_finished_identical_conversion_does_nothing(
    to: str, make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = make_folder(), tmp_path / "out"
    first = convert(source, out, **needed(to))
    before = digests(out)
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = convert(source, out, workers=1, on_error="skip", **needed(to))
    assert again.already_done
    assert not first.already_done
    assert (again.samples, again.classes, again.bytes) == (first.samples, 3, first.bytes)
    assert digests(out) == before
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == times


def test_a_conversion_from_a_copy_of_the_source_is_the_same_conversion(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out)
    shutil.copytree(source, tmp_path / "copy")
    assert convert(tmp_path / "copy", out).already_done


def test_relative_paths_and_links_lead_to_the_same_place(
    make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder()
    (tmp_path / "link").symlink_to(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    convert("source", "deep/er/out")
    assert convert("./link", "deep/../deep/er/out").already_done


# What is in the way.

OTHER_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"to": "lmdb"}, "--to was 'webdataset' and is now 'lmdb'"),
    ({"resize": 32}, "--resize was None and is now 32"),
    ({"quality": 80}, "--quality was 90 and is now 80"),
    ({"shuffle": False}, "--shuffle was True and is now False"),
    ({"seed": 1}, "--seed was 0 and is now 1"),
    ({"name": "train"}, "--name was 'shard' and is now 'train'"),
]


def test_another_option_is_refused_by_name_and_nothing_is_touched(
    make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out)
    before = digests(out)
    for options, message in OTHER_OPTIONS:
        with pytest.raises(DestinationError, match=re.escape(message)) as caught:
            convert(source, out, **options)
        assert "--overwrite" in str(caught.value)
    assert digests(out) == before


def test_another_source_is_refused_and_nothing_is_touched(
    make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out)
    before = digests(out)
    other = make_folder({"ant": 3, "bee": 2}, name="other")
    with pytest.raises(DestinationError, match=r"its source had 22 images of \d+ bytes.*has 5 of"):
        convert(other, out)
    assert digests(out) == before


OLD_AND_NEW = [
    ("webdataset", "webdataset"),
    ("webdataset", "lmdb"),
    ("lmdb", "lmdb"),
    ("lmdb", "memmap"),
    ("memmap", "webdataset"),
    ("memmap", "memmap"),
]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
def test_overwrite_removes_only_what_the_old_manifest_names(
    old: str, new: str, make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out, shard_size=3000, seed=5, **needed(old))
    (out / "my notes.txt").write_text("mine")
    (out / "shard-000900.tar").write_text("mine as well, in spite of its name")
    (out / "mine").mkdir()
    (out / "mine" / "labels.npy").write_text("mine")
    convert(source, out, overwrite=True, shard_size=20_000, **needed(new))
    found = digests(out)
    assert (out / "my notes.txt").read_text() == "mine"
    mine = [found.pop(n) for n in ("my notes.txt", "shard-000900.tar", "mine/labels.npy")]
    assert len(mine) == 3
    convert(source, tmp_path / "fresh", shard_size=20_000, **needed(new))
    assert found == digests(tmp_path / "fresh")


def test_overwrite_stops_before_a_users_file_of_a_needed_name(
    make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out, to="webdataset")
    (out / "data.mdb").write_text("mine")
    before = digests(out)
    with pytest.raises(DestinationError, match=r"data\.mdb is in the way"):
        convert(source, out, to="lmdb", overwrite=True)
    assert {k: v for k, v in digests(out).items() if not k.startswith(".fastdata")} == before
    (out / "data.mdb").unlink()
    convert(source, out, to="lmdb", overwrite=True)
    convert(source, tmp_path / "fresh", to="lmdb")
    assert digests(out) == digests(tmp_path / "fresh")


@pytest.mark.parametrize("to", ["webdataset", "memmap"])
def test_the_old_dataset_stays_whole_when_its_replacement_fails(
    to: str, make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = make_folder(), tmp_path / "out"
    convert(source, out, seed=5, **needed(to))
    before, identity = digests(out), open_dataset(out).identity
    (source / "ant" / "ant_003.jpg").write_bytes(BAD)
    with pytest.raises(ImageError, match=r"ant_003\.jpg"):
        convert(source, out, shard_size=2000, overwrite=True, **needed(to))
    found = digests(out)
    assert {name: found[name] for name in before} == before
    dataset = open_dataset(out)
    assert dataset.identity == identity
    assert dataset.decode(0).size
    # And the failed one is resumed.
    result = convert(source, out, shard_size=2000, overwrite=True, on_error="skip", **needed(to))
    assert result.skipped == 1
    assert open_dataset(out).identity != identity
    convert(source, tmp_path / "fresh", shard_size=2000, on_error="skip", **needed(to))
    assert digests(out) == digests(tmp_path / "fresh")


def test_overwrite_where_nothing_lies_is_a_plain_conversion(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    assert convert(make_folder(), tmp_path / "out", overwrite=True).samples == 22


# Images at fault.


@pytest.mark.parametrize("to", FORMATS)
def test_skipped_images_leave_no_hole(to: str, mixed: Callable[..., Path], tmp_path: Path) -> None:
    source, out = mixed(bad=3), tmp_path / "out"
    # In shards of about two samples, some bad one is first, last or alone.
    result = convert(source, out, on_error="skip", shard_size=2500, **needed(to))
    assert (result.samples, result.skipped) == (24, 3)
    lines = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert sorted(line["path"] for line in lines) == [f"ant/bad{i}.jpg" for i in range(3)]
    for line in lines:
        assert set(line) == {"path", "reason", "error"}
        assert "not an image" in line["reason"]
        assert line["error"] == "ValueError"
    dataset = open_dataset(out)
    good = [path for path in source_paths(source) if b"bad" not in path]
    assert sorted(stored_paths(dataset)) == sorted(good)
    classes = {b"ant": 1, b"B\xff": 0, "é".encode(): 2}  # B < ant < é
    for i in range(24):
        assert dataset.labels[i] == classes[os.path.dirname(dataset.path_of(i))]
        assert dataset.decode(i).shape[:2] == tuple(dataset.sizes[i][::-1])
    if to == "memmap":
        assert np.load(out / "images.npy", mmap_mode="r").shape == (24, 24, 32, 3)


@pytest.mark.parametrize("to", FORMATS)
def test_bytes_are_those_of_a_source_without_the_skipped_images(
    to: str, mixed: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    # Without a shuffle the order of the others is the same. Only what tells of the source and of
    # what was skipped differs, and webdataset's keys, which are plan positions.
    convert(mixed("with", bad=3), tmp_path / "1", on_error="skip", shuffle=False, **needed(to))
    convert(mixed("without"), tmp_path / "2", shuffle=False, **needed(to))
    one, two = digests(tmp_path / "1"), digests(tmp_path / "2")
    same = {"labels.npy", "sizes.npy", "paths.bin", "images.npy", "data.mdb"} & one.keys()
    assert len(same) >= 3
    for name in same:
        assert one[name] == two[name], name


@pytest.mark.parametrize("to", FORMATS)
def test_where_every_image_is_at_fault_no_dataset_is_made(to: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    for i in range(3):
        (source / "a" / f"{i}.jpg").write_bytes(BAD)
    with pytest.raises(DataError, match=r"none of the 3 images.*a/.*not an image"):
        convert(source, tmp_path / "out", on_error="skip", **needed(to))
    with pytest.raises(fastdata.UnfinishedError):
        open_dataset(tmp_path / "out")


@pytest.mark.parametrize("to", FORMATS)
def test_a_bad_image_stops_the_conversion_and_skip_goes_on_from_there(
    to: str, mixed: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source, out = mixed(), tmp_path / "out"
    (source / "é" / "7.jpg").write_bytes(BAD)  # last in the source's order
    options = {"shuffle": False, "shard_size": 5000, **needed(to)}
    with pytest.raises(ImageError, match=f"{source}/é/7.jpg: not an image"):
        convert(source, out, workers=1, **options)
    with pytest.raises(fastdata.UnfinishedError, match=r"unfinished: [1-9]\d* of \d+ shards"):
        open_dataset(out)
    result = convert(source, out, on_error="skip", **options)
    assert result.resumed >= 1
    assert result.skipped == 1
    convert(source, tmp_path / "fresh", on_error="skip", **options)
    assert digests(out) == digests(tmp_path / "fresh")


def test_a_dataset_with_skipped_images_is_no_answer_to_a_strict_conversion(
    mixed: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = mixed(bad=1), tmp_path / "out"
    convert(source, out, on_error="skip")
    assert convert(source, out, on_error="skip").already_done
    with pytest.raises(ImageError, match=r"ant/bad0\.jpg.*--on-error skip"):
        convert(source, out)


def test_an_interrupted_skip_is_not_finished_by_a_strict_conversion(
    mixed: Callable[..., Path], tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    source, out = mixed(), tmp_path / "out"
    (source / "B\udcff" / "0.jpg").write_bytes(BAD)  # first in the source's order
    options = {"shuffle": False, "shard_size": 3000}
    interrupt(source, out, images=10, on_error="skip", **options)
    with pytest.raises(ImageError, match=r"0\.jpg: not an image"):
        convert(source, out, **options)
    assert convert(source, out, on_error="skip", **options).skipped == 1


# The call.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "--workers of at least 1, got 0"),
        ({"on_error": "ignore"}, "raise or skip, got 'ignore'"),
        ({"to": "memmap"}, "--size"),
        ({"to": "zip"}, "'zip'"),
        ({"resume": True}, "nothing to resume"),
    ],
    ids=str,
)
def test_a_call_at_fault_writes_nothing(
    options: dict[str, Any], message: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_source_at_fault_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="absent"):
        convert(tmp_path / "absent", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_image_once_and_is_closed(
    mixed: Callable[..., Path], tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    events: list[tuple[str, Any]] = []

    class Told:
        def scanned(self, images: int) -> None:
            events.append(("scanned", images))

        def planned(self, images: int, done: int) -> None:
            events.append(("planned", (images, done)))

        def converted(self, images: int) -> None:
            events.append(("converted", images))

        def note(self, line: str) -> None:
            events.append(("note", line))

        def close(self) -> None:
            events.append(("close", None))

    source, out = mixed(bad=2), tmp_path / "out"
    options = {"on_error": "skip", "shard_size": 3000}
    interrupt(source, out, images=5, **options)
    convert(source, out, progress=Told(), **options)
    planned = [value for name, value in events if name == "planned"]
    assert len(planned) == 1
    images, done = planned[0]
    assert images == 26
    assert 1 <= done < 26
    assert sum(value for name, value in events if name == "converted") == images - done
    assert events[-1] == ("close", None)
    assert [name for name, _ in events].count("close") == 1


def test_a_size_may_be_one_number(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    convert(make_folder({"a": 3}), tmp_path / "out", to="memmap", size=20)
    assert np.load(tmp_path / "out" / "images.npy").shape == (3, 20, 20, 3)


def test_workers_import_what_the_caller_imports_not_what_lies_where_it_stands(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    # A script's own folder is on its path, the current folder is not: a data folder may hold a
    # converters/ or a json.py.
    source, trap = make_folder({"a": 3}), tmp_path / "trap"
    (trap / "converters").mkdir(parents=True)
    (trap / "converters" / "__init__.py").write_text("raise SystemExit('the wrong converters')")
    (trap / "json.py").write_text("raise SystemExit('the wrong json')")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text("import sys; from fastdata import convert; convert(*sys.argv[1:])")
    code = "import runpy, sys; del sys.path[0]; del sys.argv[0]; runpy.run_path(sys.argv[0])"
    result = python(code, script, source, tmp_path / "out", cwd=trap)
    assert result.returncode == 0, result.stderr
    assert len(open_dataset(tmp_path / "out")) == 3


@pytest.mark.parametrize("to", FORMATS)
def test_source_and_destination_may_have_any_name(
    to: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"a \xff:b\n'c")
    odd.mkdir()
    source = make_folder({"a\nb": 2, "c d": 1}).rename(odd / "source")
    convert(source, odd / "out", **needed(to))
    dataset = open_dataset(odd / "out")
    assert dataset.classes == ["a\nb", "c d"]
    assert sorted(stored_paths(dataset)) == source_paths(source)
    assert dataset.decode(2).any()


def test_what_a_caller_prints_and_reads_is_its_own(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    code = "import sys; from fastdata import convert; convert(*sys.argv[1:]); print('mine')"
    result = python(code, make_folder(), tmp_path / "out")
    assert (result.stdout, result.stderr) == ("mine\n", "")


def test_a_conversion_may_run_beside_other_threads(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda i: convert(source, tmp_path / f"{i}"), range(2)))
    assert [result.samples for result in results] == [22, 22]


def test_large_images_are_converted_and_found_again(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder({"a": 2, "b": 1}, sizes=[(900, 700), (700, 901)])
    convert(source, tmp_path / "out", resize=256)
    dataset = open_dataset(tmp_path / "out")
    expected = {(329, 256), (256, 329)}  # 900 * 256 // 700; 901 * 256 // 700
    assert {tuple(size) for size in dataset.sizes.tolist()} == expected
    for i in range(3):
        with Image.open(io.BytesIO(dataset.read(i))) as image:
            assert image.size in expected
